"""Under every kind of trouble, a step that is the last one again is one planned from scratch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from octavo.core.request import BranchOutput
from octavo.core.step import StepPlan, StepResult
from octavo.engine import EngineCore
from octavo.scheduler import Scheduler
from octavo.scheduler.scheduled_step import ScheduledStep, SteadyRows
from octavo.testing import simulator
from octavo.testing.fake_runner import FakeRunner
from octavo.testing.simulator_scenario import Scenario, draw_scenario

NUM_STEPS = 1500


def calm_scenario(rng: Random) -> Scenario:
    """Nobody guesses, and few run: rows that go on."""
    scenario = draw_scenario(rng)
    scheduler = replace(scenario.scheduler, speculate="off")
    return replace(scenario, scheduler=scheduler, load=max(2, scenario.load // 4))


def full_scenario(rng: Random) -> Scenario:
    """Three seats, and others who wait for one."""
    scenario = draw_scenario(rng)
    scheduler = replace(scenario.scheduler, speculate="off", max_num_seqs=3)
    return replace(scenario, scheduler=scheduler)


def trace(seed: int, *, from_scratch: bool) -> tuple[list[str], int]:
    """Every plan and what every step gave, in words; how many plans were the last one again."""
    told: list[str] = []
    found: list[SteadyRows] = []

    class Runner(FakeRunner):
        def execute(self, plan: StepPlan) -> StepResult:
            told.append(repr(replace(plan, rows=tuple(plan.rows))))
            return super().execute(plan)

    class Planner(Scheduler):
        def _steady(self, last: ScheduledStep) -> SteadyRows | None:
            steady = None if from_scratch else super()._steady(last)
            found.extend([steady] if steady is not None else [])
            return steady

    class Core(EngineCore):
        def step(self, now: float) -> list[BranchOutput]:
            outputs = super().step(now)
            told.append(repr(outputs))
            return outputs

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulator, "FakeRunner", Runner)
        patch.setattr(simulator, "EngineCore", Core)
        patch.setattr("octavo.engine.engine_core.Scheduler", Planner)
        events = simulator.simulate(seed, NUM_STEPS)
    return [*told, repr(sorted(events.items()))], len(found)


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
@pytest.mark.parametrize(
    ("scenario", "at_least"), [(calm_scenario, 300), (full_scenario, 100), (draw_scenario, 0)]
)
def test_a_step_again_is_the_step_from_scratch(
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    scenario: Callable[[Random], Scenario],
    at_least: int,
) -> None:
    monkeypatch.setattr(simulator, "draw_scenario", scenario)
    mine, num_again = trace(seed, from_scratch=False)
    other, _ = trace(seed, from_scratch=True)
    assert mine == other
    assert num_again >= at_least
