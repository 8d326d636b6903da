"""Under every kind of trouble, a batch that is kept and filled in is one made from scratch."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

import pytest

from octavo.core.runner import RunnerInfo
from octavo.core.step import StepPlan, StepResult
from octavo.testing import simulator
from octavo.testing.fake_runner import FakeRunner
from oracles.plain_batch import BatchWatch

MAX_SLOTS = 64


class WatchedRunner(FakeRunner):
    """Has a worker's books beside its own, which a fault of the runner leaves as they are."""

    kept: ClassVar[Counter[str]] = Counter()

    def __init__(self, info: RunnerInfo) -> None:
        super().__init__(info)
        self.watch = BatchWatch(info, MAX_SLOTS)

    def execute(self, plan: StepPlan) -> StepResult:
        self.watch.check(plan)
        self.kept["kept"] += self.watch.num_kept
        self.kept["new"] += self.watch.num_new
        self.watch.num_kept = self.watch.num_new = 0
        return super().execute(plan)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_kept_batch_is_the_batch_made_from_scratch(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    WatchedRunner.kept.clear()
    monkeypatch.setattr(simulator, "FakeRunner", WatchedRunner)
    simulator.simulate(seed, 1500)
    assert min(WatchedRunner.kept["kept"], WatchedRunner.kept["new"]) > 50
