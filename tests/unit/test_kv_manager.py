"""Transactions, forks, hits, publishing and leases, one case each."""

from __future__ import annotations

import pytest

from kv_rig import ROOT, extend, manager
from octavo.kv import check_kv, check_writes, take_ledger
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


def test_what_is_computed_behind_a_hit_is_found_behind_it() -> None:
    kv = manager()
    first = kv.new_sequence(ROOT)
    extend(kv, first, list(range(8)))
    hit = kv.lookup(ROOT, list(range(13)))
    assert hit is not None
    assert hit.length == 8
    second = kv.new_sequence(ROOT)
    step = kv.begin()
    assert step.admit(second, 5, hit=hit, demand=[4])
    assert step.seal() == []
    kv.commit(second, list(range(13)), 5)
    kv.end_step()
    assert check_kv(kv) == []
    again = kv.lookup(ROOT, list(range(13)))
    assert again is not None
    assert again.length == 12
    assert kv.lookup(ROOT, list(range(8, 13))) is None, "these tokens are nobody's first"


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


def test_what_a_step_copies_is_not_reused_before_it_ends() -> None:
    kv = manager()
    parent = kv.new_sequence(ROOT)
    extend(kv, parent, [0, 1])
    child, source = kv.fork(parent), parent.tables[0].blocks[0]
    step = kv.begin()
    assert step.grow(child, 1)
    assert [copy.src for copy in step.seal() or []] == [source]
    kv.release(parent)
    assert source not in kv.pools[0].free_blocks()
    assert kv.pools[0].num_draining == 1
    kv.end_step()
    assert source in kv.pools[0].free_blocks()


def test_a_fork_of_nothing_shares_nothing() -> None:
    kv = manager(block_size=1)
    parent = kv.new_sequence(ROOT)
    child = kv.fork(parent)
    assert extend(kv, parent, [0]) == extend(kv, child, [0]) == []
    assert parent.tables[0].blocks != child.tables[0].blocks


def test_a_branch_publishes_behind_what_its_parent_published() -> None:
    kv = manager()
    parent = kv.new_sequence(ROOT)
    extend(kv, parent, list(range(6)))
    child = kv.fork(parent)
    extend(kv, child, [6, 7])
    hit = kv.lookup(ROOT, list(range(9)))
    assert hit is not None
    assert (hit.length, hit.node) == (8, child.node)
    assert kv.lookup(ROOT, list(range(4, 9))) is None, "these tokens are nobody's first"


def test_neither_who_has_stopped_publishing_nor_its_branch_begins_again() -> None:
    """Even where nothing stands in the way any longer: their blocks may be distrusted."""
    kv = manager()
    first, second = kv.new_sequence(ROOT), kv.new_sequence(ROOT)
    extend(kv, first, list(range(4)))
    extend(kv, second, list(range(4)))
    kv.reset_prefix_cache()
    extend(kv, kv.fork(second), list(range(4, 8)))
    extend(kv, second, list(range(4, 8)))
    assert kv.index.blocks(0) == {}


def test_without_a_prefix_cache_nothing_is_published() -> None:
    kv = manager(prefix_cache=False)
    extend(kv, kv.new_sequence(ROOT), list(range(8)))
    assert kv.index.blocks(0) == {}


@pytest.mark.parametrize("was_shared", [False, True])
def test_a_lease_does_not_force_a_copy(was_shared: bool) -> None:
    kv = manager()
    seq = kv.new_sequence(ROOT)
    extend(kv, seq, [0, 1])
    if was_shared:
        kv.release(kv.fork(seq))
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


def test_a_rollback_to_nothing_returns_every_block() -> None:
    kv = manager()
    seq = kv.new_sequence(ROOT)
    before = kv.num_changes
    extend(kv, seq, list(range(5)), 0)
    assert seq.tables[0].blocks == []
    assert kv.num_changes > before


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
