"""Each damage to the books is named by its invariant."""

from __future__ import annotations

import pytest

from kv_rig import ROOT, extend, manager
from octavo.core.step import BlockCopy
from octavo.kv import check_copies, check_fits, check_kv, check_sums, check_writes
from octavo.kv.block_pool import OwnerKind


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


def test_a_lease_on_what_is_not_computed_yet_forbids_nothing() -> None:
    kv = manager()
    seq, other = kv.new_sequence(ROOT), kv.new_sequence(ROOT)
    extend(kv, seq, list(range(4)))
    extend(kv, other, [7])
    step = kv.begin()
    assert step.grow(seq, 1)
    assert step.seal() == []
    leases = [kv.lease(seq), kv.lease(other)]
    assert check_writes(kv, seq) == []
    for lease in leases:
        kv.end_lease(lease)


def test_a_write_to_a_block_that_the_step_reads_is_named() -> None:
    kv = manager()
    seq = kv.new_sequence(ROOT)
    extend(kv, seq, [0, 1, 2])
    block = seq.tables[0].blocks[0]
    kv.lease_for_step(0, block, 2)
    assert kv.num_step_leases == 1
    assert check_writes(kv, seq) == []
    kv.lease_for_step(0, block, 4)
    kv.lease_for_step(0, block, 1)
    assert check_writes(kv, seq)[0].startswith("I3")
    copy = BlockCopy(src=15, dst=block, num_tokens=1)
    assert check_copies(kv, [copy])[0].startswith("I3: group 0: a copy")
    kv.end_step()
    assert kv.num_step_leases == 0
    assert check_copies(kv, [copy]) == []


def test_a_wrong_promise_is_named() -> None:
    kv = manager()
    seq = kv.new_sequence(ROOT)
    kv.promise(seq, 12, branches=1, fork_at=0)
    seq.promised[0] -= 1
    kv.promises.totals[0] -= 1
    assert any("not what it may still take" in sentence for sentence in check_kv(kv))


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("block_size", [1, 4])
def test_a_table_that_starts_one_block_late_is_reported(
    block_size: int, window: int | None
) -> None:
    kv = manager(block_size=block_size, windows=(window,))
    seq = kv.new_sequence(ROOT)
    for token in range(10):
        extend(kv, seq, [token])
    table = seq.tables[0]
    kv.pools[0].release(table.owner, table.drop_front(table.first_block + 1))
    assert any("still in its span" in words for words in check_kv(kv))


def test_a_window_that_has_not_moved_yet_covers_the_first_block() -> None:
    kv = manager(block_size=1, windows=(5,))
    seq = kv.new_sequence(ROOT)
    extend(kv, seq, [0, 1])
    table = seq.tables[0]
    kv.pools[0].release(table.owner, table.drop_front(1))
    assert any("still in its span" in words for words in check_kv(kv))


def test_writing_a_shared_block_behind_a_window_is_named() -> None:
    kv = manager(windows=(5,))
    seq = kv.new_sequence(ROOT)
    for at in range(0, 12, 4):
        extend(kv, seq, list(range(at, at + 4)))
    extend(kv, seq, [12])
    assert seq.tables[0].first_block == 2
    kv.fork(seq)
    assert check_writes(kv, seq)[0].startswith("I3")


def test_writing_a_shared_block_behind_a_private_one_is_named() -> None:
    kv = manager()
    seq = kv.new_sequence(ROOT)
    extend(kv, seq, list(range(6)))
    step = kv.begin()
    assert step.grow(seq, 5)
    assert step.seal() == []
    assert check_writes(kv, seq) == []
    kv.pools[0].share(kv.new_sequence(ROOT).tables[0].owner, seq.tables[0].blocks[2:])
    assert len(check_writes(kv, seq)) == 1


@pytest.mark.parametrize("damage", [damage_table, damage_draining])
def test_what_does_not_fit_the_pool_is_named(damage) -> None:
    kv = manager()
    seq = kv.new_sequence(ROOT)
    extend(kv, seq, list(range(10)))
    assert check_fits(kv) == []
    damage(kv, seq)
    assert check_fits(kv)[0].startswith("I1: group 0: tables hold")


def lease_of_nobody(kv, seq):
    kv.pools[0].leases[15] += 1


def fewer_findable(kv, seq):
    kv.index.blocks(0).popitem()


@pytest.mark.parametrize(
    ("damage", "number"),
    [
        (damage_refs, "I2"),
        (lease_of_nobody, "I2"),
        (damage_draining, "I1"),
        (damage_marks, "I5"),
        (fewer_findable, "I5"),
        (damage_totals, "I6"),
    ],
)
def test_a_sum_that_is_wrong_is_named_and_nothing_else(damage, number: str) -> None:
    kv = manager()
    seq = kv.new_sequence(ROOT)
    extend(kv, seq, list(range(10)))
    reader = kv.lease(seq)
    assert check_sums(kv) == []
    damage(kv, seq)
    assert [sentence[:2] for sentence in check_sums(kv)] == [number]
    kv.end_lease(reader)


def test_a_full_block_that_is_cached_behind_an_absent_one_is_named_and_a_leaf_may_be_absent() -> (
    None
):
    """Beside a window's blocks, of which any may be gone."""
    kv = manager(windows=(None, 5))
    seq = kv.new_sequence(ROOT)
    extend(kv, seq, list(range(8)))
    extend(kv, seq, list(range(8, 12)))
    first, middle, last = seq.tables[0].blocks
    kv.forget(0, last)
    assert check_kv(kv) == []
    kv.forget(0, first)
    assert check_kv(kv) == [f"I5: group 0: block {middle} is cached without its parent"]


def test_a_lease_that_says_nothing_of_its_fill_forbids_nothing() -> None:
    kv = manager()
    seq = kv.new_sequence(ROOT)
    step = kv.begin()
    assert step.grow(seq, 1)
    assert step.seal() == []
    kv.pools[0].share(kv.pools[0].open(OwnerKind.LEASE), seq.tables[0].blocks)
    assert check_writes(kv, seq) == []
