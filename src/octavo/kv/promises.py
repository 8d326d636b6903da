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
        # A step holds window - 1 + max_chunk tokens; n in a row lie in at most ⌈(n - 1) / P⌉ + 1.
        self._caps = [
            None if window is None else -(-(window - 2 + max_chunk) // block_size) + 1
            for window in windows
        ]
        self.totals = [0] * len(windows)
        self.num_shed = 0

    def demand(self, target_tokens: int, spare_branches: int, spare_from: int) -> list[int]:
        """Blocks per group for one sequence from nothing, with its branches forked later."""
        groups = range(len(self.totals))
        return [
            self._demand(group, target_tokens, spares=spare_branches, fork_at=spare_from)
            for group in groups
        ]

    def _demand(self, group: int, target: int, *, spares: int, fork_at: int) -> int:
        """``peak`` is the most blocks that one table holds while it grows to ``target`` tokens."""
        peak, cap = -(-target // self._block_size), self._caps[group]
        if cap is not None:
            peak = min(peak, cap)
        if not spares:
            return peak
        kept = fork_at // self._block_size if cap is None else 0
        return peak + spares * max(0, peak - kept)

    def refresh(self, seq: SequenceKV) -> None:
        """Recompute what ``seq`` is owed after its table, target or branches changed."""
        for group in range(len(self.totals)):
            owed = self.owed(seq, group)
            self.totals[group] += owed - seq.promised[group]
            seq.promised[group] = owed

    def owed(self, seq: SequenceKV, group: int) -> int:
        """Blocks of one group that ``seq`` may still take under its promise."""
        demand = self._demand(
            group, seq.target_tokens, spares=seq.spare_branches, fork_at=seq.spare_from
        )
        owed = demand - len(seq.tables[group].blocks) + seq.cow_due
        return owed if owed > 0 else 0

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
