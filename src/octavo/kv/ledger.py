"""Where every byte of the pool is, each term counted from its own owner, none by subtraction.

    owned blocks    used · shared · provisional · tail waste     (by walking the tables and pins)
    other blocks    cached-cold · draining · promised · free     (by asking the pool)

"shared" are tokens in blocks that several tables hold, counted once. "promised" are free blocks
spoken for by growth promises. Any leaked, doubly freed or hidden block breaks the sum (I10).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from octavo.kv.block_pool import OwnerKind
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
    pool = kv.pools[group]
    # Without a byte size (a runner that only counts), a token slot is the unit.
    block_bytes = kv.groups[group].block_bytes or kv.block_size
    slots = _owned_slots(kv, group)
    owned = slots.pop("blocks")
    for name, count in slots.items():
        totals[name] += count * block_bytes // kv.block_size
    # Rounding of a block's bytes to tokens is part of the blocks' waste.
    whole = sum(count * block_bytes // kv.block_size for count in slots.values())
    totals["tail_waste"] += owned * block_bytes - whole
    free = len(pool.free_blocks())
    promised = min(kv.promises.totals[group], free)
    totals["promised"] += promised * block_bytes
    totals["free"] += (free - promised) * block_bytes
    totals["cached_cold"] += pool.num_cached * block_bytes
    totals["draining"] += pool.num_draining * block_bytes
    totals["pool"] += pool.num_blocks * block_bytes
    known = owned + free + pool.num_cached + pool.num_draining
    totals["orphan_blocks"] += abs(pool.num_blocks - known)


def _owned_slots(kv: KVState, group: int) -> dict[str, int]:
    """Token slots of owned blocks by state, each block counted once, and the number of blocks."""
    size = kv.block_size
    refs, leases = kv.pools[group].refs, kv.pools[group].leases
    filled: dict[int, int] = {}
    reserved: dict[int, int] = {}
    for kind, blocks in kv.pools[group].owners():
        if kind is OwnerKind.PIN:
            filled.update(dict.fromkeys(blocks, size))
    for seq in kv.sequences:
        table = seq.tables[group]
        whole = max(0, seq.num_computed // size - table.first_block)
        filled.update(dict.fromkeys(table.blocks[:whole], size))
        start = (table.first_block + whole) * size
        for block in table.blocks[whole:]:
            filled[block] = max(filled.get(block, 0), min(size, max(0, seq.num_computed - start)))
            reserved[block] = max(reserved.get(block, 0), min(size, seq.num_reserved - start))
            start += size
    out = {"used": 0, "shared": 0, "provisional": 0, "tail_waste": 0, "blocks": len(filled)}
    for block, count in filled.items():
        out["shared" if refs[block] - leases[block] > 1 else "used"] += count
    for block, count in reserved.items():
        out["provisional"] += count - filled[block]
        out["tail_waste"] += size - count
    return out
