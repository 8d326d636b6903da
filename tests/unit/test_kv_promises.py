"""Growth that was promised: what it holds back, and when it is shed."""

from __future__ import annotations

import pytest

from kv_rig import ROOT, extend, manager
from octavo.kv import check_kv, take_ledger


def test_promises_hold_blocks_back() -> None:
    kv = manager(num_blocks=8)
    a, b = kv.new_sequence(ROOT), kv.new_sequence(ROOT)
    step = kv.begin()
    assert step.admit(a, 4, hit=None, demand=[6])
    assert not step.admit(b, 4, hit=None, demand=[3])
    assert step.admit(b, 4, hit=None, demand=[2])
    assert step.seal() == []
    kv.promise(a, 24, branches=1, fork_at=4)
    kv.promise(b, 8, branches=1, fork_at=4)
    assert kv.promises.totals == [6]
    assert take_ledger(kv).promised == 6 * 4 * 8
    assert take_ledger(kv).free == 0
    kv.commit(a, [0] * 4, 4)
    kv.commit(b, [1] * 4, 4)
    # b outgrows what it was promised; the youngest promises are shed.
    extend(kv, b, [1] * 8)
    assert kv.promises.num_shed == 1
    assert kv.promises.totals == [0] or kv.promises.totals[0] <= kv.pools[0].num_available
    kv.release(a)
    kv.release(b)
    assert kv.promises.totals == [0]


def test_promises_of_branches() -> None:
    """Six tokens, four to a block, three branches up to ten tokens: 3 + 2 · 2 blocks."""
    kv = manager()
    demand = kv.promises.demand(10, 2, 6)
    assert demand == [7]
    seq = kv.new_sequence(ROOT)
    kv.promise(seq, 10, branches=3, fork_at=6)
    assert seq.promised == [7]
    extend(kv, seq, list(range(6)))
    assert seq.promised == [5]
    child = kv.fork(seq)
    assert (seq.promised, child.promised, kv.promises.totals) == ([3], [2], [5])
    kv.forget_spares(seq)
    assert kv.promises.totals == [3]


def test_a_windowed_group_promises_no_more_than_its_span() -> None:
    kv = manager(windows=(None, 5))
    assert kv.promises.demand(400, 0, 0) == [100, 4]
    assert kv.promises.demand(400, 2, 6) == [100 + 2 * 99, 4 + 2 * 4], "a branch has its own window"
    assert kv.promises.demand(8, 2, 8) == [2, 2 + 2 * 2]


@pytest.mark.parametrize("block_size", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("window", [1, 2, 5, 6, 9])
def test_the_promise_of_a_windowed_group_is_the_most_that_a_step_holds(
    block_size: int, window: int
) -> None:
    """Over every place that a chunk of 8, the longest of ``manager``, may begin at."""
    most = 0
    for start in range(window + block_size):
        kv = manager(block_size=block_size, num_blocks=64, windows=(window,))
        seq = kv.new_sequence(ROOT)
        for at in range(start):
            extend(kv, seq, [at])
        step = kv.begin()
        assert step.grow(seq, 8)
        assert step.seal() == []
        most = max(most, len(seq.tables[0].blocks))
    assert kv.promises.demand(400, 0, 0)[0] == most


@pytest.mark.parametrize("num_blocks", [6, 8])
def test_only_as_many_promises_are_shed_as_needed(num_blocks: int) -> None:
    kv = manager(num_blocks=num_blocks)
    old, young, grower = (kv.new_sequence(ROOT) for _ in range(3))
    kv.promise(old, 12, branches=1, fork_at=0)
    kv.promise(young, 12, branches=1, fork_at=0)
    extend(kv, grower, [0] * 12)
    assert (old.promised, young.promised) == ([3], [0])
    assert kv.promises.num_shed == 1


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8])
def test_a_promised_branch_is_owed_a_copy_exactly_of_a_partly_filled_tail(length: int) -> None:
    """Once it has copied the tail, it is owed none."""
    kv = manager()
    parent = kv.new_sequence(ROOT)
    extend(kv, parent, list(range(length)))
    kv.promise(parent, 12, branches=2, fork_at=length)
    child = kv.fork(parent)
    assert child.cow_due == (length % 4 > 0)
    extend(kv, child, [99])
    assert not child.cow_due
    assert child.promised[0] == 3 - len(child.tables[0].blocks)


def test_what_a_reader_keeps_back_is_promised_to_nobody() -> None:
    """Provisional blocks that come back drain first, so the promise that took them is shed."""
    kv = manager(num_blocks=4)
    seq = kv.new_sequence(ROOT)
    extend(kv, seq, list(range(4)))
    kv.promise(seq, 16, branches=1, fork_at=0)
    step = kv.begin()
    assert step.grow(seq, 1)
    assert step.seal() == []
    lease = kv.lease(seq)
    kv.commit(seq, list(range(5)), 0)
    assert (kv.pools[0].num_draining, kv.promises.num_shed) == (1, 1)
    assert check_kv(kv) == []
    kv.end_lease(lease)


def test_what_a_reader_keeps_behind_a_window_is_promised_to_nobody() -> None:
    kv = manager(num_blocks=4, windows=(5,))
    seq = kv.new_sequence(ROOT)
    extend(kv, seq, list(range(4)))
    kv.promise(seq, 40, branches=1, fork_at=0)
    assert kv.promises.totals == [3]
    lease = kv.lease(seq)
    extend(kv, seq, list(range(4, 8)))
    assert seq.tables[0].first_block == 1
    assert (kv.pools[0].num_draining, kv.promises.num_shed) == (1, 1)
    kv.end_lease(lease)


def test_a_branch_whose_tail_became_its_own_is_owed_no_copy() -> None:
    kv = manager()
    parent = kv.new_sequence(ROOT)
    extend(kv, parent, [0, 1])
    kv.promise(parent, 8, branches=2, fork_at=2)
    child = kv.fork(parent)
    kv.release(parent)
    assert (child.cow_due, child.promised) == (True, [2])
    assert extend(kv, child, [2]) == []
    assert (child.cow_due, child.promised) == (False, [1])


def test_nothing_is_owed_to_a_branch_that_was_released() -> None:
    """Not even the copy of a tail that it never made."""
    kv = manager()
    parent = kv.new_sequence(ROOT)
    extend(kv, parent, [0, 1])
    kv.promise(parent, 2, branches=2, fork_at=2)
    child = kv.fork(parent)
    assert kv.promises.totals == child.promised == [1]
    kv.release(child)
    kv.forget_spares(child)
    assert kv.promises.totals == child.promised == [0]
