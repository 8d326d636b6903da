from __future__ import annotations

import pytest

from octavo.cluster.engine_host import EngineHost
from octavo.cluster.step_budget import MIN_CHUNK_TOKENS, STEP_TARGET_S, StepBudget
from octavo.config import CacheConfig, SchedulerConfig
from octavo.core.request import Request, Submit
from octavo.core.sampling_params import SamplingParams
from octavo.engine import EngineCore
from octavo.testing.fake_runner import FakeRunner, make_info


def settle(budget: StepBudget, *, tokens_per_s: float, overhead_s: float = 0.0) -> int:
    for _ in range(40):
        size = budget.size(1)
        budget.observe(size, overhead_s + size / tokens_per_s)
    return budget.size(1)


@pytest.mark.parametrize("speed", [10, 60, 300, 1000, 4000, 1e6])
@pytest.mark.parametrize("overhead_s", [0.0, 0.02])
def test_a_full_step_meets_the_target_where_the_bounds_allow(
    speed: float, overhead_s: float
) -> None:
    size = settle(StepBudget(block_size=8, ceiling=512), tokens_per_s=speed, overhead_s=overhead_s)
    seconds = overhead_s + size / speed
    assert seconds <= 1.25 * STEP_TARGET_S or size == MIN_CHUNK_TOKENS + 1
    assert seconds >= 0.6 * STEP_TARGET_S or size == 512


def test_the_bounds_hold_whatever_is_measured() -> None:
    budget = StepBudget(block_size=32, ceiling=256)
    for seconds in (0.0, 1e-9, 100.0, 100.0, 100.0, 100.0):
        for tokens in (1, 32, 256):
            budget.observe(tokens, seconds)
            assert 32 < budget.size(1) <= 256
    assert StepBudget(block_size=16, ceiling=4).size(3) == 4


def test_small_steps_teach_nothing_about_large_ones() -> None:
    budget = StepBudget(block_size=16, ceiling=512)
    size = settle(budget, tokens_per_s=1000)
    for seconds in (0.02, 0.02, 5.0, 5.0, 5.0):
        budget.observe(1, seconds)
    assert budget.size(1) == size


def test_every_running_sequence_keeps_its_token() -> None:
    budget = StepBudget(block_size=16, ceiling=512)
    for _ in range(20):
        budget.observe(64, 1.0)
    assert budget.size(64) == 64 + MIN_CHUNK_TOKENS


def answers(*, slow: bool) -> tuple[list[int], list[int]]:
    """The tokens of one long prompt, and the sizes of the steps."""
    core = EngineCore(
        FakeRunner(make_info()), SchedulerConfig(max_num_batched_tokens=128), CacheConfig(), epoch=1
    )
    host = EngineHost(
        core, progress=lambda: core.progress, budget=StepBudget(block_size=16, ceiling=128)
    )
    request = Request(
        request_id="r",
        prompt_token_ids=tuple(range(500)),
        sampling=SamplingParams(max_tokens=8, seed=1),
    )
    core.handle(Submit(request=request), 0.0)
    tokens: list[int] = []
    sizes: list[int] = []
    while core.has_work():
        before = core.counters.computed_tokens
        for output in core.step(0.0):
            tokens += output.token_ids
        sizes.append(core.counters.computed_tokens - before)
        host.after_step(sizes[-1] / (100 if slow else 1e6))
        assert host.snapshot().gauges["token_budget"] == core.scheduler.token_budget
    return tokens, sizes


def test_the_budget_shapes_the_steps_and_not_the_answer() -> None:
    quick, quick_sizes = answers(slow=False)
    slow, slow_sizes = answers(slow=True)
    assert quick == slow
    assert max(quick_sizes) == 128
    assert max(slow_sizes) == MIN_CHUNK_TOKENS + 1


def test_the_configured_maximum_is_never_passed() -> None:
    core = EngineCore(FakeRunner(make_info()), SchedulerConfig(), CacheConfig(), epoch=1)
    core.set_token_budget(10_000)
    assert core.scheduler.token_budget == 512
    core.set_token_budget(0)
    assert core.scheduler.token_budget == 1
