"""Logprobs of a prompt in the engine: whole, once, and the same however it was scheduled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from octavo.config import CacheConfig, SchedulerConfig
from octavo.core.request import Submit
from octavo.core.sampling_params import SamplingParams
from octavo.engine.request_table import MAX_PROMPT_LOGPROBS
from octavo.errors import EngineError
from octavo.scheduler.sequence import MAX_SCORED_CHUNK
from octavo.testing.engine_driver import EngineDriver, make_request
from octavo.testing.fake_runner import make_info

PROMPT = [(7 * i) % 250 for i in range(150)]


def driver(*, budget: int = 512, prefix_cache: bool = True, num_blocks: int = 96) -> EngineDriver:
    return EngineDriver(
        make_info(block_size=4, num_blocks=num_blocks, max_model_len=300),
        SchedulerConfig(max_num_batched_tokens=budget, policy="optimistic"),
        CacheConfig(prefix_cache=prefix_cache),
    )


def ask(name: str, prompt: list[int], **sampling: Any) -> Any:
    options: dict[str, Any] = {"max_tokens": 4, "seed": 3, "prompt_logprobs": 2, **sampling}
    return make_request(name, prompt, sampling=SamplingParams(**options))


def told(engine: EngineDriver, name: str) -> tuple[Any, ...]:
    """The one output of a request that tells its prompt's logprobs."""
    outputs = [o for o in engine.outputs if o.request_id == name]
    found = [o.prompt_logprobs for o in outputs if o.prompt_logprobs]
    assert len(found) == 1
    assert outputs[0].prompt_logprobs == found[0]
    return found[0]


def alone(prompt: list[int], **sampling: Any) -> tuple[Any, ...]:
    engine = driver(prefix_cache=False)
    engine.submit(ask("a", prompt, **sampling))
    engine.run()
    return told(engine, "a")


def test_every_token_but_the_first_is_told() -> None:
    found = alone(PROMPT)
    assert [entry.token_id for entry in found] == PROMPT[1:]
    assert {len(entry.top) for entry in found} == {2}
    assert len({entry.logprob for entry in found}) > 10
    assert [entry.token_id for entry in alone([5, 6])] == [6]


@pytest.mark.parametrize("budget", [1, 2, 3, 7, 64, 65, 149, 150, 512])
def test_no_chunk_changes_it(budget: int) -> None:
    engine = driver(budget=budget)
    engine.submit(ask("a", PROMPT))
    engine.run()
    engine.verify()
    assert told(engine, "a") == alone(PROMPT)


def test_no_step_scores_more_than_the_limit() -> None:
    engine = driver()
    engine.submit(ask("a", PROMPT))
    before = engine.runner.counts.tokens
    engine.step()
    assert engine.runner.counts.tokens - before == MAX_SCORED_CHUNK


def test_cached_prefixes_are_not_read_but_made() -> None:
    engine = driver()
    engine.submit(ask("cold", PROMPT))
    engine.run()
    engine.submit(ask("warm", PROMPT))
    engine.submit(ask("plain", PROMPT, prompt_logprobs=None, seed=9))
    engine.run()
    engine.verify()
    assert told(engine, "warm") == told(engine, "cold") == alone(PROMPT)
    cached = {o.request_id: o.num_cached_tokens for o in engine.outputs}
    assert cached["warm"] == 0
    assert cached["plain"] > 140
    assert not [o for o in engine.outputs if o.request_id == "plain" and o.prompt_logprobs]


def test_beside_others_and_with_several_branches() -> None:
    engine = driver(budget=40)
    for number in range(4):
        prompt = PROMPT[number * 9 :]
        engine.submit(ask(f"n{number}", prompt, n=1 + number, seed=number))
        engine.submit(ask(f"p{number}", prompt, prompt_logprobs=None, max_tokens=9))
    engine.run()
    engine.verify()
    for number in range(4):
        assert told(engine, f"n{number}") == alone(PROMPT[number * 9 :], n=1 + number)


@pytest.mark.parametrize("at", [1, 2, 3, 5, 9, 12, 14])
def test_preempted_at_any_step(at: int) -> None:
    engine = driver(budget=16)
    engine.submit(ask("a", PROMPT, max_tokens=6))
    for _ in range(at):
        engine.step()
    for seq in list(engine.core.scheduler.running):
        engine.core.scheduler.preempt(seq)
    engine.run()
    engine.verify()
    assert engine.counters["preemptions"] == 1
    assert told(engine, "a") == alone(PROMPT)


def test_what_was_told_before_a_crash_is_not_told_again() -> None:
    engine = driver()
    request = ask("a", PROMPT)
    engine.core.handle(Submit(request=request, epoch=1, branch_tokens=((7,),)), 0.0)
    seen = []
    while engine.core.has_work():
        seen += engine.core.step(0.0)
    assert not any(output.prompt_logprobs for output in seen)
    engine.core.handle(Submit(request=replace(request, request_id="b"), epoch=1), 0.0)
    seen = []
    while engine.core.has_work():
        seen += engine.core.step(0.0)
    assert seen[0].prompt_logprobs == alone(PROMPT)


def test_a_runner_that_forgets_scores_is_caught() -> None:
    engine = driver()
    execute = engine.runner.execute

    def forget(plan: Any) -> Any:
        result = execute(plan)
        for row in result.rows:
            row.scores = row.scores[:-1]
        return result

    engine.core._runner = type("Forgets", (), {"execute": staticmethod(forget)})()
    engine.submit(ask("a", PROMPT))
    engine.run()
    assert isinstance(engine.core.last_fault, EngineError)
    assert "scores" in str(engine.core.last_fault)


def test_what_cannot_be_is_refused() -> None:
    engine = EngineDriver(make_info(num_blocks=8192, block_size=16, max_model_len=100_000))
    engine.submit(ask("long", [1] * (MAX_PROMPT_LOGPROBS // 21 + 1), prompt_logprobs=20))
    engine.submit(
        make_request(
            "ends", [1, 2], eos=(5,),
            sampling=SamplingParams(
                max_tokens=4, min_tokens=2, allowed_token_ids=(5, 6), stop_token_ids=(6,)
            ),
        )
    )  # fmt: skip
    engine.run()
    assert [(o.request_id, o.error_param) for o in engine.outputs] == [
        ("long", "prompt_logprobs"), ("ends", "allowed_token_ids"),
    ]  # fmt: skip


def test_only_what_is_allowed_is_sampled() -> None:
    engine = driver()
    engine.submit(ask("a", PROMPT, allowed_token_ids=(3, 9), max_tokens=20, prompt_logprobs=None))
    engine.run()
    tokens = [token for output in engine.outputs for token in output.token_ids]
    assert set(tokens) == {3, 9}
