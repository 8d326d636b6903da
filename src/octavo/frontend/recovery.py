"""Who runs again after an engine died, and in which order: a request that kills is found alone.

    death → every request that ran is a suspect
          → suspects run one at a time, each until it ended or gave ``probation`` tokens
          → whoever passed is parked until no suspect is left, then all go on together

Within either queue the order is that of arrival, whoever comes back and whenever: the engine serves
each tenant's requests, and tenants that were served alike, in the order in which it hears of them.

Only a request that ran alone at a death is blamed for it; ``RETRY_BUDGET`` times in a row and it
is dropped. Each further death that a request is party to lengthens its probation, so that one
that kills late is found out too.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable

from octavo.frontend.journal import Journal

RETRY_BUDGET = 3
FIRST_PROBATION = 4
PROBATION_GROWTH = 4
MAX_PROBATION = 256


class Recovery:
    """Owns the order of replay; the journal's entries hold what is known against a request."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        # (arrival, request id), the earliest first.
        self._suspects: list[tuple[int, str]] = []
        self._others: list[tuple[int, str]] = []
        self._probe: str | None = None

    @property
    def active(self) -> bool:
        """Whether something waits or runs alone: a new request then has to queue."""
        return self._probe is not None or bool(self._suspects) or bool(self._others)

    @property
    def probe(self) -> str | None:
        """The request that runs alone now."""
        return self._probe

    def engine_died(self, running: set[str]) -> list[str]:
        """Note a death with ``running`` in the engine. Returns the requests to be dropped."""
        dropped = []
        for request_id in running:
            entry = self._journal.get(request_id)
            if entry is None:
                continue
            longer = entry.last_probation * PROBATION_GROWTH or FIRST_PROBATION
            entry.last_probation = min(longer, MAX_PROBATION)
            entry.probation = entry.last_probation
            if len(running) == 1:
                entry.blamed += 1
                if entry.blamed >= RETRY_BUDGET:
                    dropped.append(request_id)
        return dropped

    def restart(self, waiting: Iterable[str]) -> None:
        """Queue all of ``waiting`` afresh: nothing of it runs in the engine."""
        self._probe = None
        self._suspects.clear()
        self._others.clear()
        for request_id in waiting:
            self.queue(request_id)

    def queue(self, request_id: str) -> None:
        """Let a request wait for its turn."""
        entry = self._journal.get(request_id)
        assert entry is not None, "a request in flight is journaled"
        insort(self._suspects if entry.probation else self._others, (entry.arrival, request_id))

    def next(self) -> str | None:
        """The request to be submitted now; ``took`` says that it was."""
        if self._probe is not None:
            return None
        queue = self._suspects or self._others
        return queue[0][1] if queue else None

    def took(self, request_id: str) -> None:
        """``next`` was submitted: a suspect has the engine to itself."""
        if self._suspects:
            self._probe = request_id
        del (self._suspects or self._others)[0]

    def delivered(self, request_id: str, num_tokens: int) -> bool:
        """A request gave tokens. Returns whether it passed and is to be parked for the next."""
        entry = self._journal.get(request_id)
        if entry is None or not entry.probation:
            return False
        entry.probation = max(0, entry.probation - num_tokens)
        if entry.probation:
            return False
        entry.blamed = 0
        if request_id != self._probe:
            return False
        self._probe = None
        if not self._suspects:
            return False
        self.queue(request_id)
        return True

    def left(self, request_id: str) -> None:
        """A request ended, was cancelled or was paused: it neither waits nor runs."""
        if self._probe == request_id:
            self._probe = None
        for queue in (self._suspects, self._others):
            queue[:] = [waiting for waiting in queue if waiting[1] != request_id]
