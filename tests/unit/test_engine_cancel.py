"""Cancel in every state, by id or by deadline: the blocks are back within two steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from octavo.config import SchedulerConfig
from octavo.core.grammar import Grammar
from octavo.core.request import Abort, FinishReason
from octavo.core.sampling_params import SamplingParams
from octavo.scheduler import Status
from octavo.testing import EngineDriver, make_info, make_request
from octavo.testing.toy_grammar import ToyGrammars

LATE = 100.0


def start(*, num_blocks: int = 40, vocab_size: int = 1000, **options: Any) -> EngineDriver:
    """An engine in which a canary of eight prompt tokens decodes."""
    options = {"max_num_seqs": 8, "policy": "optimistic", **options}
    driver = EngineDriver(
        make_info(block_size=4, num_blocks=num_blocks, vocab_size=vocab_size),
        SchedulerConfig(max_num_batched_tokens=16, **options),
        grammars=ToyGrammars(vocab_size),
    )
    submit(driver, "canary", [1] * 8, tokens=60)
    driver.step()
    driver.step()
    return driver


def submit(
    driver: EngineDriver, name: str, prompt: list[int], *, tokens: int = 20, **options: Any
) -> None:
    sampling = SamplingParams(max_tokens=tokens, seed=3, **options)
    request = make_request(name, prompt, sampling=sampling)
    deadline = LATE if name == "victim" else None
    driver.submit(replace(request, deadline=deadline))


def branches(driver: EngineDriver) -> list[tuple[Status, int, int]]:
    """(status, computed, output) of the victim's branches."""
    state = driver.core.requests.states["victim"]
    return [(seq.status, seq.num_computed, seq.num_output) for seq in state.branches.values()]


def arrived() -> EngineDriver:
    driver = start()
    submit(driver, "victim", [2] * 9)
    assert branches(driver) == [(Status.WAITING, 0, 0)]
    return driver


def compiling_a_grammar() -> EngineDriver:
    driver = start()
    submit(driver, "victim", [2] * 9, grammar=Grammar(kind="choice", choices=("3",), field="x"))
    assert branches(driver) == [(Status.COMPILING, 0, 0)]
    return driver


def queued_for_a_seat() -> EngineDriver:
    driver = start(max_num_seqs=1)
    submit(driver, "victim", [2] * 9)
    driver.step()
    assert branches(driver) == [(Status.WAITING, 0, 0)]
    return driver


def queued_for_blocks() -> EngineDriver:
    driver = start(num_blocks=20, policy="reserve")
    submit(driver, "victim", [2] * 9)
    driver.step()
    assert branches(driver) == [(Status.WAITING, 0, 0)]
    assert driver.core.scheduler.num_refusals == 1
    return driver


def waiting_for_a_twin() -> EngineDriver:
    driver = start()
    submit(driver, "twin", [3] * 9)
    submit(driver, "victim", [3] * 9)
    driver.step()
    assert driver.counters["twin_waits"] == 1
    assert branches(driver) == [(Status.WAITING, 0, 0)]
    return driver


def refused_by_an_allocation() -> EngineDriver:
    driver = start()
    submit(driver, "victim", [2] * 9)
    pool = driver.core.kv.pools[0]
    allocate, pool.allocate = pool.allocate, lambda owner, count: None
    driver.step()
    pool.allocate = allocate
    assert driver.counters["refused_reservations"] == 1
    assert branches(driver) == [(Status.WAITING, 0, 0)]
    return driver


def in_a_chunk() -> EngineDriver:
    driver = start()
    submit(driver, "victim", [2] * 40)
    driver.step()
    assert branches(driver) == [(Status.RUNNING, 15, 0)]
    return driver


def decoding() -> EngineDriver:
    driver = start()
    submit(driver, "victim", [2] * 9)
    driver.step()
    driver.step()
    assert branches(driver) == [(Status.RUNNING, 10, 2)]
    return driver


def decoding_in_branches() -> EngineDriver:
    driver = start()
    submit(driver, "victim", [2] * 9, n=3)
    driver.step()
    driver.step()
    assert branches(driver) == [(Status.RUNNING, 10, 2)] * 3
    return driver


def verifying() -> EngineDriver:
    driver = start(vocab_size=6, speculate="ngram")
    submit(driver, "victim", [2, 3, 4, 5] * 3, tokens=40)
    while branches(driver)[0][2] < 8:
        driver.step()
    assert driver.counters["draft_tokens"] > 0
    return driver


def reading_a_shared_prefix() -> EngineDriver:
    driver = start()
    submit(driver, "victim", [1] * 8 + [5])
    driver.step()
    assert driver.outputs[-1].num_cached_tokens == 8
    return driver


def preempted() -> EngineDriver:
    driver = decoding()
    [seq] = driver.core.requests.states["victim"].branches.values()
    driver.core.scheduler.preempt(seq)
    assert branches(driver) == [(Status.WAITING, 0, 2)]
    return driver


def resubmitted() -> EngineDriver:
    driver = decoding()
    entry = driver.entries["victim"]
    entry.epoch += 1
    driver.core.handle(entry.submit(), driver.now)
    assert branches(driver) == [(Status.WAITING, 0, 2)]
    return driver


STATES: list[Callable[[], EngineDriver]] = [
    arrived,
    compiling_a_grammar,
    queued_for_a_seat,
    queued_for_blocks,
    waiting_for_a_twin,
    refused_by_an_allocation,
    in_a_chunk,
    decoding,
    decoding_in_branches,
    verifying,
    reading_a_shared_prefix,
    preempted,
    resubmitted,
]


def cancel(driver: EngineDriver, by: str) -> None:
    if by == "deadline":
        driver.now = LATE
        driver.step()
    else:
        driver.core.handle(Abort(request_id="victim", reason=by), driver.now)


def held_blocks(driver: EngineDriver) -> int:
    pool = driver.core.kv.pools[0]
    return pool.num_blocks - pool.num_available


def held_by_others(driver: EngineDriver) -> int:
    tables = [seq.kv.tables[0].blocks for seq in driver.core.scheduler.running if seq.kv]
    return len({block for table in tables for block in table})


@pytest.mark.parametrize("by", ["cancelled", "the client left", "deadline"])
@pytest.mark.parametrize("state", STATES)
def test_cancel(state: Callable[[], EngineDriver], by: str) -> None:
    driver = state()
    num_branches = len(driver.core.requests.states["victim"].branches)
    said = len(driver.outputs)
    cancel(driver, by)
    driver.step()
    assert "victim" not in driver.core.requests.states
    assert held_blocks(driver) == held_by_others(driver)
    last = [o for o in driver.outputs[said:] if o.request_id == "victim"]
    assert len(last) == num_branches
    assert {output.finish_reason for output in last} == {FinishReason.ABORT}
    code = "deadline_exceeded" if by == "deadline" else "cancelled"
    assert {output.error_code for output in last} == {code}
    driver.run()
    driver.verify()
    assert held_blocks(driver) == 0


@pytest.mark.parametrize("by", ["cancelled", "deadline"])
def test_cancel_while_a_reader_has_not_finished(by: str) -> None:
    """Its blocks drain: they are nobody's until the lease ends, and free at once then."""
    driver = decoding()
    [seq] = driver.core.requests.states["victim"].branches.values()
    assert seq.kv is not None
    lease = driver.core.kv.lease(seq.kv)
    cancel(driver, by)
    driver.step()
    assert "victim" not in driver.core.requests.states
    assert driver.core.kv.pools[0].num_draining == 3
    driver.core.kv.end_lease(lease)
    assert held_blocks(driver) == held_by_others(driver)
    driver.run()
    driver.verify()


def test_cancel_after_the_last_token_changes_nothing() -> None:
    driver = start()
    submit(driver, "victim", [2] * 9, tokens=1)
    driver.step()
    assert driver.entries["victim"].is_done
    driver.core.handle(Abort(request_id="victim"), driver.now)
    driver.now = LATE
    driver.run()
    driver.verify()
    assert driver.entries["victim"].ended == {0: FinishReason.LENGTH}
