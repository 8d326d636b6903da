"""A fake runner that takes its time and dies of a certain token, process and all."""

from __future__ import annotations

import time
from dataclasses import dataclass

from octavo.core.runner import RunnerInfo
from octavo.core.step import StepPlan, StepResult
from octavo.testing.fake_runner import FakeRunner

EXIT_POISONED = 99


@dataclass(slots=True)
class MortalRunner:
    """``FakeRunner`` with ``step_s`` per step; a row that computes ``poison`` ends the process."""

    inner: FakeRunner
    step_s: float = 0.0
    poison: int = -1

    @property
    def info(self) -> RunnerInfo:
        """See ``Runner.info``."""
        return self.inner.info

    def execute(self, plan: StepPlan) -> StepResult:
        """See ``Runner.execute``."""
        if any(self.poison in row.token_ids for row in plan.rows):
            raise SystemExit(EXIT_POISONED)
        if self.step_s:
            time.sleep(self.step_s)
        return self.inner.execute(plan)
