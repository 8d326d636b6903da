"""Preemption: who is taken, what it costs, that it counts its cost, and that it never thrashes."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.config import CacheConfig, SchedulerConfig
from octavo.core.sampling_params import SamplingParams
from octavo.scheduler import ScheduledStep, Sequence
from octavo.testing import EngineDriver, make_info, make_request


class Watched(EngineDriver):
    """Counts, from the plans alone, what is computed for the first time and what again."""

    def __init__(self, *, num_blocks: int, block_size: int, prefix_cache: bool, seats: int) -> None:
        super().__init__(
            make_info(block_size=block_size, num_blocks=num_blocks),
            SchedulerConfig(policy="optimistic", max_num_seqs=seats, max_num_batched_tokens=64),
            CacheConfig(prefix_cache=prefix_cache),
        )
        self.furthest: Counter[Sequence] = Counter()
        self.num_again = 0
        self.idle_streak = self.longest_streak = 0
        self.plan = self.core.scheduler.plan
        self.core.scheduler.plan = self.watch  # type: ignore[method-assign]

    def watch(self, step_id: int) -> ScheduledStep | None:
        for seq in self.core.scheduler.running:
            # A branch begins with what its parent has computed.
            self.furthest[seq] = max(self.furthest[seq], seq.num_computed)
        step = self.plan(step_id)
        before, again = sum(self.furthest.values()), self.num_again
        for seq, count in step.rows if step is not None else ():
            start, end = seq.num_computed, seq.num_computed + count
            known = self.furthest[seq]
            self.num_again += max(0, min(end, known) - start)
            self.furthest[seq] = max(known, end)
        is_new = sum(self.furthest.values()) > before
        if is_new:
            self.idle_streak = 0
        elif self.num_again > again:
            self.idle_streak += 1
            self.longest_streak = max(self.longest_streak, self.idle_streak)
        return step


def add(driver: EngineDriver, name: str, prompt: list[int], *, tokens: int, n: int = 1) -> None:
    sampling = SamplingParams(max_tokens=tokens, n=n, seed=len(name))
    driver.submit(make_request(name, prompt, sampling=sampling))


def sequences(driver: EngineDriver) -> dict[str, Sequence]:
    return {seq.state.request.request_id: seq for seq in driver.core.scheduler.running}


requests = st.lists(
    st.tuples(st.integers(1, 30), st.integers(1, 20), st.integers(0, 30), st.integers(1, 3)),
    min_size=2,
    max_size=14,
)


@settings(max_examples=50, deadline=None)
@given(
    requests=requests,
    block_size=st.sampled_from([1, 2, 3, 8]),
    spare=st.integers(0, 12),
    prefix_cache=st.booleans(),
    budgets=st.lists(st.integers(1, 64), min_size=1, max_size=8),
)
def test_it_never_thrashes(
    requests: list[tuple[int, int, int, int]],
    block_size: int,
    spare: int,
    prefix_cache: bool,
    budgets: list[int],
) -> None:
    """Whatever arrives when, in a pool as small as can be, under any budgets.

    Steps that compute nothing new come in runs shorter than one sequence, and the count of what is
    computed again is exact.
    """
    worst = max(p + t + (n - 1) * (t + block_size) for p, t, _, n in requests)
    driver = Watched(
        num_blocks=-(-worst // block_size) + 1 + spare,
        block_size=block_size,
        prefix_cache=prefix_cache,
        seats=6,
    )
    arrivals = sorted(enumerate(requests), key=lambda item: item[1][2])
    for at in range(10_000):
        while arrivals and arrivals[0][1][2] <= at:
            number, (prompt, tokens, _, n) = arrivals.pop(0)
            add(driver, f"r{number}", [number % 3] * prompt, tokens=tokens, n=n)
        driver.core.set_token_budget(budgets[at % len(budgets)])
        driver.step()
        if not arrivals and not driver.core.has_work():
            break
    driver.verify()
    assert driver.longest_streak < max(p + t for p, t, _, _ in requests)
    assert driver.counters["recomputed_tokens"] == driver.num_again


def crowded(*, prefix_cache: bool) -> Watched:
    """Eight sequences that grow to four times the pool."""
    driver = Watched(num_blocks=20, block_size=4, prefix_cache=prefix_cache, seats=8)
    for number in range(8):
        add(driver, f"r{number}", [number + 1] * 12, tokens=28)
    driver.run()
    driver.verify()
    assert driver.counters["preemptions"] > 0
    return driver


def test_the_tax_is_counted_and_reported() -> None:
    driver = crowded(prefix_cache=False)
    stats = driver.core.stats()
    assert driver.num_again > 0
    assert stats.counters["recomputed_tokens"] == driver.num_again
    assert stats.gauges["recompute_tax"] == driver.num_again / stats.counters["computed_tokens"]


def test_a_small_budget_makes_steps_that_compute_nothing_new() -> None:
    """So the bound on them is not kept by there being none."""
    driver = Watched(num_blocks=16, block_size=2, prefix_cache=False, seats=2)
    for number in range(2):
        add(driver, f"r{number}", [number + 1] * 12, tokens=20)
    driver.core.set_token_budget(2)
    driver.run()
    driver.verify()
    assert 0 < driver.longest_streak < 32


def test_only_what_is_needed_is_lost() -> None:
    """A victim lets go of everything, but what nobody needs is still cached when it comes back."""
    whole, part = crowded(prefix_cache=False), crowded(prefix_cache=True)
    assert 0 < part.num_again < whole.num_again
    driver = Watched(num_blocks=12, block_size=4, prefix_cache=True, seats=3)
    for name, prompt in (("long", [1] * 16), ("late", [2] * 24)):
        add(driver, name, prompt, tokens=12)
    while not driver.counters["preemptions"]:
        driver.step()
    [victim] = driver.core.scheduler.waiting
    assert victim.num_lost >= 24
    driver.run()
    driver.verify()
    # 7 of its blocks went back to the pool; the other needed 1 or 2 of them.
    assert 0 < driver.num_again <= 12


def test_the_victim_is_who_loses_least_not_who_is_shortest() -> None:
    """What stands before a private block stays with the others that share it: it costs nothing."""
    driver = Watched(num_blocks=14, block_size=4, prefix_cache=True, seats=8)
    add(driver, "oldest", [1] * 16, tokens=40)
    driver.step()
    driver.step()
    add(driver, "shares", [1] * 16 + [9, 9], tokens=30)
    add(driver, "short", [5] * 12, tokens=30)
    driver.step()
    kv = driver.core.kv
    running = sequences(driver)
    shares, short = running["shares"], running["short"]
    assert shares.num_computed > short.num_computed
    assert shares.kv is not None
    assert short.kv is not None
    assert kv.private_part(shares.kv)[1] < kv.private_part(short.kv)[1]
    assert driver.core.scheduler._preempt_one()
    assert list(driver.core.scheduler.waiting) == [shares]
    driver.run()
    driver.verify()


def test_who_frees_nothing_is_no_victim() -> None:
    driver = Watched(num_blocks=20, block_size=4, prefix_cache=True, seats=8)
    add(driver, "oldest", [1] * 8, tokens=20)
    add(driver, "branches", [2] * 8, tokens=20, n=2)
    add(driver, "victim", [3] * 20, tokens=20)
    driver.step()
    kv = driver.core.kv
    costs = {
        (seq.state.request.request_id, seq.branch): kv.private_part(seq.kv)
        for seq in driver.core.scheduler.running
        if seq.kv is not None
    }
    # Just forked: both branches hold the same two blocks.
    assert costs["branches", 0] == costs["branches", 1] == (0, 0)
    assert costs["victim", 0] == (5, 20)
    assert driver.core.scheduler._preempt_one()
    assert [seq.state.request.request_id for seq in driver.core.scheduler.waiting] == ["victim"]
    driver.run()
    driver.verify()


def test_a_window_that_has_moved_costs_the_whole_recomputation() -> None:
    info = make_info(block_size=2, num_blocks=40, windows=(4,))
    driver = EngineDriver(info)
    add(driver, "slid", [1] * 21, tokens=4)
    driver.step()
    driver.step()
    [seq] = driver.core.scheduler.running
    assert seq.kv is not None
    assert seq.kv.tables[0].first_block > 0
    num_blocks, num_lost = driver.core.kv.private_part(seq.kv)
    assert num_blocks == len(seq.kv.tables[0].blocks)
    assert num_lost == seq.num_computed


def test_who_has_run_longest_is_never_taken() -> None:
    driver = Watched(num_blocks=20, block_size=4, prefix_cache=False, seats=8)
    add(driver, "first", [1] * 4, tokens=20)
    add(driver, "second", [2] * 16, tokens=20)
    driver.step()
    scheduler = driver.core.scheduler
    assert scheduler._preempt_one()
    assert list(sequences(driver)) == ["first"]
    assert not scheduler._preempt_one()
    driver.run()
    driver.verify()
