"""Which slots lie in blocks that several tables or pins hold: what the ledger must count once.

Found by one pass at C speed over the tables of a group, and kept until somebody starts or ceases
to share a block (``BlockPool.num_sharing_changes``): a shared block is never written, so its fill
stays what it was. While streams only decode, a step costs nothing here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import compress
from typing import NamedTuple, TypeVar

from octavo.kv.block_pool import BlockPool, OwnerKind
from octavo.kv.block_table import NOBODY, Account, BlockTable, SequenceKV

_Name = TypeVar("_Name")

# Shared block → computed slots in it.
Fills = dict[int, int]


class Shared(NamedTuple):
    """Shared blocks, each once, and the computed slots in them."""

    blocks: int = 0
    slots: int = 0


NOTHING = Shared()


@dataclass(frozen=True, slots=True)
class Sharing:
    """What one group's tables share: per table, per request, per tenant, and in total."""

    version: int
    tables: dict[SequenceKV, Shared] = field(default_factory=dict)
    requests: dict[Account, Shared] = field(default_factory=dict)
    tenants: dict[str, Shared] = field(default_factory=dict)
    total: Shared = NOTHING


def count_sharing(
    pool: BlockPool, sequences: Iterable[SequenceKV], *, group: int, size: int
) -> Sharing:
    """One pass over all tables and pins of a group whose blocks have ``size`` slots."""
    if 1 not in pool.shared:
        return Sharing(pool.num_sharing_changes)
    tables: dict[SequenceKV, Shared] = {}
    requests: dict[Account, Fills] = {}
    for seq in sequences:
        if fills := _fills(seq, seq.tables[group], marks=pool.shared, size=size):
            tables[seq] = _summed(fills)
            requests.setdefault(seq.account, {}).update(fills)
    for kind, held in pool.owners():
        if kind is OwnerKind.PIN:
            whole = [block for block in held if pool.shared[block]]
            requests.setdefault(NOBODY, {}).update(dict.fromkeys(whole, size))
    tenants: dict[str, Fills] = {}
    total: Fills = {}
    for account, fills in requests.items():
        tenants.setdefault(account.tenant, {}).update(fills)
        total.update(fills)
    return Sharing(
        pool.num_sharing_changes, tables, _sums(requests), _sums(tenants), _summed(total)
    )


def _fills(seq: SequenceKV, table: BlockTable, *, marks: bytearray, size: int) -> Fills:
    """A table's shared blocks. Only its tail can be filled in part."""
    mine = bytes(map(marks.__getitem__, table.blocks))
    if 1 not in mine:
        return {}
    fills = dict.fromkeys(compress(table.blocks, mine), size)
    whole = max(0, seq.num_computed // size - table.first_block)
    if 1 in mine[whole:]:
        fills[table.blocks[whole]] = seq.num_computed % size
    return fills


def _summed(fills: Fills) -> Shared:
    return Shared(len(fills), sum(fills.values()))


def _sums(rows: Mapping[_Name, Fills]) -> dict[_Name, Shared]:
    return {name: _summed(fills) for name, fills in rows.items()}
