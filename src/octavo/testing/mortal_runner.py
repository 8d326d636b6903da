"""A fake runner that takes its time, hangs, or dies of certain tokens, process and all."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from octavo.core.runner import RunnerInfo
from octavo.core.step import RowPlan, StepPlan, StepResult
from octavo.testing.fake_runner import FakeRunner

EXIT_POISONED = 99
SLICE_S = 0.05


@dataclass(slots=True)
class MortalRunner:
    """``FakeRunner`` with ``step_s`` per step, and tokens that do something when they are computed.

    ``poison`` ends the process; ``slow`` makes the step take ``slow_s``, with progress on the way;
    ``hang`` makes it never end, without. A request with ``curse`` in its prompt ends the process
    at each of its decode steps: it gives one token per attempt.
    """

    inner: FakeRunner
    step_s: float = 0.0
    poison: int = -1
    slow: int = -1
    slow_s: float = 0.0
    hang: int = -1
    curse: int = -1
    progress: int = 0
    _cursed: set[int] = field(default_factory=set)

    @property
    def info(self) -> RunnerInfo:
        """See ``Runner.info``."""
        return self.inner.info

    def execute(self, plan: StepPlan) -> StepResult:
        """See ``Runner.execute``."""
        self._note_slots(plan)
        computed = {token for row in plan.rows for token in row.token_ids}
        if self.poison in computed or any(map(self._is_deadly, plan.rows)):
            raise SystemExit(EXIT_POISONED)
        while self.hang in computed:
            time.sleep(SLICE_S)
        if self.slow in computed:
            self._take(self.slow_s)
        if self.step_s:
            time.sleep(self.step_s)
        self.progress += 1
        return replace(self.inner.execute(plan), progress=self.progress)

    def _note_slots(self, plan: StepPlan) -> None:
        self._cursed.difference_update(plan.freed_slots)
        for state in plan.new_slots:
            self._cursed.discard(state.slot)
            if self.curse in state.token_ids[: state.num_prompt_tokens]:
                self._cursed.add(state.slot)

    def _is_deadly(self, row: RowPlan) -> bool:
        return row.slot in self._cursed and len(row.token_ids) == 1 and row.start > 0

    def _take(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(SLICE_S)
            self.progress += 1
