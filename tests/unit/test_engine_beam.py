"""Beam search in the engine against the plain one, under whatever the schedule does to it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.config import CacheConfig, SchedulerConfig
from octavo.core.request import Abort, FinishReason, StopBranch, Submit
from octavo.core.sampling_params import SamplingParams
from octavo.scheduler import Status
from octavo.testing import fake_runner as module
from octavo.testing.engine_driver import EngineDriver, make_request
from octavo.testing.fake_runner import make_info

EARLY = (False, True, "never")


def beams(width: int = 4, **changes: Any) -> SamplingParams:
    options = {"n": min(2, width), "best_of": width, "max_tokens": 12, "temperature": 0.0}
    return SamplingParams(use_beam_search=True, **{**options, **changes})


def driver(**options: Any) -> EngineDriver:
    scheduler = SchedulerConfig(
        max_num_batched_tokens=options.pop("budget", 64),
        max_num_seqs=options.pop("seqs", 16),
        policy=options.pop("policy", "optimistic"),
    )
    cache = CacheConfig(prefix_cache=options.pop("prefix_cache", True))
    return EngineDriver(make_info(**{"vocab_size": 50, **options}), scheduler, cache)


def finish(engine: EngineDriver) -> None:
    """Run to the end, compare with the plain search, and see every block back."""
    engine.run()
    engine.verify()
    engine.core.reset_prefix_cache()
    assert all(pool.num_free == pool.num_blocks for pool in engine.core.kv.pools)


@pytest.mark.parametrize("early_stopping", EARLY)
@pytest.mark.parametrize("width", [2, 4, 6])
def test_a_step_of_width_beams_computes_width_tokens(width: int, early_stopping: Any) -> None:
    engine = driver(num_blocks=64)
    engine.submit(
        make_request("a", range(1, 22), sampling=beams(width, early_stopping=early_stopping))
    )
    engine.step()
    while engine.core.has_work():
        before = engine.runner.counts.tokens
        engine.step()
        assert engine.runner.counts.tokens - before == width
    finish(engine)
    assert engine.counters["forks"] > width
    assert engine.counters["cow_copies"] > 0
    assert engine.counters["preemptions"] == 0
    assert {o.finish_reason for o in engine.outputs} == {FinishReason.LENGTH}
    assert [o.branch for o in engine.outputs] == [0, 1]


@given(
    width=st.integers(2, 6),
    early_stopping=st.sampled_from(EARLY),
    length_penalty=st.sampled_from([-1.0, 0.0, 0.5, 1.0, 2.0]),
    block_size=st.sampled_from([1, 2, 3, 8, 16, 32]),
    budget=st.sampled_from([1, 3, 8, 64]),
    policy=st.sampled_from(["reserve", "estimate", "optimistic"]),
    windows=st.sampled_from([(None,), (None, 5), (16, None)]),
    prefix_cache=st.booleans(),
    min_tokens=st.sampled_from([0, 3]),
    prompt=st.integers(1, 30),
    preempt=st.lists(st.integers(0, 60), max_size=4),
    seed=st.integers(0, 10_000),
)
def test_every_schedule_gives_the_plain_search(**case: Any) -> None:
    size = case["block_size"]
    engine = driver(
        num_blocks=-(-200 // size) + 12,
        block_size=size,
        budget=case["budget"],
        policy=case["policy"],
        windows=case["windows"],
        prefix_cache=case["prefix_cache"],
    )
    names = ("early_stopping", "length_penalty", "min_tokens")
    sampling = beams(case["width"], **{name: case[name] for name in names})
    prompt = [(case["seed"] * 7 + at * at) % 50 for at in range(case["prompt"])]
    for name, ask in (("a", prompt), ("b", [*prompt, 3])):
        engine.submit(make_request(name, ask, sampling=sampling, eos=(7, 8)))
    engine.submit(make_request("c", prompt[:5], sampling=SamplingParams(max_tokens=9, seed=1)))
    step = 0
    while engine.core.has_work():
        running = engine.core.scheduler.running
        if step in case["preempt"] and running:
            engine.core.scheduler.preempt(running[step % len(running)])
        engine.step()
        step += 1
        assert step < 2000
    finish(engine)


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_a_preempted_group_comes_back_as_a_tree(prefix_cache: bool) -> None:
    """What beams share is computed once, whether or not the prefix index helps."""
    engine = driver(num_blocks=64, block_size=4, budget=16, prefix_cache=prefix_cache)
    engine.submit(make_request("a", range(1, 41), sampling=beams(4, max_tokens=30)))
    for _ in range(20):
        engine.step()
    state = engine.core.requests.states["a"]
    distinct = {tuple(s.token_ids[: at + 1]) for s in state.branches.values()
                for at in range(s.num_computed)}  # fmt: skip
    longest = max(s.num_computed for s in state.branches.values())
    engine.core.scheduler.preempt(engine.core.scheduler.running[0])
    (root,) = state.branches.values()
    assert (root.status, root.kv, root.num_seats) == (Status.WAITING, None, 4)
    assert root.num_lost == longest < len(distinct)
    if not prefix_cache:
        before, advanced = engine.runner.counts.tokens, engine.counters["beam_steps"]
        while engine.counters["beam_steps"] == advanced or len(state.branches) < 4:
            engine.step()
        # Every distinct token once, and what later steps computed besides.
        steps = engine.counters["beam_steps"] - advanced
        assert engine.runner.counts.tokens - before <= len(distinct) + 4 * (steps + 1)
        assert engine.counters["recomputed_tokens"] == len(distinct)
    finish(engine)
    assert engine.counters["beam_splits"] > 0
    assert engine.counters["preemptions"] == 1


@pytest.mark.parametrize("steps", range(14))
def test_abort_in_every_state_returns_every_block(steps: int) -> None:
    engine = driver(num_blocks=32, block_size=4, budget=5)
    engine.submit(make_request("a", range(1, 18), sampling=beams(4, max_tokens=20)))
    for _ in range(steps):
        engine.step()
    if steps % 3 == 2:
        engine.core.scheduler.preempt(engine.core.scheduler.running[-1])
        engine.step()
    engine.core.handle(Abort(request_id="a"), 0.0)
    engine.run()
    assert [(o.branch, o.finish_reason, o.position) for o in engine.outputs] == [
        (0, FinishReason.ABORT, 0), (1, FinishReason.ABORT, 0)
    ]  # fmt: skip
    engine.core.reset_prefix_cache()
    assert all(pool.num_free == pool.num_blocks for pool in engine.core.kv.pools)


def test_a_group_alone_is_never_preempted_for_itself() -> None:
    engine = driver(num_blocks=12, block_size=2, policy="optimistic", prefix_cache=False)
    engine.submit(make_request("a", range(1, 5), sampling=beams(2, max_tokens=7)))
    finish(engine)
    assert engine.counters["preemptions"] == 0


def test_two_groups_in_a_tiny_pool_take_turns() -> None:
    engine = driver(num_blocks=14, block_size=2, policy="optimistic", prefix_cache=False)
    for name, first in (("a", 1), ("b", 9)):
        engine.submit(make_request(name, [first, 2, 3, 4], sampling=beams(2, max_tokens=8)))
    finish(engine)
    assert engine.counters["preemptions"] > 0
    assert engine.counters["beam_splits"] > 0


def test_a_restart_searches_again_and_owes_only_what_was_not_delivered() -> None:
    engine = driver()
    request = make_request("a", [1, 2, 3], sampling=beams(3, n=3))
    engine.submit(request)
    finish(engine)
    whole = list(engine.outputs)
    engine.core.handle(Submit(request=request, epoch=1, finished_branches=(0, 2)), 0.0)
    again = []
    while engine.core.has_work():
        again += engine.core.step(0.0)
    assert [(o.branch, o.epoch, o.token_ids) for o in again] == [(1, 1, whole[1].token_ids)]


def test_a_stop_string_event_means_nothing_to_a_search() -> None:
    engine = driver()
    engine.submit(make_request("a", [1, 2, 3], sampling=beams()))
    engine.step()
    engine.step()
    engine.core.handle(StopBranch(request_id="a", branch=0), 0.0)
    engine.core.handle(StopBranch(request_id="unknown", branch=0), 0.0)
    finish(engine)
    assert engine.counters["branches_stopped"] == 0


def test_stop_tokens_end_beams_and_many_of_them_thin_the_group() -> None:
    engine = driver(policy="reserve", num_blocks=64, block_size=2)
    for index in range(6):
        early = EARLY[index % 3]
        stops = tuple(range(index, 50, 3))
        sampling = beams(5, n=5, stop_token_ids=stops, max_tokens=9, early_stopping=early)
        engine.submit(make_request(f"r{index}", [index, 5], sampling=sampling))
    live = set()
    while engine.core.has_work():
        engine.step()
        live |= {len(s.branches) for s in engine.core.requests.states.values()}
    assert live >= {1, 5}
    assert live & {2, 3, 4}
    engine.verify()
    assert FinishReason.STOP in {o.finish_reason for o in engine.outputs}
    assert all(o.stop_token_id == o.token_ids[-1] for o in engine.outputs
               if o.finish_reason is FinishReason.STOP)  # fmt: skip
    assert engine.counters["preemptions"] == engine.counters["promises_shed"] == 0


def test_logprobs_are_those_of_the_chosen_tokens() -> None:
    engine = driver()
    engine.submit(make_request("a", [4, 5], sampling=beams(3, n=3, logprobs=2, length_penalty=0.0)))
    finish(engine)
    scores = []
    for output in engine.outputs:
        assert [entry.token_id for entry in output.logprobs] == list(output.token_ids)
        assert all(len(entry.top) == 2 for entry in output.logprobs)
        scores.append(sum(entry.logprob for entry in output.logprobs))
    assert scores == sorted(scores, reverse=True)


def test_a_row_without_numbers_drops_the_whole_group() -> None:
    engine = driver()
    engine.submit(make_request("a", [1, 2, 3], sampling=beams()))
    engine.step()
    engine.runner.spoil_next = True
    engine.step()
    engine.run()
    assert [o.finish_reason for o in engine.outputs] == [FinishReason.ERROR] * 2
    assert not engine.core.has_work()


def test_fewer_sequences_than_n_is_an_error_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = driver()
    real = module.next_candidates
    monkeypatch.setattr(module, "next_candidates", lambda *args, **keys: real(*args, **keys)[:1])
    engine.submit(make_request("a", [1, 2, 3], sampling=beams(2, max_tokens=3)))
    engine.run()
    assert [o.finish_reason for o in engine.outputs] == [FinishReason.LENGTH, FinishReason.ERROR]
    assert "fewer sequences than n" in (engine.outputs[1].error or "")
