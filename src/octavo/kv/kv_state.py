"""The books of the KV cache: pools, index, promises, and the holds of the step in flight."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from octavo.core.runner import RunnerInfo
from octavo.kv.block_pool import BlockPool, OwnerKind
from octavo.kv.block_table import SequenceKV
from octavo.kv.prefix_index import Node, PrefixIndex
from octavo.kv.promises import Promises
from octavo.kv.sharing import Sharing, count_sharing


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """A pinned prefix of ``length`` tokens: per group the pin and the blocks that it reads.

    ``blocks[g]`` starts at logical block ``first_blocks[g]``; if ``length`` ends inside a block,
    the last one is only a source to copy from. ``node`` is that of the last whole block.
    """

    length: int
    pins: tuple[int, ...]
    first_blocks: tuple[int, ...]
    blocks: tuple[tuple[int, ...], ...]
    node: Node | None


class KVState:
    """One pool per KV group, one index, one sum of promises, every sequence that holds blocks.

    ``max_chunk`` bounds the tokens that one step adds to one sequence (it sizes windows).
    """

    def __init__(self, info: RunnerInfo, *, prefix_cache: bool, max_chunk: int) -> None:
        self.block_size = info.block_size
        self.groups = info.groups
        windows = [group.window for group in info.groups]
        self.index = PrefixIndex(info.block_size, windows)
        self.pools = [
            BlockPool(info.num_blocks, partial(self.forget, group)) for group in range(len(windows))
        ]
        self.promises = Promises(info.block_size, windows, max_chunk)
        self.sequences: dict[SequenceKV, None] = {}
        self.num_cow_copies = 0
        self.num_query_tokens = 0
        self.num_hit_tokens = 0
        self.num_partial_hits = 0
        # Per group: lease token → block → how many of its leading slots the reader may read.
        self.lease_fills: list[dict[int, dict[int, int]]] = [{} for _ in windows]
        self._sharings: list[Sharing | None] = [None] * len(windows)
        self._prefix_cache = prefix_cache
        self.has_windows = any(window is not None for window in windows)
        self._step_leases: list[int | None] = [None] * len(windows)
        self._pins: dict[int, None] = {}

    # -- holds of the step in flight ---------------------------------------------------------

    def lease_for_step(self, group: int, block: int, num_tokens: int) -> None:
        """The step in flight reads ``num_tokens`` slots of ``block``: not reused until it ends."""
        owner = self._step_leases[group]
        if owner is None:
            owner = self._step_leases[group] = self.open_lease(group)
        self.pools[group].share(owner, (block,))
        fills = self.lease_fills[group][owner]
        fills[block] = max(fills.get(block, 0), num_tokens)

    def open_lease(self, group: int) -> int:
        """A new lease token of one group; what it covers goes into ``lease_fills``."""
        owner = self.pools[group].open(OwnerKind.LEASE)
        self.lease_fills[group][owner] = {}
        return owner

    def close_lease(self, group: int, owner: int) -> None:
        """End a lease. Idempotent."""
        self.pools[group].close(owner)
        self.lease_fills[group].pop(owner, None)

    def end_step(self) -> None:
        """The step in flight has ended, well or badly: its read leases end. Idempotent."""
        for group, owner in enumerate(self._step_leases):
            if owner is not None:
                self.close_lease(group, owner)
                self._step_leases[group] = None

    def unpin(self, hit: PrefixHit) -> None:
        """The hit is no longer needed. Idempotent."""
        for pool, pin, blocks in zip(self.pools, hit.pins, hit.blocks, strict=True):
            pool.close(pin, blocks[::-1])
        self._pins.pop(hit.pins[0], None)

    @property
    def num_step_leases(self) -> int:
        """Groups in which a step in flight reads blocks (0 between steps)."""
        return sum(owner is not None for owner in self._step_leases)

    @property
    def num_pins(self) -> int:
        """Prefix hits that are pinned right now (0 between steps)."""
        return len(self._pins)

    # -- balance -----------------------------------------------------------------------------

    def forget(self, group: int, block: int) -> None:
        """Remove one block from the prefix index; if nobody holds it, it becomes free."""
        self.index.forget_block(group, block)
        self.pools[group].unmark_indexed(block)

    @property
    def num_changes(self) -> int:
        """Grows whenever a block changes hands: until then a ledger that sums goes on to."""
        return sum([pool.num_changes for pool in self.pools])

    def sharing(self, group: int) -> Sharing:
        """What the group's tables share now, counted again only if that has changed."""
        known, pool = self._sharings[group], self.pools[group]
        if known is None or known.version != pool.num_sharing_changes:
            known = count_sharing(pool, self.sequences, group=group, size=self.block_size)
            self._sharings[group] = known
        return known

    def shed_promises(self) -> None:
        """Make promises fit what is available (needed only under policies that underestimate)."""
        for total, pool in zip(self.promises.totals, self.pools, strict=True):
            if total > pool.num_available:
                self.promises.shed(
                    [pool.num_available for pool in self.pools], reversed(self.sequences)
                )
                return
