"""Refusals, aborts, deadlines, faults, resubmission: one outcome each, nothing else disturbed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from octavo.config import CacheConfig, SchedulerConfig
from octavo.core.request import Abort, FinishReason, Submit
from octavo.core.sampling_params import SamplingParams
from octavo.core.step import RowResult, StepResult
from octavo.engine import EngineCore
from octavo.testing import EngineDriver, FakeRunner, make_info, make_request
from octavo.testing.fake_runner import in_rows

PROMPT = list(range(20, 57))


def sampling(**fields) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 8, "seed": 1, **fields})


# -- refused at the door -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "code", "words"),
    [
        (make_request("r", []), "invalid_request_error", ["empty"]),
        (make_request("r", [1000]), "invalid_request_error", ["1000"]),
        (make_request("r", [-1]), "invalid_request_error", ["vocabulary"]),
        (replace(make_request("r", [1]), adapter="x"), "invalid_request_error", ["'x'"]),
        (make_request("r", [1], sampling=sampling(n=65)), "invalid_request_error", ["65", "64"]),
        (make_request("r", [1] * 500), "context_length_exceeded", ["500", "499"]),
        (
            make_request("r", [1] * 100, sampling=sampling(max_tokens=300)),
            "context_length_exceeded",
            ["25", "20", "max_tokens"],
        ),
        (
            make_request("r", [1] * 400, sampling=sampling(max_tokens=None)),
            "context_length_exceeded",
            ["25", "20"],
        ),
        (
            make_request("r", [1] * 160, sampling=sampling(n=12, max_tokens=10)),
            "context_length_exceeded",
            ["22", "20", "n 12"],
        ),
    ],
)
def test_refused_at_admission(request_, code: str, words: list[str]) -> None:
    driver = EngineDriver(make_info(block_size=16, num_blocks=20, max_model_len=500))
    driver.submit(request_)
    (first, *_) = driver.step()
    assert first.finish_reason is FinishReason.ERROR
    assert first.error_code == code
    for word in words:
        assert word in (first.error or "")
    assert driver.entries["r"].is_done
    assert not driver.core.has_work()
    assert driver.runner.counts.steps == 0


def test_the_largest_request_that_fits_runs() -> None:
    driver = EngineDriver(make_info(block_size=16, num_blocks=20, max_model_len=500))
    driver.submit(make_request("r", [1] * 100, sampling=sampling(max_tokens=221)))
    driver.run()
    driver.verify()
    assert len(driver.entries["r"].delivered[0]) == 221


def test_an_open_limit_is_fitted_to_the_pool() -> None:
    driver = EngineDriver(make_info(block_size=16, num_blocks=20, max_model_len=500))
    driver.submit(make_request("r", [1] * 100, sampling=sampling(max_tokens=None)))
    driver.run()
    driver.verify()
    assert len(driver.entries["r"].delivered[0]) == 221


def test_a_full_queue_refuses() -> None:
    driver = EngineDriver(scheduler=SchedulerConfig(max_num_seqs=1, max_waiting=2))
    for i in range(4):
        driver.submit(make_request(f"r{i}", PROMPT))
    driver.run()
    assert [code for code, _ in driver.errors()] == ["overloaded"] * 2
    assert "2" in (driver.errors()[0][1] or "")


# -- aborts and deadlines ----------------------------------------------------------------------


@pytest.mark.parametrize("after", range(12))
def test_abort_in_any_state_returns_the_blocks(after: int) -> None:
    driver = EngineDriver(
        make_info(block_size=8), SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=3)
    )
    driver.submit(make_request("other", PROMPT[5:]))
    driver.submit(make_request("r", PROMPT, sampling=sampling(n=2)))
    for _ in range(after):
        driver.step()
    driver.core.handle(Abort(request_id="r", reason="client left"), 0.0)
    driver.core.handle(Abort(request_id="r"), 0.0)
    driver.step()
    assert {seq.state.request.request_id for seq in driver.core.scheduler.running} <= {"other"}
    driver.run()
    assert driver.entries["other"].ended == {0: FinishReason.LENGTH}
    driver.verify()
    if driver.counters["requests_aborted"]:
        assert ("cancelled", "client left") in driver.errors()
    driver.core.reset_prefix_cache()
    assert driver.core.kv.pools[0].num_free == 64


def test_deadlines_are_swept_in_every_step() -> None:
    driver = EngineDriver(scheduler=SchedulerConfig(max_num_seqs=1))
    driver.submit(replace(make_request("runs", PROMPT), deadline=2.0))
    driver.submit(replace(make_request("waits", PROMPT), deadline=1.0))
    driver.submit(replace(make_request("late", PROMPT), deadline=0.0))
    driver.submit(
        replace(make_request("ends", PROMPT, sampling=sampling(max_tokens=1)), deadline=9.0)
    )
    driver.step()
    assert driver.errors()[0][0] == "deadline_exceeded"
    driver.now = 1.0
    driver.step()
    assert driver.entries["waits"].ended == {0: FinishReason.ABORT}
    driver.now = 2.5
    driver.step()
    assert driver.entries["runs"].ended == {0: FinishReason.ABORT}
    assert driver.entries["runs"].delivered[0]
    driver.run()
    assert driver.entries["ends"].ended == {0: FinishReason.LENGTH}
    assert driver.counters["requests_expired"] == 2


# -- runner faults -----------------------------------------------------------------------------


def test_a_fault_drops_the_steps_requests_and_no_other() -> None:
    driver = EngineDriver(
        make_info(block_size=8), SchedulerConfig(max_num_batched_tokens=2, max_num_seqs=8)
    )
    driver.submit(make_request("kept", PROMPT[:1], sampling=sampling(n=3, max_tokens=12)))
    driver.step()
    driver.submit(make_request("queued", PROMPT[3:]))
    driver.runner.fail_next = True
    driver.step()
    assert driver.entries["kept"].ended == dict.fromkeys(range(3), FinishReason.ERROR)
    assert driver.counters["failed_steps"] == 1
    assert driver.errors()[0][0] == "engine_error"
    assert "injected" not in (driver.errors()[0][1] or "")
    driver.run()
    assert driver.entries["queued"].ended == {0: FinishReason.LENGTH}
    driver.verify()


def test_survivors_are_resynchronised() -> None:
    """Budget for one row a step: the failed step holds one request, the other one runs on."""
    driver = EngineDriver(make_info(block_size=8), SchedulerConfig(max_num_batched_tokens=4))
    driver.submit(make_request("a", [1, 2, 3, 4]))
    driver.step()
    driver.submit(make_request("b", [5, 6, 7]))
    driver.step()
    driver.core.scheduler.running.reverse()
    driver.core.scheduler.token_budget = 1
    driver.runner.fail_next = True
    driver.step()
    driver.run()
    assert driver.entries["b"].ended == {0: FinishReason.ERROR}
    assert driver.entries["a"].ended == {0: FinishReason.LENGTH}
    assert driver.runner.counts.generations == 1
    driver.verify()


def test_what_a_failed_step_wrote_is_not_published() -> None:
    driver = EngineDriver(make_info(block_size=8))
    driver.submit(make_request("a", PROMPT))
    driver.runner.fail_next = True
    driver.step()
    assert driver.core.kv.index.blocks(0) == {}
    assert driver.core.kv.pools[0].num_free == 64


class LyingRunner(FakeRunner):
    """Answers something else than it was asked."""

    lie: str = ""

    def execute(self, plan):
        result = in_rows(plan, super().execute(plan))
        rows = {
            "no rows": (),
            "two samples": tuple(replace(row, token_ids=(1, 2)) for row in result.rows),
            "no samples": tuple(replace(row, token_ids=()) for row in result.rows),
            "alien token": tuple(replace(row, token_ids=(10**6,)) for row in result.rows),
            "wrong row": tuple(RowResult(row=row.row + 7, token_ids=(1,)) for row in result.rows),
        }.get(LyingRunner.lie, result.rows)
        step_id = 99 if LyingRunner.lie == "wrong step" else result.step_id
        bare = {
            "bare alien": (10**6,) * len(result.rows),
            "bare tokens too many": (1,) * (len(result.rows) + 1),
            "rows and bare tokens": (1,) * len(result.rows),
        }.get(LyingRunner.lie, ())
        if LyingRunner.lie.startswith("bare"):
            rows = ()
        return StepResult(step_id=step_id, rows=rows, token_ids=bare, progress=1)


@pytest.mark.parametrize(
    "lie",
    [
        "no rows", "two samples", "no samples", "alien token", "wrong row", "wrong step",
        "bare alien", "bare tokens too many", "rows and bare tokens",
    ],
)  # fmt: skip
def test_a_wrong_result_is_a_fault(lie: str) -> None:
    driver = EngineDriver()
    LyingRunner.lie = lie
    runner = LyingRunner(driver.info)
    driver.core = EngineCore(runner, SchedulerConfig(check_every_n_steps=1), CacheConfig(), epoch=1)
    driver.submit(make_request("r", PROMPT))
    driver.step()
    assert driver.entries["r"].ended == {0: FinishReason.ERROR}
    assert driver.core.kv.pools[0].num_free == 64


def test_a_bare_token_for_a_row_that_asks_for_more_is_a_fault() -> None:
    driver = EngineDriver()
    execute = lambda self, plan: StepResult(step_id=plan.step_id, token_ids=(1,))  # noqa: E731
    driver.core._runner = type("Terse", (), {"execute": execute})()
    driver.submit(make_request("r", PROMPT, sampling=SamplingParams(max_tokens=8, seed=1, n=2)))
    driver.step()
    assert driver.entries["r"].ended == {0: FinishReason.ERROR, 1: FinishReason.ERROR}
    assert "bare tokens" in str(driver.core.last_fault)


def test_an_interrupt_leaves_a_consistent_engine() -> None:
    driver = EngineDriver()
    driver.submit(make_request("r", PROMPT))
    execute = driver.runner.execute
    driver.core._runner = type(
        "Interrupted", (), {"execute": lambda self, plan: (_ for _ in ()).throw(KeyboardInterrupt)}
    )()
    with pytest.raises(KeyboardInterrupt):
        driver.step()
    driver.core._runner = type("Restored", (), {"execute": lambda self, plan: execute(plan)})()
    driver.run()
    assert driver.entries["r"].ended == {0: FinishReason.ERROR}
    driver.submit(make_request("next", PROMPT))
    driver.run()
    assert driver.entries["next"].ended == {0: FinishReason.LENGTH}


# -- resubmission ------------------------------------------------------------------------------


@pytest.mark.parametrize("delivered", range(8))
def test_resumed_from_the_journal_each_branch_continues(delivered: int) -> None:
    whole = EngineDriver()
    full = whole.submit(make_request("r", PROMPT, sampling=sampling(n=3)))
    whole.run()
    driver = EngineDriver()
    entry = driver.submit(make_request("elsewhere", [1]))
    entry = driver.entries["r"] = type(entry)(full.request)
    entry.epoch, entry.limit = 1, 8
    for branch in range(3):
        entry.delivered[branch] = full.delivered[branch][: max(0, delivered - branch)]
    driver.core.handle(entry.submit(), 0.0)
    driver.run()
    assert entry.delivered == full.delivered


def test_finished_branches_are_not_run_again() -> None:
    driver = EngineDriver()
    entry = driver.submit(make_request("r", PROMPT, sampling=sampling(n=2)))
    driver.step()
    entry.ended[0] = FinishReason.STOP
    entry.epoch = 1
    driver.core.handle(entry.submit(), 0.0)
    driver.run()
    assert entry.is_done
    assert len(entry.delivered[0]) == 1
    entry.verify(1, driver.info)


def test_a_branch_that_had_ended_says_so_at_once() -> None:
    driver = EngineDriver()
    request = make_request("r", PROMPT, sampling=sampling(n=2, max_tokens=3), eos=(7,))
    driver.entries["r"] = entry = type(driver.submit(make_request("x", [1])))(request)
    entry.epoch = 2
    entry.delivered = [[1, 2, 3], [4, 7]]
    driver.core.handle(entry.submit(), 0.0)
    outputs = [o for o in driver.step() if o.request_id == "r"]
    assert [(o.branch, o.position, o.finish_reason, o.stop_token_id) for o in outputs] == [
        (0, 3, FinishReason.LENGTH, None),
        (1, 2, FinishReason.STOP, 7),
    ]
    assert "r" not in driver.core.requests.states


def test_nothing_left_to_run_is_no_work() -> None:
    driver = EngineDriver()
    submit = Submit(request=make_request("r", PROMPT), finished_branches=(0,))
    driver.core.handle(submit, 0.0)
    assert not driver.core.has_work()
    assert driver.core.check_invariants() == []


def test_a_repeated_submit_is_recognised() -> None:
    driver = EngineDriver()
    entry = driver.submit(make_request("r", PROMPT))
    driver.core.handle(entry.submit(), 0.0)
    driver.step()
    driver.core.handle(Submit(request=entry.request, epoch=0), 0.0)
    driver.run()
    driver.verify()
    assert driver.counters["duplicate_submits"] == 2
    assert driver.counters["requests"] == 1


def test_deadlines_of_requests_that_left_are_forgotten() -> None:
    driver = EngineDriver()
    driver.submit(
        replace(make_request("stays", PROMPT, sampling=sampling(max_tokens=900)), deadline=1e9)
    )
    for i in range(200):
        driver.submit(replace(make_request(f"r{i}", PROMPT), deadline=1e6 + i))
        driver.core.handle(Abort(request_id=f"r{i}"), 0.0)
    assert driver.core.requests.num_deadlines < 80
    driver.submit(replace(make_request("soon", PROMPT), deadline=5.0))
    driver.core.handle(Abort(request_id="soon"), 0.0)
    driver.now = 6.0
    driver.step()
    assert driver.counters["requests_expired"] == 0


class SpeechlessRunner(FakeRunner):
    """Can sample no token for prompts that begin with 7."""

    def execute(self, plan):
        result = in_rows(plan, super().execute(plan))
        mute = {i for i, row in enumerate(plan.rows) if row.start == 0 and row.token_ids[0] == 7}
        rows = [
            replace(row, failed=True, token_ids=(-1,) * len(row.token_ids))
            if row.row in mute
            else row
            for row in result.rows
        ]
        return replace(result, rows=tuple(rows))


@pytest.mark.parametrize("n", [1, 3])
def test_a_row_without_a_sample_drops_its_request_only(n: int) -> None:
    driver = EngineDriver()
    runner = SpeechlessRunner(driver.info)
    driver.core = EngineCore(runner, SchedulerConfig(check_every_n_steps=1), CacheConfig(), epoch=1)
    driver.submit(make_request("mute", [7, 8, 9], sampling=sampling(n=n)))
    driver.submit(make_request("fine", PROMPT, sampling=sampling()))
    driver.run()
    assert driver.entries["mute"].ended == dict.fromkeys(range(n), FinishReason.ERROR)
    assert driver.entries["fine"].is_done
    assert driver.core.counters.requests_failed == 1
    assert driver.core.violations == []


# -- continuations -----------------------------------------------------------------------------


def resume(driver: EngineDriver, request, delivered: list[list[int]]):
    entry = driver.entries[request.request_id] = type(driver.submit(make_request("x", [])))(request)
    entry.epoch, entry.limit = 1, request.sampling.max_tokens
    entry.delivered = delivered
    driver.core.handle(entry.submit(), driver.now)
    return entry


def test_a_full_queue_takes_continuations() -> None:
    driver = EngineDriver(scheduler=SchedulerConfig(max_num_seqs=2, max_waiting=2))
    whole = EngineDriver()
    full = whole.submit(make_request("r", PROMPT, sampling=sampling(n=2)))
    whole.run()
    for i in range(2):
        driver.submit(make_request(f"r{i}", PROMPT[i:]))
    entry = resume(driver, full.request, [full.delivered[0][:3], []])
    driver.core.handle(Submit(request=make_request("back", [1, 2]), epoch=4), 0.0)
    driver.entries["back"] = type(entry)(make_request("back", [1, 2]))
    driver.entries["back"].epoch, driver.entries["back"].limit = 4, 8
    assert driver.core.scheduler.waiting.num_fresh == 2
    driver.submit(make_request("late", PROMPT))
    driver.run()
    assert entry.delivered == full.delivered
    assert driver.entries["back"].ended == {0: FinishReason.LENGTH}
    assert driver.entries["late"].ended == {0: FinishReason.ERROR}


def test_a_resumed_answer_reports_no_cached_tokens_of_its_own() -> None:
    """Its prompt and its first tokens are cached by its own first attempt: that is not a hit."""
    driver = EngineDriver(make_info(block_size=8, num_blocks=64))
    request = make_request("r", PROMPT, sampling=sampling(max_tokens=40))
    first = driver.submit(request)
    for _ in range(30):
        driver.step()
    driver.core.handle(Abort(request_id="r"), 0.0)
    driver.step()
    seen = len(driver.outputs)
    hits = driver.counters["prefix_hit_tokens"]
    resume(driver, request, [list(first.delivered[0])])
    driver.run()
    driver.verify()
    assert len(driver.outputs) > seen
    assert {o.num_cached_tokens for o in driver.outputs} == {0}
    assert driver.counters["prefix_hit_tokens"] == hits


def test_a_taken_over_attempt_keeps_what_its_first_one_read() -> None:
    driver = EngineDriver(make_info(block_size=8))
    driver.submit(make_request("warm", PROMPT))
    driver.run()
    request = make_request("r", [*PROMPT[:32], 1, 2])
    first = driver.submit(request)
    driver.step()
    resume(driver, request, [list(first.delivered[0])])
    driver.run()
    driver.verify()
    assert {o.num_cached_tokens for o in driver.outputs if o.request_id == "r"} == {32}


def test_a_refusal_names_the_field() -> None:
    driver = EngineDriver(make_info(block_size=16, num_blocks=20, max_model_len=500))
    driver.submit(make_request("r", [1] * 100, sampling=sampling(max_tokens=300)))
    driver.submit(make_request("s", [1], sampling=sampling(n=65)))
    assert {(out.request_id, out.error_param) for out in driver.step()} == {
        ("r", "max_tokens"),
        ("s", "n"),
    }
