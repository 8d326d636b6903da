"""Beam search on the real model: equal to a plain search over full recomputation, bit for bit.

The plain search asks for the likeliest next tokens of every beam with a request of its own, without
a prefix cache. Every case shows by counters that what it names happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from octavo.config import CacheConfig, SchedulerConfig
from octavo.core.sampling_params import SamplingParams
from octavo.llm import LLM
from octavo.testing.beam_reference import BeamTask, Continuations, Hypothesis, beam_search

PROMPT = "Three reasons why the sea is salt:"
MAX_TOKENS = 9
EARLY = (False, True, "never")


def load(path: Path, **options: Any) -> LLM:
    return LLM(
        str(path),
        scheduler=SchedulerConfig(
            max_num_batched_tokens=options.pop("budget", 256),
            max_num_seqs=16,
            policy="optimistic",
            check_every_n_steps=1,
        ),
        cache=CacheConfig(
            block_size=options.pop("block_size", 16),
            num_blocks=options.pop("num_blocks", 64),
            prefix_cache=options.pop("prefix_cache", True),
        ),
        **options,
    )


@pytest.fixture(scope="module")
def plain(smollm2_path: Path) -> Iterator[Callable[[int, Any, int], list[Hypothesis]]]:
    """(width, early stopping, block size) → what the plain search finds after ``PROMPT``."""
    with load(smollm2_path, prefix_cache=False) as llm:
        prompt = llm.tokenizer.encode(PROMPT)
        asked = SamplingParams(temperature=0.0, max_tokens=1, logprobs=12, ignore_eos=True)

        @cache
        def continuations(output: tuple[int, ...]) -> tuple[tuple[int, float], ...]:
            (done,) = llm.generate([[*prompt, *output]], asked)
            return done.logprobs[0].top

        known: Continuations = continuations

        def search(width: int, early_stopping: Any, stops: int) -> list[Hypothesis]:
            # A full stop ends a beam too, so that hypotheses of different lengths compete.
            stop_ids = (*llm.tokenizer.eos_token_ids, stops)
            return beam_search(
                known,
                BeamTask(
                    width=width,
                    max_tokens=MAX_TOKENS,
                    length_penalty=0.5,
                    early_stopping=early_stopping,
                    stop_ids=stop_ids,
                ),
            )

        yield search
        assert llm.stats().counters["prefix_hit_tokens"] == 0


def params(llm: LLM, width: int, early_stopping: Any) -> SamplingParams:
    return SamplingParams(
        use_beam_search=True, temperature=0.0, best_of=width, n=width, max_tokens=MAX_TOKENS,
        length_penalty=0.5, early_stopping=early_stopping, logprobs=0,
        stop_token_ids=(stop_of(llm),),
    )  # fmt: skip


def stop_of(llm: LLM) -> int:
    (token,) = llm.tokenizer.encode(".")
    return int(token)


def check(llm: LLM, found: list[Any], expected: list[Hypothesis]) -> None:
    assert [done.token_ids for done in found] == [each.token_ids for each in expected]
    totals = [sum(entry.logprob for entry in done.logprobs) for done in found]
    lengths = [len(done.token_ids) for done in found]
    scores = [total / length**0.5 for total, length in zip(totals, lengths, strict=True)]
    assert scores == [each.score for each in expected]
    assert llm.engine.violations == []
    llm.engine.reset_prefix_cache()
    pool = llm.engine.kv.pools[0]
    assert pool.num_free == pool.num_blocks


@pytest.fixture(scope="module")
def roomy(smollm2_path: Path) -> Iterator[LLM]:
    with load(smollm2_path) as llm:
        yield llm


@pytest.mark.parametrize("early_stopping", EARLY)
@pytest.mark.parametrize("width", [2, 4, 6])
def test_the_search_is_the_plain_one(
    roomy: LLM, plain: Any, width: int, early_stopping: Any
) -> None:
    before = roomy.stats().counters
    found = roomy.generate(PROMPT, params(roomy, width, early_stopping))
    after = {name: count - before[name] for name, count in roomy.stats().counters.items()}
    check(roomy, found, plain(width, early_stopping, stop_of(roomy)))
    steps = after["beam_steps"]
    num_prompt = len(roomy.tokenizer.encode(PROMPT))
    assert after["computed_tokens"] <= num_prompt + width * (steps - 1)
    assert after["forks"] > 0
    assert after["cow_copies"] > 0


@pytest.mark.parametrize("block_size", [16, 32])
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_preempted_chunked_and_in_a_tiny_pool(
    smollm2_path: Path, plain: Any, block_size: int, prefix_cache: bool
) -> None:
    options = {"budget": 3, "num_blocks": 11, "block_size": block_size}
    with load(smollm2_path, prefix_cache=prefix_cache, **options) as llm:
        step, count = llm.engine.step, iter(range(10_000))

        def disturbed(now: float) -> Any:
            running = llm.engine.scheduler.running
            if running and next(count) % 11 == 10:
                llm.engine.scheduler.preempt(running[-1])
            return step(now)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(llm.engine, "step", disturbed)
            asked = [params(llm, 4, "never"), params(llm, 4, False)]
            found = llm.generate([PROMPT, PROMPT], asked)
        expected = [plain(4, each.early_stopping, stop_of(llm)) for each in asked]
        check(llm, found, [*expected[0], *expected[1]])
        counters = llm.stats().counters
        assert counters["preemptions"] > 2
        assert counters["beam_splits"] > 0
        assert counters["mixed_steps"] > 0 or block_size == 32
