"""The token budget, sized from measured speed so that no step is long (P6).

It starts at the floor and doubles while full steps are quick, as a slow start does; a step that
takes too long cuts it to what would have fitted. Chunking never changes an answer.
"""

from __future__ import annotations

# A step is cut at a quarter more: whoever decodes beside a prompt waits 50 ms at most, a token's
# usual due time. Chunks that short cost a lone prompt a tenth of its speed (SmolLM2, 2 cores).
STEP_TARGET_S = 0.04
MIN_CHUNK_TOKENS = 16


class StepBudget:
    """Learns tokens per step for a target time, between a floor and ``ceiling``.

    Every running sequence keeps its token: the floor is what a step may have besides those.
    """

    def __init__(self, *, block_size: int, ceiling: int, target_s: float = STEP_TARGET_S) -> None:
        self._ceiling = ceiling
        self._floor = min(max(block_size, MIN_CHUNK_TOKENS), ceiling)
        self._target_s = target_s
        self._learned = self._floor

    def size(self, num_running: int) -> int:
        """The budget of the next step, in tokens."""
        return min(max(self._learned, self._floor + num_running), self._ceiling)

    def observe(self, num_tokens: int, seconds: float) -> None:
        """A step of ``num_tokens`` took ``seconds``."""
        if seconds > 1.25 * self._target_s and num_tokens > self._floor:
            # At most by half at a time: one step that was disturbed is no measure.
            fitting = int(num_tokens * self._target_s / seconds)
            cut = max(fitting, self._learned // 2, self._floor)
            self._learned = min(self._learned, cut)
        elif 4 * num_tokens >= 3 * self._learned and seconds < 0.75 * self._target_s:
            quick = seconds < self._target_s / 3
            grown = 2 * self._learned if quick else self._learned + self._learned // 4
            self._learned = min(grown, self._ceiling)
