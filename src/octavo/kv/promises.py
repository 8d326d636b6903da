"""Growth promises: how many blocks each sequence may still take, per KV group.

A sequence promised ``target_tokens`` still needs

    peak(target) - len(table)            its own growth
    + 1                                  if its tail is shared and it must copy it (``cow_due``)
    + spare · (peak(target) - from / P)  for branches that will be forked from it

blocks, where peak(t) = ⌈t / P⌉, capped in a windowed group. The sum over all sequences never
exceeds free + evictable (I6). Where the policy promises less than a sequence takes, growth past
its own promise may eat what others were promised: the youngest promises are shed first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from octavo.kv.block_table import SequenceKV


class Promises:
    """Sum of outstanding promises per group, kept incrementally."""

    def __init__(self, block_size: int, windows: Sequence[int | None], max_chunk: int) -> None:
        self._block_size = block_size
        self._caps = [
            None if window is None else -(-(window - 1 + max_chunk) // block_size) + 1
            for window in windows
        ]
        self.totals = [0] * len(windows)
        self.num_shed = 0

    def peak(self, group: int, num_tokens: int) -> int:
        """Most blocks that one table of ``group`` holds while it grows to ``num_tokens``."""
        blocks = -(-num_tokens // self._block_size)
        cap = self._caps[group]
        return blocks if cap is None else min(blocks, cap)

    def demand(self, target_tokens: int, spare_branches: int, spare_from: int) -> list[int]:
        """Blocks per group for one sequence from nothing, with its branches forked later."""
        out = []
        for group, cap in enumerate(self._caps):
            peak = self.peak(group, target_tokens)
            kept = spare_from // self._block_size if cap is None else 0
            out.append(peak + spare_branches * max(0, peak - kept))
        return out

    def refresh(self, seq: SequenceKV) -> None:
        """Recompute what ``seq`` is owed after its table, target or branches changed."""
        demand = self.demand(seq.target_tokens, seq.spare_branches, seq.spare_from)
        for group, table in enumerate(seq.tables):
            owed = max(0, demand[group] - len(table.blocks) + seq.cow_due)
            self.totals[group] += owed - seq.promised[group]
            seq.promised[group] = owed

    def clear(self, seq: SequenceKV) -> None:
        """``seq`` is owed nothing more."""
        seq.target_tokens = seq.spare_branches = 0
        seq.cow_due = False
        self.refresh(seq)

    def shed(self, available: Sequence[int], youngest_first: Iterable[SequenceKV]) -> None:
        """Take back promises until they fit what is available."""
        for seq in youngest_first:
            if all(total <= have for total, have in zip(self.totals, available, strict=True)):
                return
            if any(seq.promised):
                self.num_shed += 1
                self.clear(seq)
