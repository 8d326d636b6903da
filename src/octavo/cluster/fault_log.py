"""The server's log of failed steps and broken invariants; clients only learn that one failed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from octavo.engine.stats import EngineCounters

WINDOW_S = 60.0
MAX_LINES = 20

logger = logging.getLogger(__name__)


class Faulty(Protocol):
    """What an engine tells of its faults."""

    last_fault: BaseException | None
    violations: list[str]
    counters: EngineCounters


class FaultLog:
    """Says each thing once per window, and at most ``MAX_LINES`` things; counts the rest."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._fault: BaseException | None = None
        self._num_violations = 0
        self._window_at = clock()
        self._said: set[str] = set()
        self._num_unsaid = 0

    def note(self, engine: Faulty) -> None:
        """Log what is new since the last call."""
        fault = engine.last_fault
        if fault is not None and fault is not self._fault:
            text = f"a step failed and its requests were dropped: {type(fault).__name__}: {fault}"
            self._say(text, fault)
        self._fault = fault
        total = engine.counters.invariant_violations
        new, self._num_violations = total - self._num_violations, total
        for violation in engine.violations[-new:] if new else ():
            self._say(f"an invariant is violated: {violation}", None)

    def _say(self, text: str, fault: BaseException | None) -> None:
        now = self._clock()
        if now - self._window_at >= WINDOW_S:
            if self._num_unsaid:
                logger.error("%d more failures of steps or invariants", self._num_unsaid)
            self._window_at, self._num_unsaid = now, 0
            self._said.clear()
        if text in self._said or len(self._said) >= MAX_LINES:
            self._num_unsaid += 1
            return
        self._said.add(text)
        logger.error("%s", text, exc_info=fault)
