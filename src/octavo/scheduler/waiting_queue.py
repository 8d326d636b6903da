"""Sequences that hold no blocks and wait for their turn, in order of (priority, arrival, branch).

A preempted sequence re-enters by the same order, so it stands before whatever arrived later.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter

from octavo.scheduler.sequence import Sequence

_ORDER = attrgetter("order")


class WaitingQueue:
    """A sorted list; ``num_fresh`` counts the new requests in it, which is what is bounded."""

    def __init__(self) -> None:
        self._sequences: list[Sequence] = []
        self.num_fresh = 0

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    def add(self, seq: Sequence) -> None:
        """Insert in order."""
        insort(self._sequences, seq, key=_ORDER)
        self.num_fresh += seq.is_fresh

    def remove(self, seq: Sequence) -> None:
        """Take out a sequence that is in the queue."""
        index = bisect_left(self._sequences, seq.order, key=_ORDER)
        assert self._sequences[index] is seq, "I7: a waiting sequence is not in the queue"
        del self._sequences[index]
        self.num_fresh -= seq.is_fresh
