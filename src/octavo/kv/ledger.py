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
available break the sum (I10). The cost is a few operations per sequence and step, and a pass over
the tables when sharing has changed; ``octavo.testing.recount`` is the slow, obvious twin.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from octavo.kv.block_pool import OwnerKind
from octavo.kv.block_table import NOBODY, Account
from octavo.kv.kv_state import KVState
from octavo.kv.sharing import Shared


@dataclass(slots=True)
class Holding:
    """Bytes that one request or tenant is charged with.

    A request has nothing cached. A tenant has all that is cached of its prefixes, even what carries
    promises; the total's "cached_cold" is without that.
    """

    used: int = 0
    shared: int = 0
    provisional: int = 0
    tail_waste: int = 0
    promised: int = 0
    cached_cold: int = 0

    def add(self, other: Holding) -> None:
        """Add what ``other`` holds alone."""
        self.used += other.used
        self.provisional += other.provisional
        self.tail_waste += other.tail_waste
        self.promised += other.promised

    def as_dict(self) -> dict[str, int]:
        """Terms by name, for metrics and dumps."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__ if name in _TERMS}


@dataclass(slots=True)
class Ledger(Holding):
    """Bytes by state over all KV groups; ``orphan_blocks`` counts blocks that no term covers."""

    draining: int = 0
    free: int = 0
    padding: int = 0
    pool: int = 0
    orphan_blocks: int = 0
    requests: dict[Account, Holding] = field(default_factory=dict)
    tenants: dict[str, Holding] = field(default_factory=dict)

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


_TERMS = {term.name for term in fields(Ledger)} - {"requests", "tenants"}


def take_ledger(kv: KVState) -> Ledger:
    """Count every block, between steps or with one in flight."""
    ledger = Ledger()
    requests = ledger.requests
    for seq in kv.sequences:
        if seq.account not in requests:
            requests[seq.account] = Holding()
    if kv.num_pins:
        requests.setdefault(NOBODY, Holding())
    groups = [_GroupCount(kv, group) for group in range(len(kv.pools))]
    for count in groups:
        count.charge(requests)
    for account, holding in requests.items():
        ledger.tenants.setdefault(account.tenant, Holding()).add(holding)
        ledger.add(holding)
    for count in groups:
        count.enter_shared(ledger)
        count.enter_pool(ledger)
    return ledger


class _GroupCount:
    """One group's blocks on their way into the ledger."""

    def __init__(self, kv: KVState, group: int) -> None:
        self._kv = kv
        self._group = group
        self._pool = kv.pools[group]
        self._size = kv.block_size
        # Without a byte size (a runner that only counts), a token slot is the unit.
        self._block_bytes = kv.groups[group].block_bytes or kv.block_size
        self._slot_bytes = self._block_bytes // kv.block_size
        self._sharing = kv.sharing(group)
        self._num_owned = 0
        self._num_promised = 0
        self._num_entries = 0

    def charge(self, requests: dict[Account, Holding]) -> None:
        """Charge the requests with what they hold alone."""
        # Hot: once per sequence and step.
        group, size, slot_bytes = self._group, self._size, self._slot_bytes
        shared = self._sharing.tables
        for seq in self._kv.sequences:
            table, holding = seq.tables[group], requests[seq.account]
            computed, reserved = seq.num_computed, seq.num_reserved
            used, waste = computed - table.first_block * size, -reserved % size
            num_alone = num_entries = len(table.blocks)
            if seq in shared:
                blocks, slots = shared[seq]
                used, num_alone = used - slots, num_alone - blocks
                # A shared tail's waste is counted with it.
                waste = 0 if slots % size else waste
            self._num_owned += num_alone
            self._num_entries += num_entries
            self._num_promised += seq.promised[group]
            holding.used += used * slot_bytes
            holding.provisional += (reserved - computed) * slot_bytes
            holding.tail_waste += waste * slot_bytes
            holding.promised += seq.promised[group] * self._block_bytes
        if self._kv.num_pins:
            self._charge_pins(requests[NOBODY])

    def _charge_pins(self, nobody: Holding) -> None:
        """Blocks of prefix hits that no sequence has taken over yet: whole, and nobody's."""
        marks = self._pool.shared
        for kind, held in self._pool.owners():
            if kind is OwnerKind.PIN:
                num_alone = sum(not marks[block] for block in held)
                self._num_entries += len(held)
                self._num_owned += num_alone
                nobody.used += num_alone * self._size * self._slot_bytes

    def enter_shared(self, ledger: Ledger) -> None:
        """Charge each shared block once to each request, each tenant, and the total."""
        sharing = self._sharing
        for account, shared in sharing.requests.items():
            self._add_shared(ledger.requests[account], shared)
        for tenant, shared in sharing.tenants.items():
            self._add_shared(ledger.tenants[tenant], shared)
        self._add_shared(ledger, sharing.total)
        self._num_owned += sharing.total.blocks

    def _add_shared(self, holding: Holding, shared: Shared) -> None:
        blocks, slots = shared
        holding.shared += slots * self._slot_bytes
        holding.tail_waste += (blocks * self._size - slots) * self._slot_bytes

    def enter_pool(self, ledger: Ledger) -> None:
        """What no request holds, as the pool itself tells it; and whether all blocks are there."""
        pool, block_bytes = self._pool, self._block_bytes
        num_held = 0
        draining: set[int] = set()
        for kind, held in pool.owners():
            if kind is OwnerKind.LEASE:
                draining.update(b for b in held if pool.refs[b] == pool.leases[b])
            else:
                num_held += len(held)
        free, cached, promised = pool.num_free, pool.num_cached, self._num_promised
        ledger.free += max(0, free - promised) * block_bytes
        ledger.cached_cold += max(0, cached - max(0, promised - free)) * block_bytes
        ledger.draining += len(draining) * block_bytes
        for tenant, count in pool.cached_by_tenant().items():
            ledger.tenants.setdefault(tenant, Holding()).cached_cold += count * block_bytes
        ledger.padding += self._num_owned * (block_bytes - self._size * self._slot_bytes)
        ledger.pool += pool.num_blocks * block_bytes
        # Tokens and tables must name as many blocks, and the states must cover the pool.
        ledger.orphan_blocks += abs(num_held - self._num_entries) + abs(
            pool.num_blocks - self._num_owned - free - cached - len(draining)
        )


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
