"""Logical to physical: the block tables of one sequence, one per KV group.

    positions     0        P       2P       3P   …
    table        [gone ] [ b7  ] [ b2  ] [ b9 _ ]
                  ^ first_block = 1 (a window moved past block 0)   ^ tail, partly filled

Entry i of ``blocks`` covers positions (first_block + i) · P … + P.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from octavo.core.step import TableUpdate

if TYPE_CHECKING:
    from octavo.kv.prefix_index import Node


class Account(NamedTuple):
    """Who is charged for a sequence's blocks: one request of one tenant."""

    tenant: str
    request_id: str


NOBODY = Account("", "")


class BlockTable:
    """One group's table and the owner token that holds its blocks.

    ``num_synced`` leading entries are known to the runner; the rest go with the next plan.
    """

    __slots__ = ("blocks", "first_block", "num_synced", "owner")

    def __init__(self, owner: int) -> None:
        self.owner = owner
        self.blocks: list[int] = []
        self.first_block = 0
        self.num_synced = 0

    @property
    def end_block(self) -> int:
        """Logical index one past the last entry."""
        return self.first_block + len(self.blocks)

    def replace_tail(self, block: int) -> int:
        """Put a private copy in place of the tail; returns the block that it replaces."""
        old = self.blocks[-1]
        self.blocks[-1] = block
        self.num_synced = min(self.num_synced, len(self.blocks) - 1)
        return old

    def truncate(self, end_block: int) -> list[int]:
        """Drop entries from logical index ``end_block`` on; returns them, tail first."""
        keep = max(0, end_block - self.first_block)
        dropped = self.blocks[keep:]
        del self.blocks[keep:]
        self.num_synced = min(self.num_synced, keep)
        return dropped[::-1]

    def drop_front(self, first_block: int) -> list[int]:
        """Drop entries before logical index ``first_block`` (a window moved); returns them."""
        count = min(first_block - self.first_block, len(self.blocks))
        dropped = self.blocks[:count]
        del self.blocks[:count]
        self.first_block += count
        # Indices have shifted: the runner gets the whole (short) table again.
        self.num_synced = 0
        return dropped

    def take_update(self, group: int, block_size: int) -> TableUpdate:
        """What the runner does not know yet; afterwards it does."""
        synced = self.num_synced
        self.num_synced = len(self.blocks)
        fresh = tuple(self.blocks[synced:])
        return TableUpdate(group, self.first_block * block_size, synced, fresh)


class SequenceKV:
    """All KV of one sequence: its tables and how far they are computed, reserved and published.

    ``num_computed`` tokens are committed, ``num_reserved`` ≥ that many have a slot; in between lie
    the provisional ones of the step in flight. ``node`` is the last published block's index node.
    Up to ``writable_until`` tokens it can grow in place: its tables have the blocks, the tails are
    its own. ``target_tokens`` and ``spare_branches`` say what growth is promised (see
    ``kv.promises``). ``account`` is charged for all of it in the ledger;
    what it leaves in the cache counts as its tenant's, which has a floor there.
    """

    __slots__ = (
        "account",
        "cow_due",
        "digest",
        "node",
        "num_computed",
        "num_published",
        "num_reserved",
        "promised",
        "publishing",
        "spare_branches",
        "spare_from",
        "tables",
        "target_tokens",
        "writable_until",
    )

    def __init__(
        self, digest: bytes, tables: list[BlockTable], *, account: Account, publishing: bool
    ) -> None:
        self.account = account
        self.digest = digest
        self.tables = tables
        self.num_computed = 0
        self.num_reserved = 0
        self.num_published = 0
        self.writable_until = 0
        self.node: Node | None = None
        self.publishing = publishing
        self.target_tokens = 0
        self.spare_branches = 0
        self.spare_from = 0
        self.cow_due = False
        self.promised = [0] * len(tables)

    def take_updates(self, block_size: int) -> tuple[TableUpdate, ...]:
        """What the runner does not know yet of each group's table; afterwards it does."""
        return tuple(
            [
                table.take_update(group, block_size)
                for group, table in enumerate(self.tables)
                if table.num_synced != len(table.blocks)
            ]
        )
