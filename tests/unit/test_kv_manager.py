"""Transactions, forks, windows, promises and leases, one case each."""

from __future__ import annotations

import pytest

from kv_rig import ROOT, extend, manager
from octavo.core import BlockCopy
from octavo.kv import (
    KVCacheManager,
    SequenceKV,
    check_copies,
    check_kv,
    check_writes,
    take_ledger,
)
from octavo.kv.block_pool import OwnerKind


def test_one_refusal_undoes_the_whole_step() -> None:
    kv = manager(num_blocks=4)
    a, b = kv.new_sequence(ROOT), kv.new_sequence(ROOT)
    step = kv.begin()
    assert step.grow(a, 8)
    assert step.grow(b, 8)
    assert not step.grow(kv.new_sequence(ROOT), 1)
    stolen = kv.pools[0].open(OwnerKind.TABLE)
    kv.pools[0].allocate(stolen, 1)
    assert step.seal() is None
    kv.pools[0].close(stolen)
    assert kv.pools[0].num_free == 4
    assert a.tables[0].blocks == b.tables[0].blocks == []
    assert check_kv(kv) == []


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


def test_two_groups_are_reserved_together() -> None:
    kv = manager(num_blocks=4, windows=(None, 4))
    seq = kv.new_sequence(ROOT)
    real = kv.pools[1].allocate
    kv.pools[1].allocate = lambda owner, count: None
    step = kv.begin()
    assert step.grow(seq, 4)
    assert step.seal() is None
    kv.pools[1].allocate = real
    assert [pool.num_free for pool in kv.pools] == [4, 4]
    assert check_kv(kv) == []


def test_a_window_frees_the_blocks_behind_it() -> None:
    kv = manager(windows=(None, 5))
    seq = kv.new_sequence(ROOT)
    for at in range(0, 24, 4):
        extend(kv, seq, list(range(at, at + 4)))
    full, windowed = seq.tables
    assert len(full.blocks) == 6
    # The next query, at 24, sees 20…24: block 5 on.
    assert (windowed.first_block, len(windowed.blocks)) == (5, 1)
    update = windowed.take_update(1, 4)
    assert update is not None
    assert (update.first_position, update.keep) == (20, 0)
    kv.release(seq)
    kv.release(seq)
    kv.reset_prefix_cache()
    assert [pool.num_free for pool in kv.pools] == [16, 16]


def test_a_hit_in_two_groups_reads_only_the_window() -> None:
    kv = manager(windows=(None, 5))
    first = kv.new_sequence(ROOT)
    for at in range(0, 24, 4):
        extend(kv, first, list(range(at, at + 4)))
    hit = kv.lookup(ROOT, [*range(24), 99])
    assert hit is not None
    assert (hit.length, hit.first_blocks, len(hit.blocks[0]), len(hit.blocks[1])) == (
        24,
        (0, 5),
        6,
        1,
    )
    second = kv.new_sequence(ROOT)
    step = kv.begin()
    assert step.admit(second, 1, hit=hit, demand=[7, 4])
    assert step.seal() == []
    assert second.tables[1].first_block == 5
    kv.commit(second, [*range(24), 99], 1)
    kv.end_step()
    assert kv.num_pins == 0
    assert check_kv(kv) == []


def test_partial_hit_copies_and_leaves_the_cached_block_alone() -> None:
    kv = manager()
    first = kv.new_sequence(ROOT)
    extend(kv, first, list(range(8)))
    cached = first.tables[0].blocks[1]
    kv.release(first)
    hit = kv.lookup(ROOT, [0, 1, 2, 3, 4, 5, 77])
    assert hit is not None
    assert hit.length == 6
    second = kv.new_sequence(ROOT)
    step = kv.begin()
    assert step.admit(second, 1, hit=hit, demand=[2])
    copies = step.seal()
    assert copies is not None
    assert [(c.src, c.num_tokens) for c in copies] == [(cached, 2)]
    assert kv.pools[0].refs[cached] == kv.pools[0].leases[cached] == 1
    kv.commit(second, [0, 1, 2, 3, 4, 5, 77], 1)
    kv.end_step()
    assert kv.pools[0].refs[cached] == 0
    assert kv.pools[0].indexed_marks()[cached]
    assert kv.num_partial_hits == 1


def test_shorten_drops_the_partial_tail() -> None:
    kv = manager()
    first = kv.new_sequence(ROOT)
    extend(kv, first, list(range(8)))
    tokens = [0, 1, 2, 3, 4, 77]
    hit = kv.lookup(ROOT, tokens)
    assert hit is not None
    assert hit.length == 5
    hit = kv.shorten(hit, ROOT, tokens)
    assert hit is not None
    assert hit.length == 4
    kv.unpin(hit)
    kv.unpin(hit)
    short = kv.lookup(ROOT, [0, 1])
    assert short is not None
    assert kv.shorten(short, ROOT, [0, 1]) is None
    assert check_kv(kv) == []


def test_fork_copies_for_all_but_the_last() -> None:
    kv = manager()
    parent = kv.new_sequence(ROOT)
    extend(kv, parent, list(range(6)))
    children = [kv.fork(parent) for _ in range(2)]
    step = kv.begin()
    for seq in (*children, parent):
        assert step.grow(seq, 1)
    copies = step.seal()
    assert copies is not None
    assert len(copies) == kv.num_cow_copies == 2
    assert len({seq.tables[0].blocks[1] for seq in (*children, parent)}) == 3
    assert len({seq.tables[0].blocks[0] for seq in (*children, parent)}) == 1
    for seq in (*children, parent):
        assert check_writes(kv, seq) == []
        kv.commit(seq, list(range(7)), 1)
    kv.end_step()
    assert check_kv(kv) == []


def test_a_lease_does_not_force_a_copy() -> None:
    kv = manager()
    seq = kv.new_sequence(ROOT)
    extend(kv, seq, [0, 1])
    lease = kv.lease(seq)
    assert extend(kv, seq, [2]) == []
    kv.release(seq)
    assert take_ledger(kv).draining == 4 * 8
    kv.end_lease(lease)
    assert take_ledger(kv).draining == 0


@pytest.mark.parametrize("accepted", range(8))
def test_commit_keeps_the_accepted_and_returns_the_rest(accepted: int) -> None:
    kv = manager()
    seq = kv.new_sequence(ROOT)
    extend(kv, seq, [0, 1, 2])
    extend(kv, seq, [3, 4, 5, 6, 7, 8, 9], accepted)
    assert seq.num_computed == seq.num_reserved == 3 + accepted
    assert len(seq.tables[0].blocks) == -(-(3 + accepted) // 4)
    assert len(kv.index.blocks(0)) == (3 + accepted) // 4


def test_two_publishers_of_the_same_block() -> None:
    """The second keeps its own copy, stops publishing, and nothing is cut or lost."""
    kv = manager()
    first, second = kv.new_sequence(ROOT), kv.new_sequence(ROOT)
    extend(kv, first, list(range(4)))
    extend(kv, second, list(range(4)))
    assert not second.publishing
    extend(kv, second, list(range(4, 8)))
    assert len(kv.index.blocks(0)) == 1
    kv.release(second)
    assert kv.pools[0].num_cached == 0


def test_publishing_stops_when_the_cache_was_reset() -> None:
    kv = manager()
    seq = kv.new_sequence(ROOT)
    extend(kv, seq, list(range(4)))
    kv.reset_prefix_cache()
    extend(kv, seq, list(range(4, 8)))
    assert not seq.publishing
    assert kv.index.num_roots == 0


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


def damage_refs(kv, seq):
    kv.pools[0].refs[seq.tables[0].blocks[0]] += 1


def damage_leases(kv, seq):
    kv.pools[0].leases[seq.tables[0].blocks[0]] += 1


def damage_draining(kv, seq):
    kv.pools[0].num_draining += 1


def damage_table(kv, seq):
    seq.tables[0].blocks.append(15)


def damage_front(kv, seq):
    seq.tables[0].first_block = 1


def damage_node(kv, seq):
    seq.node.blocks[0] = 14


def damage_trie(kv, seq):
    seq.node.parent.children.clear()


def damage_parent(kv, seq):
    seq.node.parent.blocks[0] = -1


def damage_attached(kv, seq):
    seq.node.attached = False


def damage_upward(kv, seq):
    seq.node.parent = None


def damage_middle(kv, seq):
    """A gap in the middle, beside a node that is in order."""
    other = kv.new_sequence(ROOT)
    extend(kv, other, [9, 9, 9, 9])
    kv.forget(0, seq.tables[0].blocks[0])


def damage_marks(kv, seq):
    kv.pools[0].mark_indexed(seq.tables[0].blocks[-1])


def damage_totals(kv, seq):
    kv.promises.totals[0] += 1


def damage_promise(kv, seq):
    kv.promises.totals[0] += 100
    seq.promised[0] += 100


@pytest.mark.parametrize(
    ("damage", "number"),
    [
        (damage_refs, "I2"),
        (damage_leases, "I2"),
        (damage_draining, "I1"),
        (damage_table, "I4"),
        (damage_front, "I4"),
        (damage_node, "I5"),
        (damage_trie, "I5"),
        (damage_parent, "I5"),
        (damage_attached, "I5"),
        (damage_upward, "I5"),
        (damage_middle, "I5"),
        (damage_marks, "I5"),
        (damage_totals, "I6"),
        (damage_promise, "I6"),
    ],
)
def test_each_damage_is_named(damage, number: str) -> None:
    kv = manager()
    seq = kv.new_sequence(ROOT)
    extend(kv, seq, list(range(10)))
    damage(kv, seq)
    assert any(sentence.startswith(number) for sentence in check_kv(kv))


def test_writing_a_shared_block_is_named() -> None:
    kv = manager()
    seq = kv.new_sequence(ROOT)
    extend(kv, seq, [0, 1])
    kv.fork(seq)
    assert check_writes(kv, seq)[0].startswith("I3")


def test_table_updates_say_only_what_changed() -> None:
    kv = manager()
    seq = kv.new_sequence(ROOT)
    extend(kv, seq, list(range(6)))
    table = seq.tables[0]
    update = table.take_update(0, 4)
    assert update is not None
    assert (update.keep, update.blocks) == (0, tuple(table.blocks))
    assert table.num_synced == len(table.blocks)
    child = kv.fork(seq)
    extend(kv, seq, [6])
    update = table.take_update(0, 4)
    assert update is not None
    assert (update.keep, update.blocks) == (1, (table.blocks[1],))
    kv.release(child)


def test_evict_says_how_many() -> None:
    kv = manager()
    seq = kv.new_sequence(ROOT)
    extend(kv, seq, list(range(12)))
    assert kv.evict(0, 2) == 0
    tail = seq.tables[0].blocks[::-1]
    kv.release(seq)
    assert kv.pools[0].cached_blocks() == tail
    assert kv.evict(0, 2) == 2
    assert kv.pools[0].cached_blocks() == tail[2:]
    assert kv.evict(0, 9) == 1
    assert kv.index.num_roots == 0


def test_a_window_takes_what_another_published() -> None:
    """A windowed group's block of another sequence does not stop publishing, a full one does."""
    for windows, publishing in (((5,), True), ((None,), False)):
        kv = manager(windows=windows)
        first, second = kv.new_sequence(ROOT), kv.new_sequence(ROOT)
        extend(kv, first, list(range(4)))
        extend(kv, second, list(range(4)))
        assert second.publishing is publishing
        assert len(kv.index.blocks(0)) == 1


def test_only_as_many_promises_are_shed_as_needed() -> None:
    kv = manager(num_blocks=8)
    old, young, grower = (kv.new_sequence(ROOT) for _ in range(3))
    kv.promise(old, 12, branches=1, fork_at=0)
    kv.promise(young, 12, branches=1, fork_at=0)
    extend(kv, grower, [0] * 12)
    assert (old.promised, young.promised) == ([3], [0])
    assert kv.promises.num_shed == 1


def test_a_write_below_a_leased_fill_is_named() -> None:
    """A reader may read what was computed when its lease began; appending behind it is allowed."""
    kv = manager()
    seq = kv.new_sequence(ROOT)
    extend(kv, seq, list(range(6)))
    lease = kv.lease(seq)
    extend(kv, seq, [6])
    seq.num_computed = 5
    assert check_writes(kv, seq) == ["I3: group 0: a step would write a slot under a read lease"]
    kv.end_lease(lease)
    kv.end_lease(lease)
    assert check_writes(kv, seq) == []
    assert kv.lease_fills == [{}]


def test_a_write_to_a_block_that_the_step_reads_is_named() -> None:
    kv = manager()
    seq = kv.new_sequence(ROOT)
    extend(kv, seq, [0, 1, 2])
    block = seq.tables[0].blocks[0]
    kv.lease_for_step(0, block, 2)
    assert check_writes(kv, seq) == []
    kv.lease_for_step(0, block, 4)
    kv.lease_for_step(0, block, 1)
    assert check_writes(kv, seq)[0].startswith("I3")
    copy = BlockCopy(src=15, dst=block, num_tokens=1)
    assert check_copies(kv, [copy])[0].startswith("I3: group 0: a copy")
    kv.end_step()
    assert check_copies(kv, [copy]) == []


def test_a_wrong_promise_is_named() -> None:
    kv = manager()
    seq = kv.new_sequence(ROOT)
    kv.promise(seq, 12, branches=1, fork_at=0)
    seq.promised[0] -= 1
    kv.promises.totals[0] -= 1
    assert any("not what it may still take" in sentence for sentence in check_kv(kv))


def test_distrust_forgets_what_begins_alike_in_every_group() -> None:
    kv = manager(windows=(None, 5))
    seq, other = kv.new_sequence(ROOT), kv.new_sequence(ROOT)
    extend(kv, seq, list(range(12)))
    extend(kv, other, [7] * 4)
    kv.forget(1, seq.tables[1].blocks[-1])
    kv.distrust(ROOT, [0, 99])
    assert [len(kv.index.blocks(group)) for group in (0, 1)] == [1, 1]
    assert kv.lookup(ROOT, list(range(12))) is None
    assert check_kv(kv) == []
    extend(kv, seq, list(range(12, 20)))
    assert not seq.publishing
    kv.distrust(b"no such key", [0])


def test_a_refused_step_does_not_make_a_shared_tail_writable() -> None:
    """The parent would have written in place behind its child's copy, which was never made."""
    kv = manager()
    parent = kv.new_sequence(ROOT)
    extend(kv, parent, list(range(6)))
    child = kv.fork(parent)
    step = kv.begin()
    assert step.grow(child, 1)
    assert step.grow(parent, 1)
    real, kv.pools[0].allocate = kv.pools[0].allocate, lambda owner, count: None
    assert step.seal() is None
    kv.pools[0].allocate = real
    assert len(extend(kv, parent, [6]) or []) == 1
    assert extend(kv, child, [6]) == []


def test_nothing_is_counted_before_it_happens() -> None:
    kv = manager()
    counts = (kv.num_cow_copies, kv.num_query_tokens, kv.num_hit_tokens, kv.num_partial_hits)
    assert counts == (0, 0, 0, 0)


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


def test_a_table_that_starts_one_block_late_is_reported() -> None:
    kv = manager(block_size=1, windows=(5,))
    seq = kv.new_sequence(ROOT)
    for token in range(10):
        extend(kv, seq, [token])
    table = seq.tables[0]
    kv.pools[0].release(table.owner, table.drop_front(table.first_block + 1))
    assert any("still in its span" in words for words in check_kv(kv))
