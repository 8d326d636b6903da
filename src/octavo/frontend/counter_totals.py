"""Engine counters that only grow: each engine counts from 0, their sum does not fall back."""

from __future__ import annotations

from collections.abc import Mapping


class CounterTotals:
    """Adds up the counters of every engine that this frontend has known.

    What a dead engine did after its last snapshot is not known and not counted.
    """

    def __init__(self) -> None:
        self._ended: dict[str, int] = {}
        self._epoch: int | None = None
        self._newest: Mapping[str, int] = {}

    def note(self, engine_epoch: int, counters: Mapping[str, int]) -> None:
        """Take a snapshot of the engine that started as ``engine_epoch``."""
        if engine_epoch != self._epoch:
            self._ended = self.totals()
            self._epoch = engine_epoch
        self._newest = counters

    def totals(self) -> dict[str, int]:
        """Counter name → sum over all engines so far; also while there is none."""
        names = self._ended.keys() | self._newest.keys()
        return {name: self._ended.get(name, 0) + self._newest.get(name, 0) for name in names}
