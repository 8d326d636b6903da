"""Whether an engine moves: what readiness goes by, and when it has hung and must be killed.

    bound = hang_s + 2 x pace          pace: the longest recent silence between two movements
    bound = FIRST_STEP x hang_s        until the first movement ever seen: a cold start is no hang

Silence is counted in ticks of the frontend's own loop, each worth little: a frontend that was
stopped itself, and finds a minute gone, has not heard what the engine said meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable

# With the beat's interval this keeps "not ready within 5 s without progress".
STALL_S = 4.0
HANG_S = 5.0
FIRST_STEP = 12
PACE_DECAY = 0.98
MAX_TICK_S = 0.5


class ProgressWatch:
    """Owns the newest known value of the engine's work counter and the time without another.

    ``hang_s`` is the silence in seconds, besides what is usual here, after which work that waits
    means that the engine has hung.
    """

    def __init__(self, clock: Callable[[], float], *, hang_s: float = HANG_S) -> None:
        self._clock = clock
        self._hang_s = hang_s
        self._progress: int | None = None
        self._sign_at = 0.0
        self._ticked_at = 0.0
        self._silence = 0.0
        self._pace = 0.0
        self._has_moved = False

    @property
    def stalled(self) -> bool:
        """No sign for ``STALL_S``; says something only while there is work."""
        return self._clock() - self._sign_at >= STALL_S

    def new_engine(self) -> None:
        """Another engine, whose counter is not known yet. The usual pace stays: same machine."""
        self._progress = None
        self.sign()

    def sign(self) -> None:
        """The engine gave something, or was idle until now."""
        self._sign_at = self._clock()
        self._silence = 0.0

    def note(self, progress: int) -> None:
        """The engine told its work counter."""
        if progress == self._progress:
            return
        if self._progress is not None:
            self._has_moved = True
            self._pace = max(self._silence, PACE_DECAY * self._pace)
        self._progress = progress
        self.sign()

    def tick(self, *, owed: bool) -> float:
        """Count the time since the last tick. ``owed``: the engine has something to answer.

        Returns:
            The seconds of silence once they are too many, else 0; then they count anew.
        """
        now = self._clock()
        elapsed, self._ticked_at = now - self._ticked_at, now
        self._silence = self._silence + min(elapsed, MAX_TICK_S) if owed else 0.0
        bound = self._hang_s + 2 * self._pace if self._has_moved else FIRST_STEP * self._hang_s
        if self._silence <= bound:
            return 0.0
        silence, self._silence = self._silence, 0.0
        return silence
