"""The ledger once more, block by block: slow and obvious, held against ``kv.take_ledger``."""

from __future__ import annotations

from octavo.kv.block_pool import OwnerKind
from octavo.kv.block_table import NOBODY, Account, SequenceKV
from octavo.kv.charges import Holding
from octavo.kv.kv_state import KVState
from octavo.kv.ledger import Ledger


def recount(kv: KVState) -> Ledger:
    """What the ledger must say, from the owner tokens of every single block."""
    ledger = Ledger()
    for seq in kv.sequences:
        ledger.requests.setdefault(seq.account, Holding())
    if kv.num_pins:
        ledger.requests.setdefault(NOBODY, Holding())
    for account in ledger.requests:
        ledger.tenants.setdefault(account.tenant, Holding())
    for group, pool in enumerate(kv.pools):
        block_bytes = kv.groups[group].block_bytes or kv.block_size
        for seq in kv.sequences:
            for holding in _rows(ledger, [seq.account]):
                holding.promised += seq.promised[group] * block_bytes
        num_promised = sum(seq.promised[group] for seq in kv.sequences)
        ledger.pool += pool.num_blocks * block_bytes
        # Promises are carried by free blocks first, then by cached ones.
        for idle, name in ((pool.free_blocks(), "free"), (pool.cached_blocks(), "cached_cold")):
            carried = min(num_promised, len(idle))
            num_promised -= carried
            setattr(ledger, name, getattr(ledger, name) + (len(idle) - carried) * block_bytes)
        for block in range(pool.num_blocks):
            _count_block(kv, ledger, group=group, block=block)
    return ledger


def _count_block(kv: KVState, ledger: Ledger, *, group: int, block: int) -> None:
    pool, size = kv.pools[group], kv.block_size
    block_bytes = kv.groups[group].block_bytes or size
    slot_bytes = block_bytes // size
    tables = [seq for seq in kv.sequences if block in pool.held_by(seq.tables[group].owner)]
    kinds = [kind for kind, held in pool.owners() if block in held]
    num_pins = kinds.count(OwnerKind.PIN)
    if not kinds:
        if block in pool.cached_blocks():
            tenant = pool._tenants[block]
            ledger.tenants.setdefault(tenant, Holding()).cached_cold += block_bytes
        ledger.orphan_blocks += (block in pool.free_blocks()) == (block in pool.cached_blocks())
    elif not tables and not num_pins:
        ledger.draining += block_bytes
    else:
        ledger.padding += block_bytes - slot_bytes * size
        slots = [_slots(seq, block, group=group, size=size) for seq in tables] + [
            (size, 0)
        ] * num_pins
        computed, provisional = (max(column) for column in zip(*slots, strict=True))
        accounts = [seq.account for seq in tables] + [NOBODY] * num_pins
        for holding in _rows(ledger, accounts):
            if len(slots) > 1:
                holding.shared += computed * slot_bytes
            else:
                holding.used += computed * slot_bytes
            holding.provisional += provisional * slot_bytes
            holding.tail_waste += (size - computed - provisional) * slot_bytes


def _rows(ledger: Ledger, accounts: list[Account]) -> list[Holding]:
    """The total, and each request and tenant among the accounts once."""
    requests = [ledger.requests[account] for account in set(accounts)]
    tenants = [ledger.tenants[tenant] for tenant in {account.tenant for account in accounts}]
    return [ledger, *requests, *tenants]


def _slots(seq: SequenceKV, block: int, *, group: int, size: int) -> tuple[int, int]:
    """Computed and provisional slots that a sequence has in a block of its table."""
    table = seq.tables[group]
    start = (table.first_block + table.blocks.index(block)) * size
    computed = min(size, max(0, seq.num_computed - start))
    reserved = min(size, max(0, seq.num_reserved - start))
    return computed, reserved - computed
