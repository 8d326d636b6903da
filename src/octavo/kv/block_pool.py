"""The blocks of one KV group: who holds each, and which may be handed out.

    state      ref_count            indexed   meaning
    free       0                    no        on the free list
    cached     0                    yes       only the prefix index knows it; evictable
    owned      > leases             any       some table or pin holds it
    draining   = leases > 0         any       nobody owns it, but a reader has not finished

Every reference belongs to an *owner token*: a small integer from ``open``. An owner holds a block
at most once, so releasing twice changes nothing and a reference count cannot fall below zero.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from enum import IntEnum

from octavo.kv.cached_blocks import CachedBlocks


class OwnerKind(IntEnum):
    """Why an owner holds blocks: a block table, a pin of a prefix hit, or a reader's lease."""

    TABLE = 0
    PIN = 1
    LEASE = 2


class BlockPool:
    """Fixed number of blocks with owners. Out of blocks is an answer (None), not an error.

    ``on_evict(block)`` is called before a cached block is reused, so that the index forgets it.
    ``num_changes`` grows with everything that changes a block's state or owners.
    """

    def __init__(self, num_blocks: int, on_evict: Callable[[int], None]) -> None:
        assert num_blocks > 0
        self.num_blocks = num_blocks
        self.refs = [0] * num_blocks
        self.leases = [0] * num_blocks
        # One byte per block: 1 where more than one table or pin holds it; and how often somebody
        # began or ceased to hold such a block.
        self.shared = bytearray(num_blocks)
        self.num_sharing_changes = 0
        self.num_changes = 0
        self.num_draining = 0
        self.num_evicted = 0
        self._on_evict = on_evict
        self._free = list(range(num_blocks - 1, -1, -1))
        self._cached = CachedBlocks(num_blocks)
        self._indexed = bytearray(num_blocks)
        self._tenants = [""] * num_blocks
        self._owners: dict[int, tuple[OwnerKind, dict[int, None]]] = {}
        self._next_owner = 0
        self._allocates_for: dict[int, str] = {}

    # -- what can be had ---------------------------------------------------------------------

    @property
    def num_free(self) -> int:
        """Blocks on the free list."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks that only the prefix index knows."""
        return len(self._cached.tenant_of)

    @property
    def num_available(self) -> int:
        """Blocks that ``allocate`` could hand out now: free or evictable."""
        return len(self._free) + len(self._cached.tenant_of)

    def is_shared(self, block: int) -> bool:
        """Whether more than one table or pin holds ``block``; leases only read and do not count."""
        return self.refs[block] - self.leases[block] > 1

    def num_kept_from(self, tenant: str) -> int:
        """Available blocks that a new sequence of ``tenant`` may not count on."""
        return self._cached.kept_from(tenant)

    # -- owners ------------------------------------------------------------------------------

    def open(self, kind: OwnerKind, tenant: str = "") -> int:
        """A new owner token that holds nothing yet; ``tenant`` is who it allocates for."""
        self._next_owner += 1
        if tenant:
            self._allocates_for[self._next_owner] = tenant
        self._owners[self._next_owner] = (kind, {})
        return self._next_owner

    def close(self, owner: int, order: Iterable[int] | None = None) -> None:
        """Release all that ``owner`` holds and forget it. Idempotent.

        ``order`` (by default, last held first) decides who is evicted first among blocks that
        become cached: tails must go before heads.
        """
        if owner not in self._owners:
            return
        held = self._owners[owner][1]
        self.release(owner, list(reversed(held)) if order is None else order)
        assert not held, "I2: an owner closed while it still held blocks"
        del self._owners[owner]
        self._allocates_for.pop(owner, None)

    # -- blocks ------------------------------------------------------------------------------

    def allocate(self, owner: int, count: int) -> list[int] | None:
        """``count`` blocks for ``owner`` alone, evicting the oldest cached; None if too few."""
        free, refs = self._free, self.refs
        if count > len(free):
            if count > self.num_available:
                return None
            tenant = self._allocates_for.get(owner, "")
            while len(free) < count:
                self.evict_one(tenant)
        kind, held = self._owners[owner]
        assert kind is not OwnerKind.LEASE, "I2: a lease never owns"
        self.num_changes += 1
        blocks = [free.pop() for _ in range(count)]
        for block in blocks:
            assert refs[block] == 0, "I1: a free block had an owner"
            refs[block] = 1
            held[block] = None
        return blocks

    def share(self, owner: int, blocks: Iterable[int]) -> None:
        """``owner`` holds ``blocks`` too. They must be held or cached, never free."""
        self.num_changes += 1
        kind, held = self._owners[owner]
        is_lease = kind is OwnerKind.LEASE
        for block in blocks:
            if block in held:
                continue
            if self.refs[block] == 0:
                assert self._indexed[block], "I1: sharing a free block"
                self._cached.remove(block)
            elif not is_lease and self.refs[block] == self.leases[block]:
                self.num_draining -= 1
            held[block] = None
            self.refs[block] += 1
            if is_lease:
                self.leases[block] += 1
                if self.refs[block] == 1:
                    self.num_draining += 1
            elif self.refs[block] - self.leases[block] > 1:
                self.shared[block] = 1
                self.num_sharing_changes += 1

    def release(self, owner: int, blocks: Iterable[int]) -> None:
        """``owner`` lets go of ``blocks``; those it does not hold are left alone (idempotent)."""
        if owner not in self._owners:
            return
        self.num_changes += 1
        kind, held = self._owners[owner]
        refs, leases, is_lease = self.refs, self.leases, kind is OwnerKind.LEASE
        for block in blocks:
            if block not in held:
                continue
            del held[block]
            was_draining = refs[block] == leases[block]
            refs[block] = left = refs[block] - 1
            if is_lease:
                leases[block] -= 1
            elif self.shared[block]:
                self.shared[block] = left - leases[block] > 1
                self.num_sharing_changes += 1
            if left:
                self.num_draining += (left == leases[block]) - was_draining
                continue
            self.num_draining -= was_draining
            if self._indexed[block]:
                self._cached.add(block, self._tenants[block])
            else:
                self._free.append(block)

    # -- the prefix index's side -------------------------------------------------------------

    def mark_indexed(self, block: int, tenant: str = "") -> None:
        """The prefix index now knows ``block``, under a key of ``tenant``.

        It is held, so its content is complete.
        """
        assert self.refs[block] > 0, "I5: indexing a block that nobody holds"
        self.num_changes += 1
        self._indexed[block] = 1
        self._tenants[block] = tenant

    def unmark_indexed(self, block: int) -> None:
        """The prefix index forgot ``block``; a cached one becomes free."""
        self.num_changes += 1
        self._indexed[block] = 0
        if block in self._cached:
            self._cached.remove(block)
            self._free.append(block)

    def evict_one(self, tenant: str = "") -> None:
        """Make one cached block free for ``tenant``; which, ``cached_blocks`` decides."""
        block = self._cached.next(tenant)
        self._on_evict(block)
        self.num_evicted += 1
        assert block not in self._cached, "I5: the index kept an evicted block"

    # -- for invariants and dumps ------------------------------------------------------------

    def owners(self) -> Iterator[tuple[OwnerKind, Collection[int]]]:
        """Every owner's kind and blocks."""
        yield from ((kind, held.keys()) for kind, held in self._owners.values())

    def count_owned(self) -> int:
        """How many blocks tables and pins hold, those of several counted for each."""
        lease = OwnerKind.LEASE
        return sum([len(held) for kind, held in self._owners.values() if kind is not lease])

    def count_pinned(self) -> tuple[int, int]:
        """How many blocks pins hold, and how many of these nobody else does."""
        pinned = [held for kind, held in self._owners.values() if kind is OwnerKind.PIN]
        alone = sum(not self.shared[block] for held in pinned for block in held)
        return sum(map(len, pinned)), alone

    def count_draining(self) -> int:
        """How many blocks only leases hold, as the leases tell it."""
        lease = OwnerKind.LEASE
        leases = [held for kind, held in self._owners.values() if kind is lease]
        if not leases:
            return 0
        refs, leased = self.refs, self.leases
        return len({block for held in leases for block in held if refs[block] == leased[block]})

    def held_by(self, owner: int) -> Collection[int]:
        """Blocks that ``owner`` holds (empty when it is closed)."""
        return self._owners[owner][1] if owner in self._owners else ()

    def free_blocks(self) -> list[int]:
        """The free list, next to be handed out last."""
        return list(self._free)

    def cached_by_tenant(self) -> dict[str, int]:
        """How many cached blocks each tenant has."""
        return self._cached.counts()

    def cached_blocks(self) -> list[int]:
        """Cached blocks, the longest cached first."""
        return self._cached.blocks()

    @property
    def metadata_bytes(self) -> int:
        """Size of the pool's own books, as their containers report it."""
        books = (self.refs, self.leases, self.shared, self._free, self._indexed, self._tenants)
        held = sum(blocks.__sizeof__() for _, blocks in self._owners.values())
        return sum(book.__sizeof__() for book in books) + self._cached.__sizeof__() + held

    def indexed_marks(self) -> bytes:
        """One byte per block: 1 where the prefix index knows it, held or cached."""
        return bytes(self._indexed)
