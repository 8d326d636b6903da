"""All blocks that one step can touch, reserved as one transaction: all or nothing.

    begin → grow(seq, q) … admit(seq, q, hit) … extend(seq, …) … → seal → copies | None
            └ arithmetic only, per KV group:       └ allocates; any refusal undoes every
              Σ need ≤ free + evictable              allocation made so far

Without sharing or windows, "Σ need ≤ free + evictable" is Σ⌈(Tᵢ+qᵢ)/P⌉ ≤ available + owned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.core.step import BlockCopy
from octavo.kv.block_table import BlockTable, SequenceKV
from octavo.kv.kv_state import KVState, PrefixHit


@dataclass(slots=True)
class _Row:
    """One sequence's part: ``new`` blocks per group, groups whose tail must be copied first."""

    seq: SequenceKV
    end: int
    new: list[int]
    cow_groups: list[int]
    hit: PrefixHit | None = None


class StepReservation:
    """Collects rows, then allocates for all of them or none."""

    __slots__ = ("_consumed", "_derefs", "_extended", "_kv", "_need", "_quiet", "_rows", "_used")

    def __init__(self, kv: KVState) -> None:
        self._kv = kv
        self._need = [0] * len(kv.pools)
        self._consumed = [0] * len(kv.pools)
        self._derefs: dict[tuple[int, int], int] = {}
        self._used: dict[tuple[int, SequenceKV], int] = {}  # of its promise in a group, by its row
        self._rows: list[_Row] = []
        self._quiet: list[tuple[SequenceKV, int]] = []
        self._extended: list[tuple[SequenceKV, int]] = []

    def grow(self, seq: SequenceKV, num_tokens: int) -> bool:
        """Add ``num_tokens`` slots to a running sequence; False, and no change, if too few."""
        start = seq.num_computed
        end = start + num_tokens
        if end <= seq.writable_until:
            self._quiet.append((seq, end))
            return True
        kv = self._kv
        end_block = (end + kv.block_size - 1) // kv.block_size
        mid_block = start % kv.block_size != 0
        new: list[int] = []
        cow_groups: list[int] = []
        quiet = True
        for group, table in enumerate(seq.tables):
            extra = end_block - table.first_block - len(table.blocks)
            new.append(extra)
            if mid_block and self._is_shared(group, table.blocks[-1]):
                cow_groups.append(group)
                quiet = False
            if extra:
                quiet = False
        if quiet:
            self._quiet.append((seq, end))
            return True
        return self._take(_Row(seq, end, new, cow_groups))

    def _is_shared(self, group: int, block: int) -> bool:
        """Whether another table still holds the block once the copies of this step are made."""
        pool = self._kv.pools[group]
        if pool.refs[block] == 1:
            return False
        return pool.refs[block] - pool.leases[block] - self._derefs.get((group, block), 0) > 1

    def _take(self, row: _Row) -> bool:
        for group, pool in enumerate(self._kv.pools):
            need = row.new[group] + (group in row.cow_groups)
            if need > pool.num_available - self._need[group]:
                return False
        for group, table in enumerate(row.seq.tables):
            need = row.new[group] + (group in row.cow_groups)
            self._need[group] += need
            if used := min(need, row.seq.promised[group]):
                self._consumed[group] += used
                self._used[group, row.seq] = used
            if group in row.cow_groups:
                key = (group, table.blocks[-1])
                self._derefs[key] = self._derefs.get(key, 0) + 1
        self._rows.append(row)
        return True

    def admit(
        self, seq: SequenceKV, num_tokens: int, *, hit: PrefixHit | None, demand: Sequence[int]
    ) -> bool:
        """Add a sequence that holds nothing yet. ``demand`` is all that it is promised, per group.

        Whole blocks of the hit count against it; nothing promised to others may be taken, and
        while anybody else holds blocks, no cached ones within the floors of other tenants.
        """
        kv = self._kv
        cached = hit.length if hit else 0
        whole = cached // kv.block_size
        end = cached + num_tokens
        new = [-(-end // kv.block_size) - whole] * len(kv.pools)
        owed = []
        alone = len(kv.sequences) == 1
        for group, pool in enumerate(kv.pools):
            shared = whole - hit.first_blocks[group] if hit else 0
            owed.append(max(new[group], demand[group] - shared))
            promised = kv.promises.totals[group] - self._consumed[group]
            kept = 0 if alone else pool.num_kept_from(seq.account.tenant)
            if owed[group] > pool.num_available - self._need[group] - promised - kept:
                return False
        for group in range(len(kv.pools)):
            self._need[group] += new[group]
            # Not yet in the totals: held back here until the sequence is in the books.
            self._consumed[group] -= owed[group] - new[group]
        self._rows.append(_Row(seq, end, new, [], hit))
        return True

    def extend(self, seq: SequenceKV, end: int, num_tokens: int) -> int:
        """At most ``num_tokens`` provisional slots behind the ``end`` tokens that ``seq`` has here.

        Only what ``seq`` itself was promised and what nobody was promised may be taken, so nothing
        that is provisional costs another sequence its blocks. Returns how many slots there are:
        all, or those left in the tail. Ask at most once per sequence, after all other rows.
        """
        size = self._kv.block_size
        end_block = -(-end // size)
        extra = -(-(end + num_tokens) // size) - end_block
        slack = self.slack() if extra else []
        owns = []
        for group, free in enumerate(slack):
            used = self._used.get((group, seq), int(seq.cow_due))
            owns.append(min(extra, max(0, seq.promised[group] - used)))
            # ``free`` is what is left beside all promises, so what it owns is there.
            if extra - owns[group] > free:
                num_tokens, extra = end_block * size - end, 0
                break
        if extra:
            for group, own in enumerate(owns):
                self._need[group] += extra
                self._consumed[group] += own
            self._rows.append(_Row(seq, end + num_tokens, [extra] * len(owns), []))
        elif num_tokens:
            self._extended.append((seq, end + num_tokens))
        return num_tokens

    def grow_path(self, path: SequenceKV, num_tokens: int) -> bool:
        """Add ``num_tokens`` provisional slots to a fork that lives for this step alone.

        As with ``extend``, nothing that anybody was promised may be taken. A copied tail counts.
        """
        size = self._kv.block_size
        need = -(-(path.num_computed + num_tokens) // size) - path.num_computed // size
        return all(need <= free for free in self.slack()) and self.grow(path, num_tokens)

    def slack(self) -> list[int]:
        """Blocks per group that are neither needed by these rows nor promised to anybody."""
        totals = self._kv.promises.totals
        return [
            pool.num_available - self._need[group] - (totals[group] - self._consumed[group])
            for group, pool in enumerate(self._kv.pools)
        ]

    # -- all or nothing ----------------------------------------------------------------------

    def seal(self) -> list[BlockCopy] | None:
        """Allocate everything; the copies to make before the step writes, or None if refused."""
        taken: list[tuple[_Row, int, list[int]]] = []
        for row in self._rows:
            for group, table in enumerate(row.seq.tables):
                count = row.new[group] + (group in row.cow_groups)
                blocks = self._kv.pools[group].allocate(table.owner, count) if count else []
                if blocks is None:
                    self._undo(taken)
                    return None
                taken.append((row, group, blocks))
        copies: list[BlockCopy] = []
        for row, group, blocks in taken:
            copies += self._apply(row, group, blocks)
        self._settle()
        return copies

    def _undo(self, taken: list[tuple[_Row, int, list[int]]]) -> None:
        for row, group, blocks in reversed(taken):
            self._kv.pools[group].release(row.seq.tables[group].owner, blocks[::-1])

    def _apply(self, row: _Row, group: int, blocks: list[int]) -> list[BlockCopy]:
        """Put one group's new blocks into the table, behind what is shared or copied."""
        table = row.seq.tables[group]
        copies: list[BlockCopy] = []
        if row.hit is not None:
            copies = self._share_hit(row.hit, group, table, first_new=blocks[0])
        elif group in row.cow_groups:
            private = blocks.pop(0)
            source = table.replace_tail(private)
            fill = row.seq.num_computed % self._kv.block_size
            self._kv.lease_for_step(group, source, fill)
            self._kv.pools[group].release(table.owner, (source,))
            copies = [BlockCopy(src=source, dst=private, num_tokens=fill, group=group)]
            self._kv.num_cow_copies += 1
        table.blocks.extend(blocks)
        return copies

    def _share_hit(
        self, hit: PrefixHit, group: int, table: BlockTable, *, first_new: int
    ) -> list[BlockCopy]:
        """Share the hit's whole blocks; its partly used last one is copied to ``first_new``."""
        kv = self._kv
        fill = hit.length % kv.block_size
        shared = list(hit.blocks[group])
        copies = []
        if fill:
            source = shared.pop()
            kv.lease_for_step(group, source, fill)
            copies.append(BlockCopy(src=source, dst=first_new, num_tokens=fill, group=group))
            kv.num_partial_hits += group == 0
        kv.pools[group].share(table.owner, shared)
        table.first_block = hit.first_blocks[group]
        table.blocks = shared
        return copies

    def _settle(self) -> None:
        size = self._kv.block_size
        for seq, end in self._quiet:
            seq.num_reserved = end
            if end > seq.writable_until:
                seq.writable_until = -(-end // size) * size
            if seq.cow_due:
                seq.cow_due = False
                self._kv.promises.refresh(seq)
        for row in self._rows:
            seq = row.seq
            if row.hit is not None:
                seq.num_computed = row.hit.length
                seq.node = row.hit.node
                seq.num_published = row.hit.length // size
                self._kv.unpin(row.hit)
            seq.num_reserved = row.end
            seq.writable_until = -(-row.end // size) * size
            seq.cow_due = False
            self._kv.promises.refresh(seq)
        for seq, end in self._extended:
            seq.num_reserved = end
        self._kv.shed_promises()
