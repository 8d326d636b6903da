"""Several KV groups, and windows that let go of what is behind them."""

from __future__ import annotations

from kv_rig import ROOT, extend, manager
from octavo.kv import check_kv


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


def test_a_window_takes_what_another_published() -> None:
    """A windowed group's block of another sequence does not stop publishing, a full one does."""
    for windows, publishing in (((5,), True), ((None,), False)):
        kv = manager(windows=windows)
        first, second = kv.new_sequence(ROOT), kv.new_sequence(ROOT)
        extend(kv, first, list(range(4)))
        extend(kv, second, list(range(4)))
        assert second.publishing is publishing
        assert len(kv.index.blocks(0)) == 1


def test_a_window_that_does_not_move_tells_the_runner_nothing_again() -> None:
    kv = manager(windows=(8,))
    seq = kv.new_sequence(ROOT)
    for at in range(0, 12, 4):
        extend(kv, seq, list(range(at, at + 4)))
    table = seq.tables[0]
    table.take_update(0, 4)
    extend(kv, seq, [12])
    update = table.take_update(0, 4)
    assert (update.keep, update.blocks) == (len(table.blocks) - 1, tuple(table.blocks[-1:]))


def test_a_hit_begins_at_the_first_position_that_the_next_token_sees() -> None:
    kv = manager(block_size=1, windows=(None, 5))
    seq = kv.new_sequence(ROOT)
    for token in range(7):
        extend(kv, seq, [token])
    for length, first_blocks in ((3, (0, 0)), (4, (0, 0)), (5, (0, 1)), (7, (0, 3))):
        hit = kv.lookup(ROOT, list(range(length + 1)))
        assert hit is not None
        assert (hit.length, hit.first_blocks) == (length, first_blocks)
        assert [len(blocks) for blocks in hit.blocks] == [length - first for first in first_blocks]
        kv.unpin(hit)
