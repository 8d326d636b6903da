"""The schedule never changes the answer: the native engine on the real model, compared with `==`.

Every case runs the same requests as `alone` did, one by one in an engine of their own, and shows by
counters that what it names happened. Compared are token ids and log-probabilities, bit for bit.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from octavo.backends.native import NativeExecutor
from octavo.config import CacheConfig, SchedulerConfig
from octavo.core.sampling_params import SamplingParams
from octavo.core.step import StepPlan, StepResult
from octavo.llm import LLM, Completion

Answer = list[tuple[tuple[int, ...], tuple[Any, ...]]]

TEXT = (
    "The history of the lighthouse begins with fires on hilltops. Sailors learned to read the "
    "coast by night, and builders learned to raise the flame. In {year}, the keeper wrote {n} "
    "lines in the log: wind from the west, {n} ships, one of them without a name. "
)
MAX_LEN = 2560


def make(path: Path, **options: Any) -> LLM:
    scheduler = SchedulerConfig(
        max_num_batched_tokens=options.pop("budget", 512),
        max_num_seqs=options.pop("seqs", 48),
        policy=options.pop("policy", "optimistic"),
        check_every_n_steps=1,
    )
    cache = CacheConfig(
        block_size=options.pop("block_size", 16),
        num_blocks=options.pop("num_blocks", None),
        kv_bytes=options.pop("kv_bytes", 512 << 20),
        prefix_cache=options.pop("prefix_cache", True),
        kv_dtype=options.pop("kv_dtype", "bf16"),
    )
    return LLM(str(path), scheduler=scheduler, cache=cache, **options)


@dataclass
class Watch:
    """What the plans looked like that the runner was given."""

    rows: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    chunks: list[int] = field(default_factory=list)


@contextmanager
def watched(llm: LLM) -> Iterator[Watch]:
    """Rows, tokens and unfinished prompt chunks of every step meanwhile."""
    seen = Watch()
    runner = llm.model.runner
    execute = runner.execute

    def note(plan: StepPlan) -> StepResult:
        seen.rows.append(len(plan.rows))
        seen.tokens.append(plan.num_tokens)
        seen.chunks.append(sum(not row.num_samples for row in plan.rows))
        return execute(plan)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "execute", note)
        yield seen


def requests(llm: LLM) -> list[tuple[list[int], SamplingParams]]:
    """Prompts from one token to past 600, greedy and seeded, plain and with penalties."""
    rng = random.Random(7)
    story = llm.tokenizer.encode("".join(TEXT.format(year=1700 + i, n=3 * i) for i in range(40)))
    kinds = [
        SamplingParams(temperature=0.0, max_tokens=12, logprobs=3, seed=1),
        SamplingParams(temperature=0.9, top_p=0.9, max_tokens=14, logprobs=2, seed=2),
        SamplingParams(temperature=1.3, top_k=40, max_tokens=10, logprobs=0, seed=3),
        SamplingParams(
            temperature=0.7, min_p=0.05, repetition_penalty=1.2, presence_penalty=0.3,
            frequency_penalty=0.2, max_tokens=12, logprobs=1, seed=4,
        ),
        SamplingParams(temperature=1.0, n=3, max_tokens=9, logprobs=1, seed=5),
        SamplingParams(
            temperature=0.8, min_tokens=8, logit_bias=((198, 4.0),), max_tokens=16, seed=6,
            logprobs=2,
        ),
    ]  # fmt: skip
    lengths = [1, 2, 15, 16, 17, 31, 33, 64, 100, 130, 200, 257, 300, 620]
    asked = []
    for index, length in enumerate(lengths):
        # Every other prompt starts at the same place, so that prefixes are shared mid-block.
        start = 0 if index % 2 else rng.randrange(50)
        params = replace(kinds[index % len(kinds)], ignore_eos=index % 3 == 0)
        asked.append((story[start : start + length], params))
    return asked


def answer(completions: list[Completion]) -> Answer:
    return [(done.token_ids, done.logprobs) for done in completions]


def run_alone(llm: LLM, asked: list[tuple[list[int], SamplingParams]]) -> list[Answer]:
    answers = []
    for prompt, params in asked:
        llm.engine.reset_prefix_cache()
        answers.append(answer(llm.generate(prompt, params)))
    return answers


def run_together(
    llm: LLM, asked: list[tuple[list[int], SamplingParams]], order: list[int]
) -> list[Answer]:
    """One batch in the given order; answers in the order of ``asked``."""
    done = iter(answer(llm.generate([asked[i][0] for i in order], [asked[i][1] for i in order])))
    answers: dict[int, Answer] = {}
    for i in order:
        answers[i] = [next(done) for _ in range(asked[i][1].n)]
    return [answers[i] for i in sorted(answers)]


@pytest.fixture(scope="module")
def llm(smollm2_path: Path) -> Iterator[LLM]:
    with make(smollm2_path) as loaded:
        yield loaded
        assert loaded.engine.check_invariants() == []
        assert loaded.engine.violations == []


@pytest.fixture(scope="module")
def alone(llm: LLM) -> list[Answer]:
    return run_alone(llm, requests(llm))


@pytest.mark.parametrize("width", [2, 5, 14])
def test_in_a_batch_in_any_order(llm: LLM, alone: list[Answer], width: int) -> None:
    asked = requests(llm)
    rng = random.Random(width)
    before = llm.stats().counters
    for _ in range(2):
        llm.engine.reset_prefix_cache()
        order = rng.sample(range(len(asked)), width)
        together = run_together(llm, asked, order)
        assert together == [alone[i] for i in sorted(order)]
    after = llm.stats().counters
    assert after["mixed_steps"] > before["mixed_steps"]
    assert after["forks"] > before["forks"] or width < 5


def test_among_32_streams(llm: LLM, alone: list[Answer]) -> None:
    asked = requests(llm)
    crowd = [
        ([17 + 31 * i, 5 + i, 900 + i], SamplingParams(max_tokens=20, seed=i, ignore_eos=True))
        for i in range(18)
    ]
    llm.engine.reset_prefix_cache()
    with watched(llm) as seen:
        together = run_together(llm, asked + crowd, list(range(len(asked) + len(crowd))))
    assert together[: len(asked)] == alone
    assert max(seen.rows) >= 32
    # Not for one lucky step, and with prompts among those that decode.
    assert sum(rows >= 32 for rows in seen.rows) >= 3
    assert any(
        rows >= 16 and tokens > rows for rows, tokens in zip(seen.rows, seen.tokens, strict=True)
    )


@pytest.mark.parametrize("budget", [3, 16, 50, 128, 1000])
def test_any_chunk_size(smollm2_path: Path, alone: list[Answer], budget: int) -> None:
    with make(smollm2_path, budget=budget, seqs=min(budget, 48)) as llm:
        asked = requests(llm)
        # A budget of a few tokens takes hundreds of steps a prompt: the short ones say it all.
        some = [i for i, (prompt, _) in enumerate(asked) if len(prompt) <= max(64, budget * 12)]
        # A prompt of one and a half steps in front, so that at every budget one is cut.
        wide = [100 + 7 * i % 5000 for i in range(budget + budget // 2)]
        asked.append((wide, SamplingParams(temperature=0.0, max_tokens=1, seed=1)))
        with watched(llm) as seen:
            together = run_together(llm, asked, [len(asked) - 1, *some])
        assert together[:-1] == [alone[i] for i in some]
        assert max(seen.tokens) == budget, "some step was full"
        assert sum(seen.chunks) > 0, "some prompt was cut"
        assert llm.stats().counters["computed_tokens"] == sum(seen.tokens)


def test_warm_equals_cold(llm: LLM, alone: list[Answer]) -> None:
    asked = requests(llm)
    llm.engine.reset_prefix_cache()
    first = run_together(llm, asked, list(range(len(asked))))
    before = llm.stats().counters
    second = run_together(llm, asked, list(range(len(asked))))
    after = llm.stats().counters
    assert first == second == alone
    assert after["prefix_hit_tokens"] - before["prefix_hit_tokens"] > 1000
    assert after["partial_hits"] > before["partial_hits"]
    assert after["cow_copies"] > before["cow_copies"]


def test_preempted(smollm2_path: Path, alone: list[Answer]) -> None:
    with make(smollm2_path, num_blocks=60, max_model_len=700) as llm:
        asked = requests(llm)
        assert run_together(llm, asked, list(range(len(asked)))) == alone
        counters = llm.stats().counters
        assert counters["preemptions"] > 0
        assert counters["recomputed_tokens"] > 0
        assert llm.stats().gauges["orphan_blocks"] == 0


@pytest.mark.parametrize("block_size", [32, 64])
def test_any_block_size(smollm2_path: Path, alone: list[Answer], block_size: int) -> None:
    with make(smollm2_path, block_size=block_size) as llm:
        asked = requests(llm)
        assert run_together(llm, asked, list(range(len(asked)))) == alone
        assert llm.model.runner.info.block_size == block_size


@pytest.mark.parametrize("threads", [1, 2])
def test_any_number_of_threads(smollm2_path: Path, alone: list[Answer], threads: int) -> None:
    with make(smollm2_path, num_threads=threads) as llm:
        asked = requests(llm)
        assert run_together(llm, asked, list(range(len(asked)))) == alone
        executor = llm.model.runner.executor
        assert isinstance(executor, NativeExecutor)
        assert executor.info["num_threads"] == threads


@pytest.fixture(scope="module")
def alone_int8(smollm2_path: Path) -> list[Answer]:
    with make(smollm2_path, kv_dtype="int8") as llm:
        return run_alone(llm, requests(llm))


@pytest.mark.parametrize(
    "options",
    [
        {"budget": 50},
        {"block_size": 32, "num_threads": 1},
        {"num_blocks": 60, "max_model_len": 700},
    ],
    ids=["chunks", "blocks of 32", "a small pool"],
)
def test_from_an_int8_cache(
    smollm2_path: Path, alone: list[Answer], alone_int8: list[Answer], options: dict[str, Any]
) -> None:
    """Cold, then warm: chunks, copies, partial hits and preemptions change nothing."""
    with make(smollm2_path, kv_dtype="int8", **options) as llm:
        asked = requests(llm)
        for _ in range(2):
            assert run_together(llm, asked, list(range(len(asked)))) == alone_int8
        counters = llm.stats().counters
        assert min(counters[name] for name in ("cow_copies", "partial_hits", "forks")) > 0
        assert (counters["preemptions"] > 0) == ("num_blocks" in options)
        assert llm.engine.check_invariants() == llm.engine.violations == []
        assert llm.model.runner.info.kv_dtype == "int8"
    assert alone_int8 != alone


@pytest.mark.parametrize("kv_dtype", ["bf16", "int8"])
def test_past_two_thousand_tokens(smollm2_path: Path, kv_dtype: str) -> None:
    """Long enough for many softmax segments: alone, chunked otherwise, warm, and in company."""
    sampling = SamplingParams(temperature=0.8, max_tokens=6, seed=11, logprobs=2, ignore_eos=True)
    with make(smollm2_path, budget=2048, num_threads=2, kv_dtype=kv_dtype) as one:
        limit = one.model.runner.info.max_model_len
        story = one.tokenizer.encode("".join(TEXT.format(year=1000 + i, n=i) for i in range(80)))
        prompt = story[: min(2030, limit - 8)]
        assert len(prompt) > 2000
        cold = answer(one.generate(prompt, sampling))
        warm = answer(one.generate(prompt, sampling))
        assert one.stats().counters["prefix_hit_tokens"] > 1900
    with make(smollm2_path, budget=200, block_size=32, num_threads=1, kv_dtype=kv_dtype) as other:
        crowd = [story[i * 5 : i * 5 + 40] for i in range(6)]
        together = answer(other.generate([prompt, *crowd], sampling))
        assert other.stats().counters["mixed_steps"] > 0
    assert cold == warm == together[:1]


def test_a_preempted_prompt_past_two_thousand_tokens(smollm2_path: Path) -> None:
    """Two such sequences outgrow the pool: one gives way and is computed again from its start."""
    sampling = SamplingParams(temperature=0.9, max_tokens=40, seed=3, logprobs=1, ignore_eos=True)
    with make(
        smollm2_path, budget=1024, num_blocks=260, max_model_len=2100, prefix_cache=False
    ) as llm:
        story = llm.tokenizer.encode("".join(TEXT.format(year=1000 + i, n=i) for i in range(90)))
        prompts = [story[:2040], story[60:2110]]
        cold = [answer(llm.generate(prompt, sampling)) for prompt in prompts]
        assert llm.stats().counters["preemptions"] == 0
        both = answer(llm.generate(prompts, sampling))
        counters = llm.stats().counters
    assert [both[:1], both[1:]] == cold
    assert counters["preemptions"] > 0
    assert counters["recomputed_tokens"] > 2000
