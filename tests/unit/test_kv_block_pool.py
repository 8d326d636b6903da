"""States of a block, owner tokens and idempotent release."""

from __future__ import annotations

import pytest

from octavo.kv.block_pool import BlockPool, OwnerKind


class Pool(BlockPool):
    """A pool whose index forgets at once, and says so."""

    def __init__(self, num_blocks: int) -> None:
        self.evicted: list[int] = []
        super().__init__(num_blocks, self.forget)

    def forget(self, block: int) -> None:
        self.evicted.append(block)
        self.unmark_indexed(block)


def test_all_or_nothing() -> None:
    pool = Pool(3)
    a = pool.open(OwnerKind.TABLE)
    assert pool.allocate(a, 4) is None
    assert pool.num_free == 3
    assert len(pool.allocate(a, 3) or []) == 3
    assert pool.allocate(a, 1) is None
    assert pool.allocate(a, 0) == []


def test_release_is_idempotent_per_owner() -> None:
    pool = Pool(2)
    a, b = pool.open(OwnerKind.TABLE), pool.open(OwnerKind.TABLE)
    (block,) = pool.allocate(a, 1) or []
    pool.share(b, (block,))
    pool.share(b, (block,))
    assert pool.refs[block] == 2
    pool.release(a, (block,))
    pool.release(a, (block,))
    assert pool.refs[block] == 1
    pool.close(b)
    pool.close(b)
    pool.release(b, (block,))
    assert pool.refs[block] == 0
    assert pool.num_free == 2
    assert list(pool.held_by(b)) == []


def test_a_stranger_releases_nothing() -> None:
    pool = Pool(1)
    a, b = pool.open(OwnerKind.TABLE), pool.open(OwnerKind.TABLE)
    blocks = pool.allocate(a, 1) or []
    pool.release(b, blocks)
    assert pool.refs[blocks[0]] == 1


def test_what_is_held_already_or_not_at_all_does_not_hide_the_rest() -> None:
    pool = Pool(2)
    a, b = pool.open(OwnerKind.TABLE), pool.open(OwnerKind.TABLE)
    blocks = pool.allocate(a, 2) or []
    pool.share(b, blocks[:1])
    pool.share(b, blocks)
    assert [pool.refs[block] for block in blocks] == [2, 2]
    pool.release(b, blocks[:1])
    pool.release(b, blocks)
    assert [pool.refs[block] for block in blocks] == [1, 1]


def test_nothing_is_kept_of_an_owner_that_closed() -> None:
    """I10: however many owners there were, the books are those of an empty pool."""
    pool = Pool(4)
    tables = [pool.open(OwnerKind.TABLE, f"tenant {number}") for number in range(4)]
    for owner in tables:
        pool.allocate(owner, 1)
    pins = [pool.open(kind) for kind in (OwnerKind.PIN, OwnerKind.LEASE)]
    for owner in pins:
        pool.share(owner, [0, 1])
    for owner in (*tables, *pins):
        pool.close(owner)
    kept = {name: value for name, value in vars(pool).items() if isinstance(value, dict) and value}
    assert kept == {}


def test_the_books_grow_with_what_is_held_and_with_what_is_cached() -> None:
    pool, empty = Pool(256), Pool(256).metadata_bytes
    owner = pool.open(OwnerKind.TABLE)
    blocks = pool.allocate(owner, 256) or []
    assert pool.metadata_bytes > empty
    for block in blocks:
        pool.mark_indexed(block)
    pool.close(owner)
    assert pool.num_cached == 256
    assert pool.metadata_bytes > empty


def test_cached_blocks_are_evicted_oldest_first() -> None:
    pool = Pool(3)
    a = pool.open(OwnerKind.TABLE)
    blocks = pool.allocate(a, 3) or []
    for block in blocks:
        pool.mark_indexed(block)
    assert pool.indexed_marks() == b"\1\1\1"
    pool.close(a, blocks[::-1])
    assert (pool.num_free, pool.num_cached, pool.num_available) == (0, 3, 3)
    assert pool.cached_blocks() == blocks[::-1]
    b = pool.open(OwnerKind.TABLE)
    assert pool.allocate(b, 2) is not None
    assert pool.evicted == blocks[:0:-1]
    assert pool.num_evicted == 2


def test_pinned_blocks_are_never_evicted() -> None:
    pool = Pool(2)
    a = pool.open(OwnerKind.TABLE)
    blocks = pool.allocate(a, 2) or []
    pool.mark_indexed(blocks[0])
    pool.close(a)
    pin = pool.open(OwnerKind.PIN)
    pool.share(pin, blocks[:1])
    b = pool.open(OwnerKind.TABLE)
    assert pool.allocate(b, 2) is None
    pool.close(pin)
    assert len(pool.allocate(b, 2) or []) == 2


def test_forgetting_a_held_block_keeps_it_held() -> None:
    pool = Pool(1)
    a = pool.open(OwnerKind.TABLE)
    blocks = pool.allocate(a, 1) or []
    pool.mark_indexed(blocks[0])
    pool.unmark_indexed(blocks[0])
    assert pool.indexed_marks() == b"\0"
    pool.close(a)
    assert pool.num_free == 1


def test_draining_until_the_lease_ends() -> None:
    pool = Pool(1)
    table, lease = pool.open(OwnerKind.TABLE), pool.open(OwnerKind.LEASE)
    blocks = pool.allocate(table, 1) or []
    pool.share(lease, blocks)
    assert not pool.is_shared(blocks[0])
    assert pool.num_draining == 0
    pool.close(table)
    assert (pool.num_draining, pool.num_available) == (1, 0)
    second = pool.open(OwnerKind.LEASE)
    pool.share(second, blocks)
    pool.close(lease)
    assert pool.num_draining == 1
    pool.close(second)
    assert (pool.num_draining, pool.num_free) == (0, 1)


def test_a_lease_on_a_cached_block_drains_and_a_table_takes_it_back() -> None:
    pool = Pool(1)
    table = pool.open(OwnerKind.TABLE)
    blocks = pool.allocate(table, 1) or []
    pool.mark_indexed(blocks[0])
    pool.close(table)
    lease = pool.open(OwnerKind.LEASE)
    pool.share(lease, blocks)
    assert pool.num_draining == 1
    again = pool.open(OwnerKind.TABLE)
    pool.share(again, blocks)
    assert pool.num_draining == 0
    assert not pool.shared[blocks[0]], "a reader shares nothing"
    pool.close(again)
    assert pool.num_draining == 1
    pool.close(lease)
    assert pool.cached_blocks() == blocks


@pytest.mark.skipif(not __debug__, reason="our own invariants are asserts")
def test_sharing_a_free_block_is_our_bug() -> None:
    pool = Pool(1)
    with pytest.raises(AssertionError, match="I1"):
        pool.share(pool.open(OwnerKind.TABLE), (0,))


def test_whatever_changes_hands_is_counted() -> None:
    pool = Pool(2)
    a, b = pool.open(OwnerKind.TABLE), pool.open(OwnerKind.LEASE)
    (block,) = pool.allocate(a, 1) or []
    for change in (
        lambda: pool.allocate(a, 1),
        lambda: pool.share(b, (block,)),
        lambda: pool.mark_indexed(block),
        lambda: pool.release(b, (block,)),
        lambda: pool.close(a),
        pool.evict_one,
    ):
        before = pool.num_changes
        change()
        assert pool.num_changes > before
    assert pool.num_free == 2
