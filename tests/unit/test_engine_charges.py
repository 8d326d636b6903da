"""What a step may hold at once, and what nobody is charged for."""

from __future__ import annotations

import pytest

from octavo.config import SchedulerConfig
from octavo.core.sampling_params import SamplingParams
from octavo.core.step import StepPlan, StepResult
from octavo.scheduler.sequence import MAX_SCORED_CHUNK
from octavo.testing import EngineDriver, FakeRunner, make_info, make_request


def test_few_scored_positions_are_in_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each costs a row of logits."""
    execute, scored = FakeRunner.execute, []

    def spy(runner: FakeRunner, plan: StepPlan) -> StepResult:
        scored.extend(row.num_scored for row in plan.rows)
        return execute(runner, plan)

    monkeypatch.setattr(FakeRunner, "execute", spy)
    driver = EngineDriver(make_info(), SchedulerConfig(max_num_batched_tokens=512))
    asked = SamplingParams(max_tokens=2, seed=1, prompt_logprobs=0)
    driver.submit(make_request("a", [1, 2] * 75, sampling=asked))
    driver.run()
    driver.verify()
    assert max(scored) == MAX_SCORED_CHUNK
    assert sum(scored) == 149


def test_who_was_not_admitted_after_all_has_not_paid() -> None:
    """Its blocks were refused: the tenant's counter stands where it stood."""
    served = []
    for num_refused in (0, 1, 3):
        driver = EngineDriver()
        pool = driver.core.kv.pools[0]
        allocate = pool.allocate
        refusals = [None] * num_refused
        pool.allocate = lambda owner, count, refusals=refusals, allocate=allocate: (
            refusals.pop() if refusals else allocate(owner, count)
        )
        driver.submit(make_request("a", [1] * 30))
        for _ in range(num_refused + 1):
            driver.step()
        assert driver.counters["refused_reservations"] == num_refused
        served.append(driver.core.scheduler.waiting._tenants["default"].served)
    assert served == [served[0]] * 3
