"""What the engine counts and gauges, as plain values for metrics and readiness."""

from __future__ import annotations

from dataclasses import dataclass, field

ACCEPTED_AT = "draft_tokens_accepted_at_"


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
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class DraftCounters:
    """What speculation proposed and what came of it. ``accepted_at[i]``: the i-th draft of a row.

    ``rows`` had drafts, ``proposed`` in all, of which ``accepted`` became tokens. ``trees`` of them
    had ``paths`` beside them, of which ``paths_kept`` were right longer and took their place.
    """

    trees: int = 0
    paths: int = 0
    paths_kept: int = 0
    rows: int = 0
    proposed: int = 0
    accepted: int = 0
    accepted_at: list[int] = field(default_factory=list)

    def count(self, num_drafts: int, num_accepted: int, *, depth: int) -> None:
        """A row was verified that had ``depth`` drafts, with its other paths ``num_drafts``."""
        self.rows += 1
        self.proposed += num_drafts
        self.accepted += num_accepted
        self.accepted_at += [0] * (depth - len(self.accepted_at))
        for position in range(num_accepted):
            self.accepted_at[position] += 1

    def as_dict(self) -> dict[str, int]:
        """By name."""
        return {
            "draft_trees": self.trees,
            "draft_paths": self.paths,
            "draft_paths_kept": self.paths_kept,
            "draft_rows": self.rows,
            "draft_tokens": self.proposed,
            "draft_tokens_accepted": self.accepted,
            **{f"{ACCEPTED_AT}{i}": count for i, count in enumerate(self.accepted_at)},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """A snapshot: who runs and waits, totals, and gauges of the KV pool in bytes by state."""

    num_running: int
    num_waiting: int
    counters: dict[str, int]
    gauges: dict[str, float]
