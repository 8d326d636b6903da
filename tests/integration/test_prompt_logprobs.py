"""Logprobs of prompts on the real model: accurate, and the same bits however they were computed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.config import CacheConfig, SchedulerConfig
from octavo.core.sampling_params import SamplingParams
from octavo.core.step import StepPlan, StepResult
from octavo.llm import LLM

TEXT = "The keeper wrote nine lines in the log: wind from the west, two ships, one without a name. "
TOP = 5


def make(path: Path, *, budget: int = 512, num_threads: int = 2) -> LLM:
    return LLM(
        str(path),
        scheduler=SchedulerConfig(max_num_batched_tokens=budget, check_every_n_steps=1),
        cache=CacheConfig(kv_bytes=128 << 20),
        max_model_len=1024,
        num_threads=num_threads,
    )


@pytest.fixture(scope="module")
def llm(smollm2_path: Path) -> Iterator[LLM]:
    with make(smollm2_path) as made:
        yield made


@pytest.fixture(scope="module")
def prompt(llm: LLM) -> list[int]:
    return llm.tokenizer.encode(TEXT * 8)[:150]


def asking(**more: Any) -> SamplingParams:
    options: dict[str, Any] = {"max_tokens": 3, "seed": 1, "prompt_logprobs": TOP, **more}
    return SamplingParams(**options)


@pytest.fixture(scope="module")
def alone(llm: LLM, prompt: list[int]) -> tuple[Any, ...]:
    (done,) = llm.generate([prompt], asking())
    assert done.cached_tokens == 0
    return done.prompt_logprobs


def test_they_are_the_logits_own(
    llm: LLM, prompt: list[int], alone: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin: a log-softmax in double precision of what the model gave at each position."""
    runner, logits = llm.model.runner, []
    execute = runner.execute

    def note(plan: StepPlan) -> StepResult:
        result = execute(plan)
        assert runner.last_output is not None
        logits.append(runner.last_output.logits)
        return result

    monkeypatch.setattr(runner, "execute", note)
    monkeypatch.setattr(runner, "want_logits", True)
    (done,) = llm.generate([prompt], asking(max_tokens=1))
    assert done.prompt_logprobs == alone
    rows = np.concatenate(logits).astype(np.float64)[: len(prompt) - 1]
    rows -= rows.max(axis=1, keepdims=True)
    exact = rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))
    assert [entry.token_id for entry in alone] == prompt[1:]
    for entry, line in zip(alone, exact, strict=True):
        assert abs(entry.logprob - line[entry.token_id]) < 1e-4
        assert [token for token, _ in entry.top] == np.argsort(-line, kind="stable")[:TOP].tolist()
        assert np.abs(line[[t for t, _ in entry.top]] - [p for _, p in entry.top]).max() < 1e-4


def test_a_prompt_that_makes_sense_is_likelier(llm: LLM) -> None:
    plain, odd = llm.generate(
        ["The capital of France is Paris.", "The capital of France is Oslo."], asking()
    )
    sums = [sum(entry.logprob for entry in done.prompt_logprobs) for done in (plain, odd)]
    assert sums[0] > sums[1]


def test_an_answer_is_scored_as_it_was_sampled(llm: LLM, prompt: list[int]) -> None:
    """What a token was given when it was sampled is what it is given as a prompt."""
    (done,) = llm.generate([prompt], SamplingParams(max_tokens=12, seed=4, logprobs=TOP))
    (again,) = llm.generate([[*prompt, *done.token_ids]], asking())
    assert again.prompt_logprobs[-len(done.token_ids) :] == done.logprobs


@pytest.mark.parametrize(("budget", "num_threads"), [(1, 2), (7, 1), (64, 2), (100, 1)])
def test_no_chunk_and_no_thread_changes_a_bit(
    smollm2_path: Path, prompt: list[int], alone: tuple[Any, ...], budget: int, num_threads: int
) -> None:
    with make(smollm2_path, budget=budget, num_threads=num_threads) as made:
        (done,) = made.generate([prompt], asking())
    assert done.prompt_logprobs == alone


def test_no_neighbour_and_no_cache_changes_a_bit(
    llm: LLM, prompt: list[int], alone: tuple[Any, ...]
) -> None:
    others = [prompt[i:] for i in range(1, 12)]
    mixed = [SamplingParams(max_tokens=20, seed=i, temperature=0.8) for i in range(len(others))]
    mixed[3] = asking(n=3, repetition_penalty=1.3, frequency_penalty=0.5, max_tokens=9)
    found = llm.generate([others[0], prompt, *others[1:]], [mixed[0], asking(), *mixed[1:]])
    told = [done for done in found if done.prompt_logprobs]
    assert [len(done.prompt_token_ids) for done in told] == [150, 146]
    assert told[0].prompt_logprobs == alone
    assert told[0].cached_tokens == 0
    (warm,) = llm.generate([prompt], SamplingParams(max_tokens=1))
    assert warm.cached_tokens > 100
    (ranked,) = llm.generate([prompt], asking(best_of=4))
    assert ranked.prompt_logprobs == alone


def test_what_may_be_sampled_is_bound(llm: LLM) -> None:
    digits = [llm.tokenizer.encode(str(i), add_special_tokens=False)[0] for i in range(10)]
    only = SamplingParams(max_tokens=20, seed=2, allowed_token_ids=tuple(digits))
    free = SamplingParams(max_tokens=20, seed=2)
    bound, loose = llm.generate(["Once upon a time"] * 2, [only, free])
    assert set(bound.token_ids) <= set(digits)
    assert len(set(bound.token_ids)) > 3
    assert not set(loose.token_ids) <= set(digits)


def test_bad_words_are_not_said(llm: LLM) -> None:
    ask = "Q: What is the capital of France?\nA: The capital of France is"
    greedy = SamplingParams(max_tokens=12, temperature=0.0)
    (said,) = llm.generate([ask], greedy)
    assert "Paris" in said.text
    (kept,) = llm.generate(
        [ask], SamplingParams(max_tokens=12, temperature=0.0, bad_words=("Paris", "lighthouse"))
    )
    assert "Paris" not in kept.text
    # A word of several tokens: its beginning may be said, its end may not.
    spelled = llm.tokenizer.encode(said.text, add_special_tokens=False)[:3]
    run = llm.tokenizer.decode(spelled)
    assert said.text.startswith(run)
    (parted,) = llm.generate(
        [ask], SamplingParams(max_tokens=12, temperature=0.0, bad_words=(run,))
    )
    assert not parted.text.startswith(run)
    assert parted.token_ids[:2] == said.token_ids[:2]
