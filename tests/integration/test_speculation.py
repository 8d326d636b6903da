"""Speculation never changes the answer: the native engine on the real model, compared with `==`."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from octavo.config import CacheConfig, SchedulerConfig
from octavo.core.sampling_params import SamplingParams
from octavo.errors import ConfigError
from octavo.llm import LLM, Completion
from octavo.scheduler import Sequence
from octavo.scheduler.guess import Guess
from octavo.scheduler.speculation import Proposer
from oracles.hf_writer import write_hf_directory
from oracles.requantize import requantize

CODE = """def area(shape):
    if shape.kind == "circle":
        return 3.14159 * shape.radius * shape.radius
    if shape.kind == "square":
        return shape.side * shape.side
    raise ValueError(shape.kind)
"""
PROMPTS = [
    f"Here is the code twice.\n\n{CODE}\n\n{CODE[:60]}",
    "one two three four one two three four one two three",
    "The history of the lighthouse begins with fires on hilltops.",
]


def make(path: Path, speculate: str, **options: Any) -> LLM:
    scheduler = SchedulerConfig(
        max_num_batched_tokens=options.pop("budget", 256),
        policy="optimistic",
        check_every_n_steps=1,
        speculate=speculate,
        num_draft_tokens=options.pop("num_draft_tokens", 7),
    )
    cache = CacheConfig(
        block_size=options.pop("block_size", 16),
        num_blocks=options.pop("num_blocks", None),
        kv_bytes=256 << 20,
    )
    return LLM(str(path), scheduler=scheduler, cache=cache, **options)


def requests(llm: LLM) -> list[tuple[list[int], SamplingParams]]:
    """Texts that repeat themselves, greedy and seeded, plain and with everything that has state."""
    newline = llm.tokenizer.encode("\n")[0]
    kinds = [
        SamplingParams(temperature=0.0, max_tokens=30, logprobs=2, seed=1),
        SamplingParams(temperature=0.4, top_p=0.9, max_tokens=24, logprobs=1, seed=2, n=2),
        SamplingParams(
            temperature=0.5, presence_penalty=0.1, frequency_penalty=0.05, repetition_penalty=1.02,
            max_tokens=24, logprobs=1, seed=3,
        ),
        SamplingParams(
            temperature=0.3, min_tokens=20, logit_bias=((newline, 3.0),), max_tokens=30,
            stop_token_ids=(newline,), logprobs=0, seed=4,
        ),
        SamplingParams(temperature=0.0, min_p=0.1, max_tokens=24, stop=("four one",), logprobs=0),
    ]  # fmt: skip
    prompts = [llm.tokenizer.encode(text) for text in PROMPTS]
    return [(prompt, kind) for prompt in prompts for kind in kinds]


Answer = list[tuple[str, tuple[int, ...], tuple[Any, ...], Any]]


def answer(completions: list[Completion]) -> Answer:
    return [(c.text, c.token_ids, c.logprobs, c.finish_reason) for c in completions]


def run(llm: LLM, order: list[int]) -> dict[int, Answer]:
    """All requests in one batch, in ``order``."""
    asked = requests(llm)
    done = iter(answer(llm.generate([asked[i][0] for i in order], [asked[i][1] for i in order])))
    return {i: [next(done) for _ in range(asked[i][1].n)] for i in order}


@pytest.fixture(scope="module")
def plain(smollm2_path: Path) -> Iterator[dict[int, Answer]]:
    with make(smollm2_path, "off") as llm:
        answers = run(llm, list(range(len(requests(llm)))))
        assert llm.stats().counters["draft_tokens"] == 0
        yield answers


def assert_both_happened(counters: dict[str, int]) -> None:
    assert 0 < counters["draft_tokens_accepted"] < counters["draft_tokens"]
    assert counters["draft_tokens_accepted_at_1"] > 0


@pytest.mark.parametrize("speculate", ["ngram", "suffix", "tree"])
def test_on_equals_off(smollm2_path: Path, plain: dict[int, Answer], speculate: str) -> None:
    with make(smollm2_path, speculate) as llm:
        for index in (0, 6, 12):
            assert run(llm, [index])[index] == plain[index]
        assert_both_happened(llm.stats().counters)
        llm.engine.reset_prefix_cache()
        order = random.Random(3).sample(sorted(plain), 8)
        before = llm.stats().counters["draft_tokens_accepted"]
        assert run(llm, order) == {i: plain[i] for i in order}
        assert llm.stats().counters["draft_tokens_accepted"] > before
        assert llm.engine.check_invariants() == llm.engine.violations == []


def test_on_equals_off_in_a_pool_that_is_too_small(
    smollm2_path: Path, plain: dict[int, Answer]
) -> None:
    """Chunks, preemptions, prefix hits and drafts in one run."""
    with make(
        smollm2_path, "ngram", num_blocks=40, max_model_len=300, budget=40, num_draft_tokens=3
    ) as llm:
        assert run(llm, sorted(plain)) == plain
        counters = llm.stats().counters
        assert_both_happened(counters)
        for name in ("preemptions", "prefix_hit_tokens", "mixed_steps", "cow_copies"):
            assert counters[name] > 0, name
        assert "draft_tokens_accepted_at_3" not in counters
        assert llm.stats().gauges["orphan_blocks"] == 0


def known_paths(llm: LLM, plain: dict[int, Answer]) -> Proposer:
    """Paths of answers that are known, each wrong somewhere or nowhere: some are right longer."""
    rng = random.Random(4)
    known = {
        (tuple(prompt), replace(params, seed=0), branch): plain[index][branch][1]
        for index, (prompt, params) in enumerate(requests(llm))
        for branch in range(params.n)
    }

    def propose(guess: Guess, seq: Sequence, limit: int) -> list[int]:
        guess.chance, guess.detour = 768, 1023
        request = seq.state.request
        key = request.prompt_token_ids, replace(request.sampling, seed=0), seq.branch
        right = [*known[key], *range(limit)][seq.num_output :][:limit]
        paths = [list(right) for _ in range(3)]
        for path in paths:
            wrong = rng.randrange(limit + 1)
            path[wrong : wrong + 1] = [rng.randrange(1000)] * (wrong < limit)
        guess.others = paths[1:]
        return paths[0]

    return propose


@pytest.mark.parametrize("options", [{}, {"num_blocks": 32, "max_model_len": 300, "budget": 40}])
def test_trees_change_nothing_either(
    smollm2_path: Path, plain: dict[int, Answer], options: dict[str, int]
) -> None:
    """Many paths, right and wrong, one by one, in a batch, and in a pool that is too small."""
    with make(smollm2_path, "tree", **options) as llm:
        llm.engine.scheduler.speculation.propose = known_paths(llm, plain)
        llm.engine.scheduler.speculation.step_cost = 1000
        assert run(llm, sorted(plain)) == plain
        for index in sorted(plain):
            assert run(llm, [index])[index] == plain[index]
        counters = llm.stats().counters
        assert_both_happened(counters)
        assert 10 < counters["draft_paths_kept"] < counters["draft_paths"]
        assert (counters["preemptions"] > 0) == bool(options)
        assert llm.engine.check_invariants() == llm.engine.violations == []


def test_a_draft_model_changes_nothing_either(
    smollm2_path: Path, plain: dict[int, Answer], tmp_path: Path
) -> None:
    """The model itself in fewer bits runs ahead, greedy and seeded; whole drafts are accepted."""
    small = requantize(smollm2_path, tmp_path / "small.gguf", "Q4_0")
    with make(smollm2_path, f"draft:{small}", num_draft_tokens=3, budget=64) as llm:
        for order in ([0], [6], [2, 5]):
            assert run(llm, order) == {i: plain[i] for i in order}
        assert_both_happened(llm.stats().counters)
        assert llm.engine.check_invariants() == llm.engine.violations == []
        (group,) = llm.model.runner.info.groups
        layer_bytes = 16 * 3 * 64 * 2 * 2
        assert group.block_bytes == 2 * 30 * layer_bytes, "blocks hold the KV of both"


def test_a_model_that_drafts_for_itself_is_always_right(smollm2_path: Path) -> None:
    """Noise, penalties, prefix hits, forks and the token that a whole draft leaves out."""
    with make(smollm2_path, f"draft:{smollm2_path}", num_draft_tokens=3, budget=40) as llm:
        params = [
            SamplingParams(temperature=0.0, max_tokens=21, ignore_eos=True),
            SamplingParams(temperature=1.2, top_k=50, max_tokens=22, n=2, seed=4, ignore_eos=True),
            SamplingParams(
                temperature=0.9, presence_penalty=0.8, frequency_penalty=0.3, max_tokens=23,
                seed=5, ignore_eos=True, min_tokens=9,
            ),
        ]  # fmt: skip
        llm.engine.scheduler.speculation.step_cost = 1000
        prompts = [llm.tokenizer.encode(text) for text in PROMPTS]
        for _ in range(2):
            llm.generate(prompts, params)
        counters = llm.stats().counters
        assert counters["draft_tokens_accepted"] == counters["draft_tokens"] > 50
        assert counters["prefix_hit_tokens"] > 0
        assert counters["forks"] == 2


def test_a_draft_model_of_another_vocabulary_is_refused(smollm2_path: Path, tmp_path: Path) -> None:
    write_hf_directory(tmp_path, "llama")
    with pytest.raises(ConfigError, match="its vocabulary is not the model's"):
        make(smollm2_path, f"draft:{tmp_path}")
