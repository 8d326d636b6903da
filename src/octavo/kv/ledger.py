"""Where every byte of the pool is, each term counted from its own owner, none by subtraction.

    by asking each sequence for its positions, and its table which of its blocks are shared
        used · shared      computed tokens; "shared" lie in blocks that several tables hold
        provisional        reserved positions past the computed ones
        tail waste         slots past the reservation's end, in the block where it ends
        promised           growth that it is owed; free blocks carry it first, then cached ones
    by asking the pool
        cached-cold, free  less the blocks that carry promises
        draining           blocks that only leases hold
    by the block's size
        padding            bytes of an owned block that no slot has (0 for every real KV type)

Each term is given per request, per tenant and in total. A shared block counts once in each: once
for a request whose branches share it, once for a tenant whose requests share it, once in all. So
requests do not add up to their tenant where they share, but tenants, which share nothing with each
other, add up to the total.

How many blocks are owned is asked of the owner tokens, never of the tables, so a leaked, doubly
freed or hidden block, a table that holds more than its positions need, or promises past what is
available break the sum (I10). The cost is a few sums per step over columns with one number per
sequence, and a pass over the tables when sharing has changed; the rows of requests and tenants are
made of the same columns when somebody reads them. ``octavo.testing.recount`` is the slow, obvious
twin.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter

from octavo.kv.block_pool import BlockPool
from octavo.kv.block_table import Account
from octavo.kv.charges import Charges, Columns, GroupColumns, Holding
from octavo.kv.kv_state import KVState

_num_computed = attrgetter("num_computed")
_num_reserved = attrgetter("num_reserved")
_first_block = attrgetter("first_block")
_blocks = attrgetter("blocks")


@dataclass(slots=True)
class Ledger(Holding):
    """Bytes by state over all KV groups; ``orphan_blocks`` counts blocks that no term covers.

    ``charges`` says whose they are.
    """

    draining: int = 0
    free: int = 0
    padding: int = 0
    pool: int = 0
    orphan_blocks: int = 0
    charges: Charges = field(default_factory=Charges)

    @property
    def requests(self) -> dict[Account, Holding]:
        """What each request is charged with."""
        return self.charges.rows()[0]

    @property
    def tenants(self) -> dict[str, Holding]:
        """What each tenant is charged with."""
        return self.charges.rows()[1]

    @property
    def held(self) -> int:
        """Bytes of blocks that tables or pins hold."""
        return self.used + self.shared + self.provisional + self.tail_waste + self.padding

    @property
    def accounted(self) -> int:
        """Sum of all terms: equals ``pool`` as long as every block has an owner."""
        return self.held + self.promised + self.cached_cold + self.draining + self.free

    def violations(self) -> list[str]:
        """I10 in words, where it does not hold."""
        found = []
        if self.accounted != self.pool:
            found.append(f"I10: the ledger sums to {self.accounted} of {self.pool} bytes")
        if self.orphan_blocks:
            found.append(f"I10: {self.orphan_blocks} blocks are in no state, or in two")
        return found


def take_ledger(kv: KVState) -> Ledger:
    """Count every block, between steps or with one in flight."""
    # Hot: once per step over all sequences. So columns, summed at C speed.
    sequences = list(kv.sequences)
    columns = Columns(
        kv.block_size,
        bool(kv.num_pins),
        sequences,
        list(map(_num_computed, sequences)),
        list(map(_num_reserved, sequences)),
    )
    ledger = Ledger(charges=Charges(columns))
    for group in range(len(kv.pools)):
        _enter_group(ledger, kv, columns, group=group)
    return ledger


def _enter_group(ledger: Ledger, kv: KVState, columns: Columns, *, group: int) -> None:
    """One group's blocks, as the sequences, their tables and pins tell of them."""
    size, pool, sequences = columns.size, kv.pools[group], columns.sequences
    # Without a byte size (a runner that only counts), a token slot is the unit.
    block_bytes = kv.groups[group].block_bytes or size
    slot_bytes = block_bytes // size
    tables = [seq.tables[group] for seq in sequences]
    first_blocks, promised = list(map(_first_block, tables)), [s.promised[group] for s in sequences]
    sharing, cached = kv.sharing(group), pool.cached_by_tenant()
    num_pinned, pinned_alone = pool.count_pinned() if columns.has_pins else (0, 0)
    columns.groups.append(
        GroupColumns(block_bytes, first_blocks, promised, sharing, pinned_alone, cached)
    )
    num_entries = sum(map(len, map(_blocks, tables)))
    num_alone, used = num_entries, sum(columns.computed) - sum(first_blocks) * size
    waste = sum([-end % size for end in columns.reserved])
    for seq, (blocks, slots) in sharing.tables.items():
        num_alone, used = num_alone - blocks, used - slots
        # A shared tail's waste is counted with it.
        waste -= -seq.num_reserved % size if slots % size else 0
    ledger.used += (used + pinned_alone * size) * slot_bytes
    ledger.provisional += (sum(columns.reserved) - sum(columns.computed)) * slot_bytes
    ledger.tail_waste += waste * slot_bytes
    if sharing.total.blocks:
        ledger.add_shared(sharing.total, size=size, slot_bytes=slot_bytes)
    num_owned = num_alone + pinned_alone + sharing.total.blocks
    ledger.padding += num_owned * (block_bytes - size * slot_bytes)
    ledger.promised += sum(promised) * block_bytes
    num_idle = _enter_pool(ledger, pool, num_promised=sum(promised), block_bytes=block_bytes)
    # Tokens and tables must name as many blocks, and the states must cover the pool.
    ledger.orphan_blocks += abs(pool.count_owned() - num_entries - num_pinned) + abs(
        pool.num_blocks - num_owned - num_idle
    )


def _enter_pool(ledger: Ledger, pool: BlockPool, *, num_promised: int, block_bytes: int) -> int:
    """What no request holds, as the pool itself tells it; returns how many blocks that is."""
    free, cached, draining = pool.num_free, pool.num_cached, pool.count_draining()
    ledger.free += max(0, free - num_promised) * block_bytes
    ledger.cached_cold += max(0, cached - max(0, num_promised - free)) * block_bytes
    ledger.draining += draining * block_bytes
    ledger.pool += pool.num_blocks * block_bytes
    return free + cached + draining


def metadata_bytes(kv: KVState) -> int:
    """Memory of the books beside the pool: per block, per owner token, per table entry.

    Of the prefix index only the entry of each block counts, not the tokens that its nodes keep.
    """
    tables = (table for seq in kv.sequences for table in seq.tables)
    return (
        sum(pool.metadata_bytes for pool in kv.pools)
        + sum(table.blocks.__sizeof__() for table in tables)
        + sum(kv.index.blocks(group).__sizeof__() for group in range(len(kv.pools)))
    )
