"""The plan: budget, order, seats, victims, slots and refused reservations."""

from __future__ import annotations

from dataclasses import replace

import pytest

from octavo.config import SchedulerConfig
from octavo.core.request import Submit
from octavo.core.sampling_params import SamplingParams
from octavo.errors import ConfigError
from octavo.kv import KVCacheManager
from octavo.scheduler import RequestState, Scheduler, Sequence
from octavo.scheduler.admission import admission_policy
from octavo.scheduler.fair_queue import FairQueue
from octavo.testing import EngineDriver, make_info, make_request


def scheduler(num_blocks: int = 64, block_size: int = 4, **config) -> Scheduler:
    info = make_info(block_size=block_size, num_blocks=num_blocks)
    settings = SchedulerConfig(**{"policy": "optimistic", **config})
    kv = KVCacheManager(info, prefix_cache=True, max_chunk=settings.max_num_batched_tokens)
    return Scheduler(settings, kv)


def sequence(number: int, prompt: list[int], n: int = 1, priority: int = 0) -> Sequence:
    request = replace(
        make_request(f"r{number}", prompt, sampling=SamplingParams(n=n, max_tokens=9)),
        priority=priority,
    )
    state = RequestState(Submit(request=request), order=number, max_output=9, digest=b"")
    return Sequence(state, 0, list(prompt), num_spare=n - 1)


def commit(sched: Scheduler, step) -> None:
    for seq, count in step.rows:
        sched._kv.commit(seq.kv, seq.token_ids, count)
        if seq.num_computed == len(seq.token_ids):
            seq.token_ids.append(99)
    sched._kv.end_step()


def run(sched: Scheduler, step_id: int = 1):
    step = sched.plan(step_id)
    commit(sched, step)
    return step


def test_nothing_to_run_is_no_plan() -> None:
    assert scheduler().plan(1) is None


def test_decodes_come_before_chunks_and_the_budget_bounds_all() -> None:
    sched = scheduler(max_num_batched_tokens=6)
    long, short = sequence(1, list(range(20))), sequence(2, [50, 51])
    sched.add(long)
    step = run(sched)
    assert [(seq, count) for seq, count in step.rows] == [(long, 6)]
    sched.add(short)
    sched.token_budget = 16
    step = run(sched)
    assert step.rows == [(long, 14), (short, 2)]
    extra = sequence(3, list(range(30, 50)))
    sched.add(extra)
    sched.token_budget = 5
    step = run(sched)
    assert step.rows == [(long, 1), (short, 1), (extra, 3)]
    step = run(sched)
    assert step.rows == [(long, 1), (short, 1), (extra, 3)]
    sched.token_budget = 1
    assert run(sched).rows == [(long, 1)]


def test_rows_sample_only_at_the_end_of_the_prompt() -> None:
    sched = scheduler(max_num_batched_tokens=4)
    sched.add(sequence(1, list(range(6)), n=3))
    assert [row.num_samples for row in run(sched).plan.rows] == [0]
    assert [row.num_samples for row in run(sched).plan.rows] == [3]


def test_seats_count_branches_to_come() -> None:
    sched = scheduler(max_num_seqs=4)
    first, second, third = sequence(1, [1], n=3), sequence(2, [2], n=2), sequence(3, [3])
    for seq in (first, second, third):
        sched.add(seq)
    assert [seq for seq, _ in run(sched).rows] == [first]
    # Two seats short: the head of the queue waits, and nobody overtakes it.
    assert list(sched.waiting) == [second, third]


def test_priority_goes_first_then_arrival() -> None:
    queue = FairQueue()
    a, b, c = sequence(1, [1]), sequence(2, [1], priority=-1), sequence(3, [1], priority=-1)
    for seq in (c, a, b):
        queue.add(seq)
    assert [queue.take(), queue.take(), queue.take(), queue.take()] == [b, c, a, None]
    queue.put_back()
    queue.remove(c)
    assert [queue.take(), queue.take(), queue.take()] == [b, a, None]
    assert queue.num_fresh == 2


def test_the_victim_loses_least_work_and_the_last_runner_stays() -> None:
    sched = scheduler(num_blocks=4, block_size=2)
    old, young = sequence(1, [1, 2, 3, 4]), sequence(2, [5, 6])
    sched.add(old)
    sched.add(young)
    assert len(run(sched).rows) == 2
    step = run(sched)
    assert [seq for seq, _ in step.rows] == [old]
    assert sched.counters.preemptions == 1
    assert list(sched.waiting) == [young]
    assert young.kv is None
    assert young.num_lost == 2
    # No room for the victim while the other runs, then it comes back.
    sched.finish(old)
    step = run(sched)
    assert [seq for seq, _ in step.rows] == [young]
    assert young.num_computed == 3


def test_the_last_runner_waits_for_a_lease_rather_than_being_preempted() -> None:
    sched = scheduler(num_blocks=2, block_size=2)
    gone, seq = sequence(1, [1, 2]), sequence(2, [3, 4])
    sched.add(gone)
    sched.add(seq)
    run(sched)
    lease = sched._kv.lease(gone.kv)
    sched.finish(gone)
    assert sched.plan(2) is None
    assert sched.running == [seq]
    chunk = seq.token_ids
    chunk.append(7)
    assert sched.plan(2) is None
    sched._kv.end_lease(lease)
    assert run(sched).rows == [(seq, 2)]


def test_a_chunk_that_does_not_fit_preempts() -> None:
    sched = scheduler(num_blocks=6, block_size=2, max_num_batched_tokens=6)
    seq, other = sequence(1, list(range(8))), sequence(2, [20, 21, 22])
    sched.add(seq)
    run(sched)
    sched.add(other)
    run(sched)
    assert len(sched.running) == 2
    seq.token_ids += [1, 2, 3]
    step = run(sched)
    assert [s for s, _ in step.rows] == [seq]
    assert sched.counters.preemptions == 1


@pytest.mark.parametrize("nth", [1, 2])
def test_a_refused_reservation_changes_nothing(nth: int) -> None:
    sched = scheduler()
    sched.add(sequence(1, [1, 2, 3, 4]))
    run(sched)
    sched.add(sequence(2, [1, 2, 3, 4, 5]))
    sched.add(sequence(3, [7, 8, 9]))
    pool = sched._kv.pools[0]
    real, calls = pool.allocate, []

    def allocate(owner: int, count: int):
        calls.append(count)
        return None if len(calls) == nth else real(owner, count)

    free = pool.num_available
    pool.allocate = allocate
    assert sched.plan(2) is None
    pool.allocate = real
    assert pool.num_available == free
    assert sched._kv.num_pins == 0
    assert len(sched.waiting) == 2
    assert sched.counters.refused_reservations == 1
    assert len(run(sched).rows) == 3


def test_slots_are_freed_reused_and_resent() -> None:
    sched = scheduler(max_num_seqs=2)
    a, b, c = (sequence(i, [i, i]) for i in range(3))
    sched.add(a)
    sched.add(b)
    plan = run(sched).plan
    assert [state.slot for state in plan.new_slots] == [0, 1]
    assert plan.new_slots[0].token_ids == (0, 0)
    sched.finish(a)
    sched.finish(a)
    assert sched.num_slots_taken == 1
    plan = run(sched).plan
    assert plan.freed_slots == (0,)
    sched.finish(b)
    sched.add(c)
    plan = run(sched).plan
    # Slot 0 is taken again; only slot 1 was freed.
    assert [state.slot for state in plan.new_slots] == [0]
    assert plan.freed_slots == (1,)
    sched.resync()
    plan = run(sched).plan
    assert plan.generation == 1
    assert [state.slot for state in plan.new_slots] == [0]
    assert plan.new_slots[0].token_ids == tuple(c.token_ids[: plan.rows[0].start + 1])
    assert plan.rows[0].tables[0].keep == 0
    assert plan.freed_slots == ()


def test_a_partial_hit_is_given_up_when_the_copy_does_not_fit() -> None:
    """A pool of exactly the worst case: the block to copy from would be one too many."""
    driver = EngineDriver(make_info(block_size=4, num_blocks=3), SchedulerConfig(policy="reserve"))
    driver.submit(
        make_request("a", [1, 2, 3, 4, 5, 6, 7, 8, 9], sampling=SamplingParams(max_tokens=4))
    )
    driver.run()
    driver.submit(
        make_request("b", [1, 2, 3, 4, 5, 6, 70, 8, 9], sampling=SamplingParams(max_tokens=4))
    )
    driver.run()
    driver.verify()
    assert driver.outputs[-1].num_cached_tokens == 4
    assert driver.counters["partial_hits"] == 0


def test_policies() -> None:
    reserve, optimistic = admission_policy("reserve"), admission_policy("optimistic")
    reserve.observe("a", 700, 5)
    optimistic.observe("a", 700, 5)
    assert (reserve.output_tokens("a", 700), optimistic.output_tokens("a", 700)) == (700, 1)
    with pytest.raises(ConfigError, match=r"'greedy'.*reserve, estimate, optimistic"):
        admission_policy("greedy")


def test_the_estimate_follows_what_it_sees() -> None:
    estimate = admission_policy("estimate")
    assert estimate.output_tokens("a", 50) == 50
    for _ in range(100):
        estimate.observe("a", 10_000, 20)
    assert 20 <= estimate.output_tokens("a", 10_000) <= 40
    for _ in range(100):
        estimate.observe("a", 10_000, 300)
    assert 290 <= estimate.output_tokens("a", 10_000) <= 400


def test_the_estimate_learns_per_tenant_and_class() -> None:
    estimate = admission_policy("estimate")
    for _ in range(100):
        estimate.observe("terse", 1000, 10)
        estimate.observe("wordy", 1000, 500)
        estimate.observe("wordy", 100, 90)
    assert 10 <= estimate.output_tokens("terse", 1000) <= 30
    assert 500 <= estimate.output_tokens("wordy", 1000) <= 600
    # 100 and 90 have as many bits: one class.
    assert 80 <= estimate.output_tokens("wordy", 90) <= 90
    # Another class of a known tenant: what the tenant needs. An unknown one: what all need.
    assert 10 <= estimate.output_tokens("terse", 5000) <= 30
    assert 150 <= estimate.output_tokens("wordy", 5000) <= 1500
    assert 100 <= estimate.output_tokens("new", 5000) <= 1500
    # A class that is new starts from its tenant.
    estimate.observe("terse", 5000, 5000)
    assert estimate.output_tokens("terse", 5000) > 600


def test_the_estimate_forgets_who_was_not_seen_for_long() -> None:
    estimate = admission_policy("estimate")
    for _ in range(50):
        estimate.observe("old", 1000, 10)
    for number in range(estimate.max_averages):
        estimate.observe(f"t{number}", 1000, 900)
    assert len(estimate._averages) == estimate.max_averages
    assert estimate.output_tokens("old", 1000) > 100


def test_plans_are_deterministic() -> None:
    def plans():
        sched = scheduler(num_blocks=12)
        out = []
        for i in range(6):
            sched.add(sequence(i, [i, 1, 2, 3, 4], n=1 + i % 2))
        for step_id in range(12):
            step = sched.plan(step_id)
            if step is not None:
                out.append(step.plan)
                commit(sched, step)
        return out

    assert plans() == plans()


def refused_head() -> tuple[Scheduler, Sequence, Sequence]:
    """One runs, and the head of the queue was refused: it needs 6 blocks, 5 are left."""
    sched = scheduler(num_blocks=8, block_size=4, policy="estimate", max_num_batched_tokens=16)
    first, head = sequence(1, list(range(4))), sequence(2, [50] * 16)
    sched.add(first)
    sched.add(head)
    run(sched)
    assert list(sched.waiting) == [head]
    assert sched.num_refusals == 1
    return sched, first, head


def test_a_refused_head_is_not_looked_up_again_for_nothing() -> None:
    sched, _, head = refused_head()
    lookup = sched._kv.lookup
    sched._kv.lookup = None
    run(sched)
    assert list(sched.waiting) == [head]
    sched._kv.lookup = lookup


def test_a_refused_head_is_tried_again_when_it_needs_less() -> None:
    sched, _, head = refused_head()
    for _ in range(100):
        sched.policy.observe("default", 9, 1)
    assert head in [seq for seq, _ in run(sched).rows]


def test_a_refused_head_is_tried_again_when_there_is_more() -> None:
    sched, first, head = refused_head()
    sched._kv.promise(first.kv, 0, branches=1, fork_at=0)
    assert head in [seq for seq, _ in run(sched).rows]


def test_another_head_is_tried() -> None:
    sched, _, head = refused_head()
    urgent = sequence(3, [60], priority=-1)
    sched.waiting.add(urgent)
    assert sched.num_refusals == 1
    assert [seq for seq, _ in run(sched).rows][-1] is urgent
    assert list(sched.waiting) == [head]


def test_whoever_ends_or_arrives_voids_the_refusal() -> None:
    """So nothing keeps a finished sequence and its tokens."""
    sched, first, head = refused_head()
    sched.finish(head)
    assert sched.num_refusals == 0
    sched, first, head = refused_head()
    sched.preempt(first)
    assert sched.num_refusals == 0


def test_the_token_budget_can_be_set_within_its_limit() -> None:
    driver = EngineDriver(scheduler=SchedulerConfig(max_num_batched_tokens=8))
    driver.core.set_token_budget(3)
    driver.submit(make_request("a", list(range(20))))
    driver.step()
    assert driver.counters["computed_tokens"] == 3
    driver.core.set_token_budget(99)
    driver.step()
    assert driver.counters["computed_tokens"] == 11
    driver.core.set_token_budget(0)
    driver.run()
    driver.verify()
