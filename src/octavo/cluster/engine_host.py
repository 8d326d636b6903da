"""What an engine loop asks of the process around the core: facts, snapshots, control, pace."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from octavo.cluster.messages import Stats
from octavo.cluster.step_budget import StepBudget
from octavo.core.request import Event
from octavo.engine import EngineCore
from octavo.grammar import GrammarCompiler


class EngineHost:
    """Answers for one core. ``progress`` is the runner's work counter, read from any thread."""

    def __init__(
        self,
        core: EngineCore,
        *,
        progress: Callable[[], int],
        budget: StepBudget | None = None,
        grammars: GrammarCompiler | None = None,
    ) -> None:
        self._core = core
        self._budget = budget
        self._grammars = grammars
        self._computed_tokens = 0
        self.progress = progress
        self._set_budget()

    def snapshot(self) -> Stats:
        """What metrics and readiness are told."""
        core = self._core
        stats = core.stats()
        return Stats(
            engine_epoch=core.epoch,
            progress=core.progress,
            num_running=stats.num_running,
            num_waiting=stats.num_waiting,
            counters=stats.counters,
            gauges=stats.gauges | {"token_budget": float(core.scheduler.token_budget)},
        )

    def control(self, verb: str) -> dict[str, object]:
        """Answer a ``Control``; an unknown verb is answered, not a fault."""
        core = self._core
        match verb:
            case "kv":
                started = time.perf_counter()
                snapshot = core.debug_kv()
                # What the snapshot kept the engine from its next step.
                spent = time.perf_counter() - started
                return {"snapshot": snapshot, "snapshot_s": spent}
            case "requests":
                return core.debug_requests()
            case "invariants":
                return {"violations": core.check_invariants()}
            case "reset_prefix_cache":
                core.reset_prefix_cache()
                return {}
        return {"error": f"unknown verb {verb}"}

    def after_step(self, seconds: float) -> None:
        """A step took ``seconds``: size the next one."""
        total = self._core.counters.computed_tokens
        num_tokens, self._computed_tokens = total - self._computed_tokens, total
        if self._budget is not None and num_tokens:
            self._budget.observe(num_tokens, seconds)
        self._set_budget()

    def take_ready(self) -> Sequence[Event]:
        """Grammars that have been compiled since the last call."""
        return self._grammars.take_ready() if self._grammars is not None else ()

    @property
    def is_compiling(self) -> bool:
        """Whether a grammar is being compiled."""
        return self._grammars is not None and self._grammars.num_pending > 0

    def _set_budget(self) -> None:
        if self._budget is not None:
            scheduler = self._core.scheduler
            num_running = len(scheduler.running)
            self._core.set_token_budget(self._budget.size(num_running))
