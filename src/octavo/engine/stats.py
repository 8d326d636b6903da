"""What the engine counts and gauges, as plain values for metrics and readiness."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class EngineCounters:
    """Totals since the engine started; each only grows."""

    steps: int = 0
    mixed_steps: int = 0
    failed_steps: int = 0
    computed_tokens: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    requests: int = 0
    requests_finished: int = 0
    requests_refused: int = 0
    requests_aborted: int = 0
    requests_expired: int = 0
    requests_failed: int = 0
    duplicate_submits: int = 0
    branches_stopped: int = 0
    invariant_violations: int = 0

    def as_dict(self) -> dict[str, int]:
        """By name."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """A snapshot: who runs and waits, totals, and gauges of the KV pool in bytes by state."""

    num_running: int
    num_waiting: int
    counters: dict[str, int]
    gauges: dict[str, float]
