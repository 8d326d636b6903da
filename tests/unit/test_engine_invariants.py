"""Every invariant of the engine is named when it is broken."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from octavo.core import SamplingParams
from octavo.scheduler import Status
from octavo.testing import EngineDriver, SimulationError, make_info, make_request


def driver() -> EngineDriver:
    out = EngineDriver(make_info(block_size=8))
    for name in "ab":
        out.submit(make_request(name, [ord(name)] * 9))
    out.step()
    return out


def empty_request(d: EngineDriver) -> None:
    d.core.requests.states["a"].branches.clear()


def wrong_place(d: EngineDriver) -> None:
    d.core.requests.states["a"].branches[0].status = Status.WAITING


def lost_kv(d: EngineDriver) -> None:
    d.core.requests.states["a"].branches[0].kv = None


def stranger(d: EngineDriver) -> None:
    del d.core.requests.states["a"]


def all_computed(d: EngineDriver) -> None:
    d.core.requests.states["a"].branches[0].token_ids.pop()


def provisional(d: EngineDriver) -> None:
    d.core.scheduler.running[0].kv.num_reserved += 1


def orphan_table(d: EngineDriver) -> None:
    d.core.kv.new_sequence(b"")


def forgotten_lease(d: EngineDriver) -> None:
    d.core.kv.lease_for_step(0, d.core.scheduler.running[0].kv.tables[0].blocks[0])


def forgotten_pin(d: EngineDriver) -> None:
    assert d.core.kv.lookup(d.core.requests.states["a"].digest, [ord("a")] * 9)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (empty_request, "I7: request a has no branch"),
        (wrong_place, "I7: a branch of a is not where"),
        (lost_kv, "I7: a branch of a holds KV"),
        (stranger, "I7: a queue holds a sequence"),
        (all_computed, "I8: 9 tokens are computed of 9"),
        (provisional, "I4: provisional"),
        (orphan_table, "I10: a block table"),
        (forgotten_lease, "I10: the read leases"),
        (forgotten_pin, "I10: 1 prefix pins"),
    ],
)
def test_damage_is_named(damage: Callable[[EngineDriver], None], words: str) -> None:
    d = driver()
    assert d.core.check_invariants() == []
    damage(d)
    assert any(found.startswith(words) for found in d.core.check_invariants())


def test_leftovers_at_idle_are_named() -> None:
    d = driver()
    d.run()
    d.core.kv.promises.totals[0] += 1
    assert "I10: 1 promises are left at idle" in d.core.check_invariants()


def test_violations_are_reported_not_fatal() -> None:
    d = driver()
    d.core.kv.promises.totals[0] += 1
    with pytest.raises(SimulationError, match="I6"):
        d.step()
    assert d.counters["invariant_violations"] > 0
    assert len(d.entries["a"].delivered[0]) == 2


def test_a_write_to_a_shared_block_is_reported_before_it_happens() -> None:
    d = EngineDriver(make_info(block_size=8))
    d.submit(make_request("a", [1] * 9, sampling=SamplingParams(n=1, max_tokens=8)))
    d.step()
    reservation = type(d.core.kv.begin())
    shared = reservation._is_shared
    d.core.kv.fork(d.core.scheduler.running[0].kv)
    reservation._is_shared = lambda self, group, block: False
    try:
        d.core.step(0.0)
    finally:
        reservation._is_shared = shared
    assert any(found.startswith("I3") for found in d.core.violations)
