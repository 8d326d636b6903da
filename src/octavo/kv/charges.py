"""Who is charged with which bytes: the ledger's rows, per request and per tenant.

A step's count leaves columns of numbers, one entry per sequence. The rows are made of these when
somebody reads them, which is far more seldom.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.kv.block_table import NOBODY, Account, SequenceKV
from octavo.kv.sharing import Shared, Sharing


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

    def add_alone(self, other: Holding) -> None:
        """Add what ``other`` holds alone, before it is charged with what it shares."""
        self.used += other.used
        self.provisional += other.provisional
        self.tail_waste += other.tail_waste
        self.promised += other.promised

    def add_shared(self, shared: Shared, *, size: int, slot_bytes: int) -> None:
        """Add blocks of ``size`` slots that several tables hold, each once."""
        self.shared += shared.slots * slot_bytes
        self.tail_waste += (shared.blocks * size - shared.slots) * slot_bytes

    def as_dict(self) -> dict[str, int]:
        """Terms by name, for metrics and dumps."""
        terms = ((name, getattr(self, name)) for name in self.__dataclass_fields__)
        return {name: value for name, value in terms if isinstance(value, int)}


@dataclass(slots=True)
class GroupColumns:
    """What was counted of one KV group; lists have one entry per sequence.

    ``pinned_alone`` blocks are held by pins and no table: whole, and nobody's.
    """

    block_bytes: int
    first_blocks: list[int]
    promised: list[int]
    sharing: Sharing
    pinned_alone: int
    cached: dict[str, int]


@dataclass(slots=True)
class Columns:
    """What was counted of the sequences, in blocks of ``size`` slots."""

    size: int
    has_pins: bool
    sequences: list[SequenceKV]
    computed: list[int]
    reserved: list[int]
    groups: list[GroupColumns] = field(default_factory=list)


class Charges:
    """One row per request that runs (pins are nobody's), and one per tenant that holds anything.

    Without columns there is nobody. Equal if everybody is charged with the same.
    """

    __slots__ = ("_columns", "_requests", "_tenants")

    def __init__(self, columns: Columns | None = None) -> None:
        self._columns = columns
        self._requests: dict[Account, Holding] = {}
        self._tenants: dict[str, Holding] = {}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Charges):
            return NotImplemented
        return self.rows() == other.rows()

    __hash__ = None  # type: ignore[assignment]

    def rows(self) -> tuple[dict[Account, Holding], dict[str, Holding]]:
        """By request and by tenant; made once."""
        if self._columns is not None:
            columns, self._columns = self._columns, None
            _charge(columns, self._requests, self._tenants)
        return self._requests, self._tenants


def _charge(
    columns: Columns, requests: dict[Account, Holding], tenants: dict[str, Holding]
) -> None:
    size = columns.size
    for seq in columns.sequences:
        requests[seq.account] = Holding()
    if columns.has_pins:
        requests.setdefault(NOBODY, Holding())
    for group in columns.groups:
        _charge_alone(requests, columns, group)
    for account, holding in requests.items():
        tenants.setdefault(account.tenant, Holding()).add_alone(holding)
    for group in columns.groups:
        slot_bytes = group.block_bytes // size
        for account, shared in group.sharing.requests.items():
            requests[account].add_shared(shared, size=size, slot_bytes=slot_bytes)
        for tenant, shared in group.sharing.tenants.items():
            tenants[tenant].add_shared(shared, size=size, slot_bytes=slot_bytes)
        for tenant, count in group.cached.items():
            cached = tenants.setdefault(tenant, Holding())
            cached.cached_cold += count * group.block_bytes


def _charge_alone(requests: dict[Account, Holding], columns: Columns, group: GroupColumns) -> None:
    """Charge the requests with what they hold of one group alone."""
    size = columns.size
    slot_bytes = group.block_bytes // size
    rows = zip(
        columns.sequences, columns.computed, columns.reserved,
        group.first_blocks, group.promised, strict=True,
    )  # fmt: skip
    for seq, computed, reserved, first_block, promised in rows:
        holding, shared = requests[seq.account], group.sharing.tables.get(seq)
        used, waste = computed - first_block * size, -reserved % size
        if shared is not None:
            used -= shared.slots
            # A shared tail's waste is counted with it.
            waste = 0 if shared.slots % size else waste
        holding.used += used * slot_bytes
        holding.provisional += (reserved - computed) * slot_bytes
        holding.tail_waste += waste * slot_bytes
        holding.promised += promised * group.block_bytes
    if group.pinned_alone:
        requests[NOBODY].used += group.pinned_alone * size * slot_bytes
