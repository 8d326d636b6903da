"""Provisional slots of drafts, and paths that take their trunk's place."""

from __future__ import annotations

import pytest

from kv_rig import ROOT, extend, manager
from octavo.kv import KVCacheManager, SequenceKV, check_copies, check_kv, check_writes, take_ledger


def verify(kv: KVCacheManager, seq: SequenceKV, num_drafts: int, accepted: int) -> int:
    """A step of one token with drafts behind it; how many drafts had a slot."""
    step = kv.begin()
    end = seq.num_computed + 1
    assert step.grow(seq, 1)
    count = step.extend(seq, end, num_drafts)
    assert step.seal() is not None
    assert check_writes(kv, seq) == check_kv(kv) == []
    assert seq.num_reserved == end + count
    assert take_ledger(kv).provisional == (1 + count) * 8 * len(kv.pools)
    kv.commit(seq, list(range(end + count)), 1 + min(accepted, count))
    assert (seq.num_computed, seq.num_reserved) == (end + min(accepted, count),) * 2
    assert check_kv(kv) == []
    return count


def test_drafts_take_free_blocks_and_give_back_what_was_not_accepted() -> None:
    kv = manager(windows=(None, 6))
    seq = kv.new_sequence(ROOT)
    extend(kv, seq, [0, 1, 2])
    assert verify(kv, seq, 9, accepted=0) == 9
    assert (seq.num_computed, kv.pools[0].num_free) == (4, 15)
    assert verify(kv, seq, 9, accepted=5) == 9
    assert (seq.num_computed, kv.pools[0].num_free) == (10, 13)
    assert verify(kv, seq, 1, accepted=0) == 1, "in the tail: no block is needed"


def test_drafts_take_no_block_that_another_was_promised() -> None:
    kv = manager(num_blocks=4)
    seq, other = kv.new_sequence(ROOT), kv.new_sequence(ROOT)
    extend(kv, seq, [0, 1])
    kv.promise(other, 12, branches=1, fork_at=0)
    assert verify(kv, seq, 5, accepted=0) == 1, "up to the end of the tail"
    assert verify(kv, seq, 5, accepted=0) == 0
    kv.promise(other, 8, branches=1, fork_at=0)
    kv.promise(seq, 8, branches=1, fork_at=0)
    # The next token takes the block that was promised for it; a draft can have no other.
    assert verify(kv, seq, 5, accepted=0) == 3
    assert kv.promises.num_shed == 0
    kv.promise(other, 4, branches=1, fork_at=0)
    kv.promise(seq, 12, branches=1, fork_at=0)
    assert verify(kv, seq, 3, accepted=0) == 3, "its own promise"
    assert (kv.promises.num_shed, kv.promises.totals) == (0, [2])


def test_drafts_are_refused_where_the_pool_is_overdrawn_already() -> None:
    kv = manager(num_blocks=3)
    seq, greedy = kv.new_sequence(ROOT), kv.new_sequence(ROOT)
    extend(kv, seq, [0, 1, 2, 3])
    kv.promise(seq, 12, branches=1, fork_at=0)
    step = kv.begin()
    assert step.grow(greedy, 4)
    assert step.grow(seq, 1)
    assert step.extend(seq, 5, 7) == 3
    assert step.seal() is not None
    kv.commit(greedy, [9] * 4, 4)
    kv.commit(seq, list(range(8)), 4)
    assert check_kv(kv) == []


@pytest.mark.parametrize("length", [2, 3, 4])
@pytest.mark.parametrize("size", [0, 3, 9])
@pytest.mark.parametrize("windows", [(None,), (None, 6)])
def test_a_path_takes_the_place_of_its_trunk(length: int, size: int, windows) -> None:
    """Shorter or longer than the trunk's own drafts, from the middle or the end of a block."""
    kv = manager(windows=windows)
    trunk, sibling = kv.new_sequence(ROOT), kv.new_sequence(ROOT)
    extend(kv, trunk, list(range(length)))
    kv.promise(trunk, 14, branches=1, fork_at=0)
    step = kv.begin()
    assert step.grow(trunk, 1)
    assert step.extend(trunk, length + 1, 5) == 5
    path, loser = kv.fork(trunk), kv.fork(trunk)
    assert step.grow_path(path, 1 + size)
    assert step.grow_path(loser, 2)
    copies = step.seal()
    assert copies is not None
    assert len(copies) == (2 * len(windows) if length % 4 else 0)
    assert check_copies(kv, copies) == take_ledger(kv).violations() == []
    for seq in (trunk, path, loser):
        assert check_writes(kv, seq) == []
    blocks = [list(table.blocks) for table in path.tables]
    kv.end_step()
    kv.adopt(trunk, path)
    kv.release(loser)
    assert [table.blocks for table in trunk.tables] == blocks
    kv.commit(trunk, list(range(20)), 1 + size)
    assert trunk.num_computed == trunk.num_reserved == length + 1 + size
    assert list(kv.sequences) == [trunk, sibling]
    assert check_kv(kv) == []
    extend(kv, trunk, [7] * 4)
    assert check_kv(kv) == []


def test_a_path_takes_no_block_that_anybody_was_promised() -> None:
    kv = manager(num_blocks=5)
    seq, other = kv.new_sequence(ROOT), kv.new_sequence(ROOT)
    extend(kv, seq, [0, 1])
    kv.promise(other, 8, branches=1, fork_at=0)
    step = kv.begin()
    assert step.grow(seq, 1)
    path = kv.fork(seq)
    assert not step.grow_path(path, 11), "the copied tail and two more: one is not to be had"
    assert step.grow_path(path, 6)
    kv.release(path)
    assert check_kv(kv) == []


def test_a_path_needs_no_more_than_its_copy_and_what_is_behind_it() -> None:
    kv = manager(num_blocks=3)
    seq = kv.new_sequence(ROOT)
    extend(kv, seq, list(range(6)))
    step = kv.begin()
    assert step.grow(seq, 1)
    path = kv.fork(seq)
    assert not step.grow_path(path, 3)
    assert step.grow_path(path, 2)
    assert len(step.seal() or []) == 1


def drafting(num_blocks: int) -> tuple[KVCacheManager, SequenceKV, SequenceKV]:
    """Two sequences of one token each."""
    kv = manager(num_blocks=num_blocks)
    first, second = kv.new_sequence(ROOT), kv.new_sequence(ROOT)
    extend(kv, first, [0])
    extend(kv, second, [1])
    return kv, first, second


def test_two_draft_into_different_blocks() -> None:
    kv, first, second = drafting(num_blocks=3)
    step = kv.begin()
    assert step.grow(first, 1)
    assert step.grow(second, 1)
    assert [step.extend(first, 2, 6), step.extend(second, 2, 6)] == [6, 2]
    assert step.seal() == []


def test_drafts_in_its_own_promise_leave_the_rest_to_others() -> None:
    kv, first, second = drafting(num_blocks=4)
    kv.promise(first, 8, branches=1, fork_at=0)
    step = kv.begin()
    assert step.grow(first, 1)
    assert step.grow(second, 1)
    assert [step.extend(first, 2, 6), step.extend(second, 2, 6)] == [6, 6]
    assert step.seal() == []


@pytest.mark.parametrize(("num_drafts", "granted"), [(5, 5), (9, 1)])
def test_the_copy_of_a_tail_is_no_block_to_draft_into(num_drafts: int, granted: int) -> None:
    """A branch is promised its copy too; one block is left for drafts, the next is its parent's."""
    kv = manager(num_blocks=4)
    parent = kv.new_sequence(ROOT)
    extend(kv, parent, [0, 1])
    kv.promise(parent, 8, branches=2, fork_at=2)
    child = kv.fork(parent)
    assert (parent.promised, child.promised, kv.pools[0].num_available) == ([1], [2], 3)
    step = kv.begin()
    assert step.grow(child, 1)
    assert step.extend(child, 3, num_drafts) == granted
    assert len(step.seal() or []) == 1
    assert check_kv(kv) == []


def test_a_copy_that_was_not_foreseen_is_paid_out_of_the_promise_once() -> None:
    """The tail of ``first`` is copied because of a fork outside its own branches."""
    kv = manager(num_blocks=4)
    first = kv.new_sequence(ROOT)
    extend(kv, first, [0])
    kv.promise(first, 8, branches=1, fork_at=0)
    others = [kv.fork(first), kv.fork(first)]
    assert (first.promised, first.cow_due, kv.pools[0].num_available) == ([1], False, 3)
    step = kv.begin()
    assert step.grow(others[0], 1)
    assert step.grow(first, 1)
    assert [step.extend(others[0], 2, 3), step.extend(first, 2, 3)] == [3, 2]
    assert len(step.seal() or []) == 2
    assert check_kv(kv) == []
