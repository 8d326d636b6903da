"""Where every byte of the pool is, each term counted from its own owner, none by subtraction.

    used · shared      computed tokens in a sequence's tables (and pins), each block once
    provisional        reserved positions past the computed ones
    tail waste         slots past the reservation's end, in the block where it ends
    promised           by asking the sequences; free blocks first, then cached ones
    cached-cold, free  by asking the pool, less the blocks that are promised
    draining           blocks that only leases hold

"shared" are tokens in blocks that several tables hold, counted once. How many blocks are owned is
asked of the owner tokens, never of the tables, so a leaked, doubly freed or hidden block, a table
that holds more than its positions need, or promises past what is available break the sum (I10).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from octavo.kv.block_pool import BlockPool, OwnerKind
from octavo.kv.kv_state import KVState


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Bytes by state over all KV groups; ``orphan_blocks`` counts blocks that no term covers."""

    used: int = 0
    shared: int = 0
    provisional: int = 0
    tail_waste: int = 0
    promised: int = 0
    cached_cold: int = 0
    draining: int = 0
    free: int = 0
    pool: int = 0
    orphan_blocks: int = 0

    @property
    def accounted(self) -> int:
        """Sum of all terms: equals ``pool`` as long as every block has an owner."""
        return (
            self.used + self.shared + self.provisional + self.tail_waste
            + self.promised + self.cached_cold + self.draining + self.free
        )  # fmt: skip

    def as_dict(self) -> dict[str, int]:
        """Terms by name, for metrics and dumps."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def take_ledger(kv: KVState) -> Ledger:
    """Count every group's blocks. Cost: one pass over all table entries."""
    totals = dict.fromkeys((field.name for field in fields(Ledger)), 0)
    for group in range(len(kv.pools)):
        _count_group(kv, group, totals)
    return Ledger(**totals)


def _count_group(kv: KVState, group: int, totals: dict[str, int]) -> None:
    pool, size = kv.pools[group], kv.block_size
    # Without a byte size (a runner that only counts), a token slot is the unit.
    block_bytes = kv.groups[group].block_bytes or size
    held = _held_blocks(pool)
    slots = _owned_slots(kv, group, held)
    in_bytes = {name: count * block_bytes // size for name, count in slots.items()}
    for name, count in in_bytes.items():
        totals[name] += count
    # What is lost where a block's bytes do not divide into its slots; 0 for every real KV type.
    totals["tail_waste"] += sum(slots.values()) * block_bytes // size - sum(in_bytes.values())
    free, cached = pool.num_free, pool.num_cached
    promised = sum(seq.promised[group] for seq in kv.sequences)
    totals["promised"] += promised * block_bytes
    totals["free"] += max(0, free - promised) * block_bytes
    totals["cached_cold"] += max(0, cached - max(0, promised - free)) * block_bytes
    totals["draining"] += len(held.draining) * block_bytes
    totals["pool"] += pool.num_blocks * block_bytes
    totals["orphan_blocks"] += abs(
        pool.num_blocks - len(held.owned) - free - cached - len(held.draining)
    )


@dataclass(frozen=True, slots=True)
class _Held:
    """Who holds what: tables or pins, pins, only leases; and whether any block is held twice."""

    owned: set[int]
    pinned: set[int]
    draining: set[int]
    any_shared: bool


def _held_blocks(pool: BlockPool) -> _Held:
    by_kind: dict[OwnerKind, set[int]] = {kind: set() for kind in OwnerKind}
    num_holds = 0
    for kind, blocks in pool.owners():
        by_kind[kind].update(blocks)
        num_holds += len(blocks) if kind is not OwnerKind.LEASE else 0
    pinned = by_kind[OwnerKind.PIN]
    owned = by_kind[OwnerKind.TABLE] | pinned
    return _Held(owned, pinned, by_kind[OwnerKind.LEASE] - owned, num_holds > len(owned))


def _owned_slots(kv: KVState, group: int, held: _Held) -> dict[str, int]:
    """Token slots of owned blocks by state, from each sequence's positions, each block once."""
    size = kv.block_size
    computed: dict[int, int] = dict.fromkeys(held.pinned, size)
    provisional: dict[int, int] = {}
    waste: dict[int, int] = {}
    for seq in kv.sequences:
        table = seq.tables[group]
        whole = max(0, seq.num_computed // size - table.first_block)
        computed.update(dict.fromkeys(table.blocks[:whole], size))
        start = (table.first_block + whole) * size
        end = -(-seq.num_reserved // size) - table.first_block
        for block in table.blocks[whole:end]:
            filled = min(size, max(0, seq.num_computed - start))
            reserved = min(size, seq.num_reserved - start)
            if filled:
                computed.setdefault(block, filled)
            provisional[block] = max(provisional.get(block, 0), reserved - filled)
            waste[block] = size - reserved
            start += size
    refs, leases = kv.pools[group].refs, kv.pools[group].leases
    shared = sum(
        count
        for block, count in (computed.items() if held.any_shared else ())
        if refs[block] - leases[block] > 1
    )
    return {
        "used": sum(computed.values()) - shared,
        "shared": shared,
        "provisional": sum(provisional.values()),
        "tail_waste": sum(waste.values()),
    }
