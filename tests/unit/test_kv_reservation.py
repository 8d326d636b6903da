"""What a step is refused before it takes anything: blocks that are not there, or not for it."""

from __future__ import annotations

from kv_rig import ROOT, extend, manager
from octavo.kv import Account, check_kv


def test_a_copy_needs_a_block_of_its_own() -> None:
    kv = manager(num_blocks=1)
    parent = kv.new_sequence(ROOT)
    extend(kv, parent, [0, 1])
    child = kv.fork(parent)
    assert not kv.begin().grow(child, 1)
    kv.release(child)
    assert kv.begin().grow(parent, 1)


def test_copies_of_one_step_are_counted_together() -> None:
    """Two blocks are free; a copy for each of three branches but the last would take two."""
    for num_blocks, fits in ((2, [True, False, False]), (3, [True, True, True])):
        kv = manager(num_blocks=num_blocks)
        parent = kv.new_sequence(ROOT)
        extend(kv, parent, [0, 1])
        children = [kv.fork(parent) for _ in range(2)]
        step = kv.begin()
        assert [step.grow(seq, 1) for seq in (*children, parent)] == fits
        assert len(step.seal() or []) == num_blocks - 1


def test_a_hit_behind_a_window_pays_for_no_more_than_it_holds() -> None:
    kv = manager(num_blocks=4, windows=(5,))
    first, filler = kv.new_sequence(ROOT), kv.new_sequence(ROOT)
    for at in range(0, 24, 4):
        extend(kv, first, list(range(at, at + 4)))
    extend(kv, filler, [7])
    second = kv.new_sequence(ROOT)
    hit = kv.lookup(ROOT, [*range(24), 99])
    assert hit is not None
    assert (hit.length, hit.first_blocks, kv.pools[0].num_available) == (24, (5,), 2)
    assert not kv.begin().admit(second, 1, hit=hit, demand=[4]), "one is shared, three are owed"
    kv.release(filler)
    step = kv.begin()
    assert step.admit(second, 1, hit=hit, demand=[4])
    assert step.seal() == []
    assert check_kv(kv) == []


def test_a_newcomer_beside_others_counts_on_nobodys_floor() -> None:
    kv = manager(num_blocks=8)
    quiet = kv.new_sequence(ROOT, Account("quiet", "q"))
    extend(kv, quiet, list(range(16)))
    kv.release(quiet)
    assert kv.pools[0].num_kept_from("loud") == 4
    newcomer = kv.new_sequence(b"loud", Account("loud", "l"))
    assert kv.begin().admit(newcomer, 20, hit=None, demand=[5]), "alone it may have all"
    other = kv.new_sequence(b"loud", Account("loud", "o"))
    assert not kv.begin().admit(newcomer, 20, hit=None, demand=[5])
    assert kv.begin().admit(newcomer, 16, hit=None, demand=[4])
    kv.release(other)


def test_how_far_a_sequence_may_write_without_being_counted_again() -> None:
    kv = manager()
    seq = kv.new_sequence(ROOT)
    extend(kv, seq, [0, 1])
    assert seq.writable_until == 4
    extend(kv, seq, [2, 3])
    assert seq.writable_until == 4
    extend(kv, seq, [4, 5, 6, 7, 8], accepted=1)
    assert (seq.num_computed, seq.writable_until) == (5, 8)
    child = kv.fork(seq)
    assert seq.writable_until == child.writable_until == 0
    extend(kv, child, [5])
    assert child.writable_until == 8
    assert extend(kv, seq, [5]) == []
    assert seq.writable_until == 8, "the tail is its own again"
