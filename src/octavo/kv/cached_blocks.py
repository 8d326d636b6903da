"""Which cached block is evicted next: the oldest, but of no tenant that holds its floor or less.

Half of the pool is divided evenly among the tenants that have cached blocks: that is the floor of
each. A tenant that floods the cache is the only one above its floor and evicts its own blocks. When
nobody is above, those of the tenant that needs the block go first, and only then the oldest of all:
what runs comes before what is merely kept.
"""

from __future__ import annotations

from collections import OrderedDict


class CachedBlocks:
    """Blocks that only the prefix index knows, by tenant, each in the order of its caching."""

    def __init__(self, num_blocks: int) -> None:
        self._floors = num_blocks // 2
        # Every cached block, the longest cached first, and its tenant.
        self.tenant_of: dict[int, str] = {}
        # Per tenant: block → when it was cached.
        self._queues: dict[str, OrderedDict[int, int]] = {}
        self._now = 0

    def __len__(self) -> int:
        return len(self.tenant_of)

    def __contains__(self, block: int) -> bool:
        return block in self.tenant_of

    def add(self, block: int, tenant: str) -> None:
        """``block`` is cached from now on."""
        self._now += 1
        self.tenant_of[block] = tenant
        queue = self._queues.get(tenant)
        if queue is None:
            queue = self._queues[tenant] = OrderedDict()
        queue[block] = self._now

    def remove(self, block: int) -> None:
        """``block`` is held again, or forgotten."""
        tenant = self.tenant_of.pop(block)
        queue = self._queues[tenant]
        del queue[block]
        if not queue:
            del self._queues[tenant]

    def next(self, tenant: str) -> int:
        """The block to be evicted for ``tenant``. There must be one. O(tenants)."""
        floor, own = self.floor, self._queues.get(tenant)
        queues = [queue for queue in self._queues.values() if len(queue) > floor]
        if not queues:
            queues = [own] if own else list(self._queues.values())
        oldest = min(queues, key=_first_cached)
        return next(iter(oldest))

    @property
    def floor(self) -> int:
        """Blocks of one tenant that another's do not evict."""
        return self._floors // max(1, len(self._queues))

    def kept_from(self, tenant: str) -> int:
        """Blocks that a new sequence of ``tenant`` may not count on: the others', up to floors."""
        floor = self.floor
        return sum(min(floor, len(queue)) for name, queue in self._queues.items() if name != tenant)

    def counts(self) -> dict[str, int]:
        """Cached blocks of each tenant that has any."""
        return {tenant: len(queue) for tenant, queue in self._queues.items()}

    def __sizeof__(self) -> int:
        return self.tenant_of.__sizeof__() + sum(q.__sizeof__() for q in self._queues.values())

    def blocks(self) -> list[int]:
        """Every cached block, the longest cached first."""
        return list(self.tenant_of)


def _first_cached(queue: OrderedDict[int, int]) -> int:
    return next(iter(queue.values()))
