"""Structured output in the engine: compiled outside, bound by masks, rebuilt by replay."""

from __future__ import annotations

from dataclasses import replace

import pytest

from octavo.config import SchedulerConfig
from octavo.core.grammar import Grammar
from octavo.core.request import Abort, FinishReason, StopBranch, Submit
from octavo.core.sampling_params import SamplingParams
from octavo.testing import EngineDriver, make_info, make_request
from octavo.testing.toy_grammar import ToyGrammars

PROMPT = list(range(20, 57))
WORDS = Grammar(kind="choice", choices=("3 4", "5 6 7", "8", "9 10 11 12"), field="response_format")
PLACES = [set(map(int, choice.split())) for choice in WORDS.choices]


def driver_of(grammar: Grammar = WORDS, **options) -> tuple[EngineDriver, ToyGrammars]:
    info = make_info(block_size=8)
    grammars = ToyGrammars(info.vocab_size)
    return EngineDriver(info, grammars=grammars, **options), grammars


def sampling(**fields) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 8, "seed": 1, "grammar": WORDS, **fields})


def answers(driver: EngineDriver, request_id: str) -> list[list[int]]:
    outputs = [o for o in driver.outputs if o.request_id == request_id]
    branches = sorted({o.branch for o in outputs})
    return [[t for o in outputs if o.branch == b for t in o.token_ids] for b in branches]


def run(driver: EngineDriver, grammars: ToyGrammars, grammar: Grammar = WORDS) -> None:
    driver.core.handle(grammars.finish(grammar), driver.now)
    driver.run()


def test_every_branch_keeps_to_the_grammar_and_ends_with_it() -> None:
    driver, grammars = driver_of()
    driver.submit(make_request("r", PROMPT, sampling=sampling(n=4)))
    driver.submit(make_request("free", PROMPT[:9]))
    run(driver, grammars)
    found = answers(driver, "r")
    assert len(found) == 4
    assert len({tuple(tokens) for tokens in found}) > 1
    for tokens in found:
        assert len(tokens) == len(PLACES)
        assert all(token in place for token, place in zip(tokens, PLACES, strict=True))
    ends = [o for o in driver.outputs if o.finish_reason and o.request_id == "r"]
    assert {(o.finish_reason, o.stop_token_id) for o in ends} == {(FinishReason.STOP, None)}
    # A neighbour without a grammar is bound by none.
    assert not all(t in PLACES[0] | PLACES[1] for t in answers(driver, "free")[0])


def test_a_request_waits_for_its_grammar_in_no_queue() -> None:
    driver, grammars = driver_of()
    driver.submit(make_request("r", PROMPT, sampling=sampling()))
    driver.submit(make_request("twin", PROMPT, sampling=sampling(seed=2)))
    assert not driver.core.has_work()
    assert driver.step() == []
    assert driver.core.stats().num_waiting == 2
    statuses = [r["branches"][0]["status"] for r in driver.core.debug_requests().values()]
    assert statuses == ["compiling", "compiling"]
    assert [g.identity for g in grammars.asked] == [WORDS.identity] * 2
    run(driver, grammars)
    assert answers(driver, "r") != []
    assert driver.core.gate.num_held == 0
    # Known now: nothing waits.
    driver.submit(make_request("later", PROMPT, sampling=sampling(seed=3)))
    assert driver.core.has_work()
    driver.run()


@pytest.mark.parametrize("how", ["abort", "deadline", "resubmit"])
def test_ended_while_its_grammar_is_compiled(how: str) -> None:
    driver, grammars = driver_of()
    request = replace(make_request("r", PROMPT, sampling=sampling()), deadline=5.0)
    driver.submit(request)
    driver.submit(make_request("other", PROMPT[3:], sampling=sampling()))
    if how == "abort":
        driver.core.handle(Abort(request_id="r"), 0.0)
    elif how == "resubmit":
        driver.core.handle(Submit(request=request, epoch=1), 0.0)
        driver.entries["r"].epoch = 1
    else:
        driver.now = 6.0
    driver.step()
    assert driver.core.gate.num_held == (2 if how == "resubmit" else 1)
    run(driver, grammars)
    assert len(answers(driver, "other")[0]) == len(PLACES)
    assert bool(answers(driver, "r")[0]) == (how == "resubmit")


def test_a_branch_stopped_while_its_grammar_is_compiled_waits_no_more() -> None:
    """It goes on from a journal, and a stop string was found in what it had said."""
    driver, grammars = driver_of()
    request = make_request("r", PROMPT, sampling=sampling())
    driver.core.handle(Submit(request=request, epoch=1, branch_tokens=((3,),)), 0.0)
    driver.core.handle(StopBranch(request_id="r", branch=0), 0.0)
    assert driver.core.gate.num_held == 0
    (ended,) = driver.core.step(0.0)
    assert ended.finish_reason is FinishReason.STOP
    driver.core.handle(grammars.finish(WORDS), 0.0)
    assert not driver.core.has_work()
    assert driver.core.check_invariants() == []


def test_a_refused_grammar_names_its_field_and_costs_nobody_else() -> None:
    driver, grammars = driver_of()
    driver.submit(make_request("r", PROMPT, sampling=sampling(n=2)))
    driver.submit(make_request("free", PROMPT[:9]))
    driver.core.handle(grammars.finish(WORDS, error="no such rule"), 0.0)
    driver.run()
    refused = [o for o in driver.outputs if o.request_id == "r"]
    assert {(o.branch, o.error, o.error_param) for o in refused} == {
        (0, "no such rule", "response_format"),
        (1, "no such rule", "response_format"),
    }
    assert driver.counters["requests_refused"] == 1
    assert len(answers(driver, "free")[0]) == 8


def test_an_engine_without_a_compiler_says_so() -> None:
    driver = EngineDriver(make_info())
    driver.submit(make_request("r", PROMPT, sampling=sampling()))
    driver.run()
    assert driver.outputs[0].error_param == "response_format"


def test_a_grammar_that_can_go_no_further_fails_its_request_alone() -> None:
    dead = Grammar(kind="choice", choices=("3 4", " "), field="response_format")
    driver, grammars = driver_of()
    driver.submit(make_request("r", PROMPT, sampling=sampling(grammar=dead)))
    driver.submit(make_request("free", PROMPT[:9]))
    run(driver, grammars, dead)
    assert (None, "nothing may follow") in [(c and None, e) for c, e in driver.errors()]
    failed = [o for o in driver.outputs if o.error]
    assert {(o.error_code, o.error_param) for o in failed} == {
        ("invalid_request_error", "response_format")
    }
    assert len(answers(driver, "free")[0]) == 8


def test_a_grammar_that_meets_a_limit_says_nothing_against_the_prompt() -> None:
    """It is the client's error: what was computed of the prompt stays findable."""
    dead = Grammar(kind="choice", choices=("3 4", " "), field="response_format")
    driver, grammars = driver_of()
    driver.submit(make_request("r", PROMPT, sampling=sampling(grammar=dead)))
    run(driver, grammars, dead)
    assert driver.counters["requests_refused"] == 1
    assert driver.counters["requests_failed"] == 0
    driver.submit(make_request("same", PROMPT))
    driver.run()
    assert {o.num_cached_tokens for o in driver.outputs if o.request_id == "same"} == {32}


@pytest.mark.parametrize("choices", [("3", " "), ("3", "3", "3", " ")])
def test_a_limit_behind_a_draft_is_the_clients_error_too(choices: tuple[str, ...]) -> None:
    dead = Grammar(kind="choice", choices=choices, field="response_format")
    driver, grammars = driver_of(scheduler=SchedulerConfig(speculate="ngram"))
    driver.submit(make_request("r", [3] * 40, sampling=sampling(grammar=dead)))
    run(driver, grammars, dead)
    failed = [o for o in driver.outputs if o.error]
    assert {(o.error, o.error_code) for o in failed} == {
        ("nothing may follow", "invalid_request_error")
    }


def test_numbers_that_are_none_are_distrusted_beside_a_grammar_too() -> None:
    driver, grammars = driver_of()
    driver.submit(make_request("r", PROMPT, sampling=sampling()))
    driver.core.handle(grammars.finish(WORDS), driver.now)
    driver.runner.spoil_next = True
    driver.run()
    assert {o.error_code for o in driver.outputs} == {"engine_error"}
    assert driver.counters["requests_failed"] == 1
    assert driver.core.kv.index.blocks(0) == {}


@pytest.mark.parametrize("at", range(6))
def test_preempted_or_resumed_anywhere_gives_the_same(at: int) -> None:
    alone, grammars = driver_of()
    alone.submit(make_request("r", PROMPT, sampling=sampling(n=2)))
    run(alone, grammars)
    wanted = answers(alone, "r")

    driver, grammars = driver_of(scheduler=SchedulerConfig(max_num_batched_tokens=16))
    driver.submit(make_request("r", PROMPT, sampling=sampling(n=2)))
    driver.core.handle(grammars.finish(WORDS), 0.0)
    steps = 0
    while driver.core.has_work():
        if steps == at:
            for seq in list(driver.core.scheduler.running):
                driver.core.scheduler.preempt(seq)
        driver.step()
        steps += 1
    assert answers(driver, "r") == wanted
    assert (driver.counters["preemptions"] > 0) == (at > 0)

    cut = min(at, 3)
    again, grammars = driver_of()
    request = make_request("r", PROMPT, sampling=sampling(n=2))
    delivered = tuple(tuple(tokens[:cut]) for tokens in wanted)
    entry = again.submit(request) if not cut else None
    if entry is None:
        again.core.handle(Submit(request=request, epoch=1, branch_tokens=delivered), 0.0)
    grammars_ready = grammars.finish(WORDS)
    again.core.handle(grammars_ready, 0.0)
    rest: list[list[int]] = [list(tokens) for tokens in delivered]
    while again.core.has_work():
        for output in again.core.step(0.0):
            rest[output.branch] += output.token_ids
    assert rest == wanted
    assert again.core.check_invariants() == []
