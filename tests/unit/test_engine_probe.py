"""Probes: given tokens are scored, hidden states are told, and the rest is as for any request."""

from __future__ import annotations

from dataclasses import replace

import pytest

from octavo.config import SchedulerConfig
from octavo.core.probe import MAX_LABELS, Probe, validate_probe
from octavo.core.request import Abort, FinishReason
from octavo.errors import InvalidRequestError
from octavo.testing import EngineDriver, make_info, make_request

PROMPT = list(range(20, 57))
LABELS = Probe(labels=((1, 2, 3), (4,), (1, 5)))
HIDDEN = Probe(hidden=True)


def said(driver: EngineDriver, request_id: str) -> list[list[int]]:
    return driver.entries[request_id].delivered


@pytest.mark.parametrize("chunk", [3, 16, 64])
@pytest.mark.parametrize("block_size", [1, 8, 16])
def test_every_branch_says_its_label(chunk: int, block_size: int) -> None:
    info = make_info(block_size=block_size, num_blocks=1024 // block_size)
    driver = EngineDriver(info, SchedulerConfig(max_num_batched_tokens=chunk))
    for name, probe in (("labels", LABELS), ("hidden", HIDDEN), ("none", None)):
        driver.submit(make_request(name, PROMPT, probe=probe))
    driver.run()
    driver.verify()
    assert said(driver, "labels") == [[1, 2, 3], [4], [1, 5]]
    assert set(driver.entries["labels"].ended.values()) == {FinishReason.LENGTH}
    scored = [o for o in driver.outputs if o.request_id == "labels"]
    assert all(len(o.logprobs) == len(o.token_ids) for o in scored)
    assert driver.entries["hidden"].hidden
    assert not driver.entries["none"].hidden


def test_a_state_is_computed_once_for_many_questions() -> None:
    driver = EngineDriver(make_info(block_size=4))
    state = PROMPT[:36]
    for i in range(5):
        driver.submit(make_request(f"q{i}", [*state, 100 + i], probe=LABELS))
    driver.run()
    # The state once, each question's token, and of each label all tokens but the last.
    assert driver.counters["computed_tokens"] == 36 + 5 * (1 + 2 + 0 + 1)
    assert driver.counters["prefix_hit_tokens"] == 4 * 36


@pytest.mark.parametrize("at", range(1, 5))
def test_preempted_probes_go_on(at: int) -> None:
    driver = EngineDriver(make_info(block_size=8), SchedulerConfig(max_num_batched_tokens=16))
    driver.submit(make_request("labels", PROMPT, probe=LABELS))
    driver.submit(make_request("hidden", PROMPT[2:], probe=HIDDEN))
    for step in range(20):
        if step == at:
            for seq in list(driver.core.scheduler.running):
                driver.core.scheduler.preempt(seq)
        driver.step()
    driver.verify()
    assert driver.counters["preemptions"] > 0
    assert not driver.core.has_work()


def test_a_cancelled_probe_holds_nothing() -> None:
    driver = EngineDriver(make_info(block_size=8), SchedulerConfig(max_num_batched_tokens=16))
    driver.submit(make_request("labels", PROMPT, probe=LABELS))
    driver.step()
    driver.core.handle(Abort(request_id="labels"), driver.now)
    driver.run()
    assert driver.core.ledger().held == 0
    assert not driver.core.requests.states


def test_what_a_probe_may_not_be() -> None:
    for bad in ({}, {"labels": ((1,),), "hidden": True}, {"labels": ((),)},
                {"labels": ((1,),) * (MAX_LABELS + 1)}):  # fmt: skip
        with pytest.raises(InvalidRequestError):
            Probe(**bad)
    with pytest.raises(InvalidRequestError, match="vocabulary"):
        validate_probe(Probe(labels=((7,),)), Probe(labels=((7,),)).sampling, vocab_size=7)
    driver = EngineDriver()
    request = make_request("r", PROMPT, probe=LABELS)
    driver.submit(replace(request, sampling=replace(request.sampling, n=2)))
    driver.run()
    assert driver.outputs[0].error == "a probe brings its own sampling parameters"
