"""``LLM`` in this process: interleaved streams, more prompts than a queue holds, edges refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.config import CacheConfig, SchedulerConfig
from octavo.core.request import FinishReason, Request
from octavo.core.sampling_params import SamplingParams
from octavo.errors import (
    ConfigError,
    ContextLengthError,
    DeadlineExceededError,
    InvalidRequestError,
    OverloadedError,
)
from octavo.frontend.journal import JournalEntry
from octavo.llm import LLM
from octavo.llm import requests as module
from oracles.hf_writer import write_hf_directory

CONTEXT = 256


def load(folder: Path, **scheduler: Any) -> LLM:
    return LLM(
        str(folder),
        backend="reference",
        scheduler=SchedulerConfig(**{"max_num_seqs": 8, "check_every_n_steps": 1, **scheduler}),
        cache=CacheConfig(num_blocks=64),
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    write_hf_directory(path, "llama")
    return path


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with load(folder) as loaded:
        yield loaded
        assert not loaded.engine.has_work()
        assert loaded.engine.check_invariants() == []
        assert loaded.engine.violations == []


def seeded(seed: int, **changes: Any) -> SamplingParams:
    return SamplingParams(**{"seed": seed, "max_tokens": 6, "ignore_eos": True, **changes})


def tokens_of(outputs: Any) -> list[int]:
    return [t for out in outputs for delta in out.branches for t in delta.token_ids]


def test_priority_and_timeout_are_held_against_their_limits(llm: LLM) -> None:
    for name, value in (("priority", 2), ("timeout_s", 0), ("timeout_s", float("nan"))):
        with pytest.raises(InvalidRequestError) as caught:
            llm.generate("abc", seeded(1), **{name: value})
        assert caught.value.param == name
    [late] = llm.generate("abc", seeded(1), priority=1, timeout_s=60)
    [early] = llm.generate("abc", seeded(1), priority=-1)
    assert late.token_ids == early.token_ids
    with pytest.raises(DeadlineExceededError):
        llm.generate("abc", seeded(1), timeout_s=1e-9)
    with pytest.raises(DeadlineExceededError):
        list(llm.stream("abc", seeded(1, max_tokens=200), timeout_s=1e-3))


def test_every_call_is_served_as_asked(llm: LLM) -> None:
    hello = [{"role": "user", "content": "a"}]
    calls: dict[str, Callable[..., Any]] = {
        "generate": lambda **how: llm.generate("abc", seeded(1), **how),
        "chat": lambda **how: llm.chat(hello, seeded(1), **how),
        "stream": lambda **how: list(llm.stream("abc", seeded(1), **how)),
        "stream_chat": lambda **how: list(llm.stream_chat(hello, seeded(1), **how)),
        "embed": lambda **how: llm.embed("abc", **how),
        "score": lambda **how: llm.score("abc", "de", **how),
        "systemone": lambda **how: llm.systemone("abc", [("d", ["a"])], **how),
    }
    for name, call in calls.items():
        with pytest.raises(DeadlineExceededError):
            call(timeout_s=1e-9)
        with pytest.raises(InvalidRequestError, match="priority"):
            call(priority=2)
        assert call(priority=-1, timeout_s=60, cache_salt=name)
    assert llm.score("abc", ["abc", "de"])[0] == pytest.approx(1)
    assert llm.score("abc", [1, 2]) == llm.score("abc", [[1, 2]])


def test_what_a_chat_says_is_a_message(llm: LLM) -> None:
    (done,) = llm.chat([{"role": "user", "content": "hi"}], seeded(1))
    assert done.message == {"role": "assistant", "content": done.text}
    assert llm.generate("hi", seeded(1))[0].message is None
    with pytest.raises(InvalidRequestError) as caught:
        llm.chat([{"role": "user", "content": "hi"}], tools=[{"type": "web_search"}])
    assert caught.value.param == "tools[0].type"


def test_interleaved_streams_get_their_own_outputs(llm: LLM) -> None:
    prompts = ["abc", "de", "fghij"]
    alone = [list(llm.generate(p, seeded(i))[0].token_ids) for i, p in enumerate(prompts)]
    streams = [llm.stream(p, seeded(i)) for i, p in enumerate(prompts)]
    rounds = list(zip_longest(*streams))
    assert [tokens_of(o for o in one if o) for one in zip(*rounds, strict=True)] == alone


def test_a_stream_goes_on_after_generate_ran_beside_it(llm: LLM) -> None:
    alone = list(llm.generate("abc", seeded(1, max_tokens=20))[0].token_ids)
    stream = llm.stream("abc", seeded(1, max_tokens=20))
    first = next(stream)
    assert len(llm.generate(["x", "y"], seeded(2, max_tokens=40))) == 2
    assert tokens_of([first, *stream]) == alone


def test_closing_one_stream_leaves_the_other(llm: LLM) -> None:
    alone = list(llm.generate("abc", seeded(1, max_tokens=20))[0].token_ids)
    kept, dropped = llm.stream("abc", seeded(1, max_tokens=20)), llm.stream("z", seeded(2))
    first = next(kept)
    next(dropped)
    dropped.close()  # type: ignore[attr-defined]
    assert tokens_of([first, *kept]) == alone
    lone = llm.stream("z", seeded(2))
    next(lone)
    lone.close()  # type: ignore[attr-defined]
    assert not llm.engine.has_work()


def test_a_failure_reaches_its_own_reader_only(llm: LLM) -> None:
    good = llm.stream("abc", seeded(1))
    next(good)
    bad = llm.stream("abc", seeded(1, n=20))
    with pytest.raises(InvalidRequestError, match="n is 20"):
        list(bad)
    assert len(tokens_of(good)) == 5


def test_more_prompts_than_queue_and_journal_hold(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [[1 + i % 40, 2] for i in range(40)]
    with load(folder, max_waiting=3) as small:
        many = small.generate(prompts, seeded(0, max_tokens=2))
        assert [done.prompt_token_ids for done in many] == [tuple(p) for p in prompts]
        assert small.stats().counters["requests_refused"] == 0
    with load(folder) as tight:
        opening = tight._local.processor.open

        def open_two(request: Request) -> JournalEntry:
            if len(tight._local.processor) == 2:
                raise OverloadedError("the journal is full")
            return opening(request)

        monkeypatch.setattr(tight._local.processor, "open", open_two)
        again = tight.generate(prompts, seeded(0, max_tokens=2))
    assert [d.token_ids for d in again] == [d.token_ids for d in many]


def test_an_open_max_tokens_is_clamped_to_context_and_pool(folder: Path) -> None:
    with LLM(
        str(folder), backend="reference", cache=CacheConfig(num_blocks=4, block_size=16)
    ) as one:
        assert one.model.runner.info.max_model_len == 64
        (whole,) = one.generate("abc", SamplingParams(seed=1, ignore_eos=True))
        assert len(whole.token_ids) == 64 - 3
        assert whole.finish_reason is FinishReason.LENGTH
        shared = one.generate("abc", SamplingParams(seed=1, ignore_eos=True, n=2))
        assert len(shared) == 2
        assert 0 < len(shared[0].token_ids) < 64 - 3


@pytest.mark.parametrize("name", ["max_tokens", "min_tokens"])
def test_an_explicit_excess_is_refused_with_both_numbers(llm: LLM, name: str) -> None:
    with pytest.raises(ContextLengthError, match=f"3 tokens and {name} is 254.*257.*{CONTEXT}"):
        llm.generate("abc", SamplingParams(**{name: 254}))  # type: ignore[arg-type]
    assert len(llm.generate("abc", SamplingParams(max_tokens=253, stop=("a", "e")))) == 1
    with pytest.raises(ContextLengthError, match="256 tokens"):
        llm.generate("a" * 256)


@pytest.mark.parametrize(
    "prompt",
    [[True, 2], [1.0, 2.0], [1, 2.5], [1, "a"], [[1, True]], b"abc", [b"abc"], [None], "", [[]],
     [99], [-1]],
)  # fmt: skip
def test_senseless_prompts_are_refused(llm: LLM, prompt: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        llm.generate(prompt)
    assert caught.value.param == "prompt"


def test_a_stream_is_refused_before_it_starts(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError):
        llm.stream([True])
    with pytest.raises(InvalidRequestError):
        llm.stream("a", SamplingParams(top_p=2.0))


def test_ids_may_be_numpy_integers_and_no_prompts_give_no_answers(llm: LLM) -> None:
    plain = llm.generate([1, 2, 3], seeded(4))[0]
    (array,) = llm.generate(np.array([1, 2, 3]), seeded(4))  # type: ignore[arg-type]
    assert array.token_ids == plain.token_ids
    assert llm.generate([]) == []
    with pytest.raises(InvalidRequestError, match="2 sampling parameters for 1"):
        llm.generate("a", [seeded(1), seeded(2)])


def test_the_models_own_defaults_are_used_without_parameters(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert llm.default_sampling == SamplingParams(temperature=0.7)
    seen: list[SamplingParams] = []

    def note(params: SamplingParams, *, vocab_size: int) -> None:
        seen.append(params)

    monkeypatch.setattr(module, "validate_sampling_params", note)
    llm.generate("ab")
    list(llm.stream("ab"))
    assert {params.temperature for params in seen} == {0.7}


def test_an_unknown_option_is_named_with_those_that_are_known() -> None:
    with pytest.raises(ConfigError, match="LLM has no option 'foo'; known are: activation") as told:
        LLM("x", foo=1)
    assert told.value.param == "foo"
    assert {"cache", "scheduler", "backend"} <= set(re.findall(r"\w+", told.value.message))


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_an_int8_cache_is_named_wherever_it_matters(
    folder: Path, smollm2_path: Path, backend: str
) -> None:
    """Bytes, fingerprint and prefix key say it, and the model that drafts has the same."""
    path = folder if backend == "reference" else smollm2_path
    seen = {}
    for kv_dtype in ("bf16", "int8"):
        with LLM(
            str(path), backend=backend, cache=CacheConfig(num_blocks=32, kv_dtype=kv_dtype),
            scheduler=SchedulerConfig(speculate=f"draft:{path}", num_draft_tokens=2),
        ) as llm:  # fmt: skip
            [done] = llm.generate("abc", seeded(1, max_tokens=12))
            info, runner = llm.model.runner.info, llm.model.runner
            assert runner._drafter is not None
            assert runner._drafter._executor.fingerprint == runner.executor.fingerprint
            assert info.fingerprint == runner.executor.fingerprint
            assert llm.model.kv_bytes == 32 * info.groups[0].block_bytes
            assert llm.stats().counters["draft_tokens_accepted"] > 0
            request = Request(
                request_id="1", prompt_token_ids=(1,), sampling=seeded(1), eos_token_ids=()
            )
            root = llm.engine.requests._prefix_key(request).digest()
            seen[kv_dtype] = (info.kv_dtype, info.groups[0].block_bytes, info.fingerprint, root)
            assert len(done.token_ids) == 12
    assert seen["int8"][0] == "int8"
    assert seen["int8"][2].endswith("/kv-int8")
    assert seen["int8"][2] != seen["bf16"][2]
    assert seen["int8"][3] != seen["bf16"][3]
    if backend == "native":
        assert seen["int8"][1] < seen["bf16"][1]
    else:
        assert seen["bf16"][0] == "f32"
