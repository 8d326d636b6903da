"""One block table: what is dropped, in which order, and what the runner must be told again."""

from __future__ import annotations

from octavo.kv.block_table import BlockTable


def table(first_block: int = 0) -> BlockTable:
    made = BlockTable(owner=1)
    made.blocks, made.first_block = [5, 6, 7, 8], first_block
    made.take_update(0, 4)
    return made


def test_the_end_is_dropped_tail_first() -> None:
    """So that tails are evicted before heads."""
    short = table(first_block=3)
    assert short.end_block == 7
    assert short.truncate(5) == [8, 7]
    assert (short.blocks, short.end_block) == ([5, 6], 5)
    assert short.take_update(0, 4).blocks == ()
    short.blocks.append(9)
    update = short.take_update(0, 4)
    assert (update.first_position, update.keep, update.blocks) == (12, 2, (9,))


def test_what_replaces_the_dropped_end_is_told_and_so_is_all_of_an_empty_table() -> None:
    changed = table(first_block=3)
    assert changed.truncate(5) == [8, 7]
    changed.blocks.append(9)
    update = changed.take_update(0, 4)
    assert (update.keep, update.blocks) == (2, (9,))
    assert changed.truncate(3) == [9, 6, 5]
    assert (changed.blocks, changed.num_synced) == ([], 0)


def test_the_front_is_dropped_and_the_rest_told_again() -> None:
    rest = table()
    assert rest.drop_front(1) == [5]
    update = rest.take_update(1, 4)
    assert (update.group, update.first_position, update.keep) == (1, 4, 0)
    assert update.blocks == (6, 7, 8)
    assert rest.drop_front(9) == [6, 7, 8]
    assert (rest.first_block, rest.blocks) == (4, [])
