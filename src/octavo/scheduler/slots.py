"""Row slots: small integers under which the runner keeps per-sequence state between steps."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from octavo.scheduler.sequence import Sequence


class SlotTable:
    """Hands out slots, lowest first; ``freed`` are those let go since the last plan."""

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self._free = list(range(num_slots))
        self.freed: set[int] = set()

    def take(self, seq: Sequence) -> None:
        """Give ``seq`` a slot."""
        seq.slot = heappop(self._free)
        self.freed.discard(seq.slot)

    def give_back(self, seq: Sequence) -> None:
        """``seq`` no longer needs its slot, if it has one. Idempotent."""
        if seq.slot < 0:
            return
        heappush(self._free, seq.slot)
        self.freed.add(seq.slot)
        seq.slot = -1

    def take_freed(self) -> tuple[int, ...]:
        """Slots freed since the last call and not taken again."""
        if not self.freed:
            return ()
        freed = tuple(sorted(self.freed))
        self.freed.clear()
        return freed

    def reset(self) -> None:
        """The runner forgot all slots (a new generation)."""
        self._free = list(range(self._num_slots))
        heapify(self._free)
        self.freed.clear()

    @property
    def num_taken(self) -> int:
        """Slots in use."""
        return self._num_slots - len(self._free)
