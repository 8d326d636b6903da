"""A floor of cache per tenant: eviction against an obvious twin, and a flood that stops at it."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from octavo.config import SchedulerConfig
from octavo.core.sampling_params import SamplingParams
from octavo.kv.cached_blocks import CachedBlocks
from octavo.testing import EngineDriver, make_info, make_request

NUM_BLOCKS = 12


def evicted(cached: list[tuple[int, str]], num_blocks: int, tenant: str) -> int:
    """The twin: the oldest whose tenant is above its floor, else the needer's oldest, or any."""
    tenants = {tenant for _, tenant in cached}
    floor = num_blocks // 2 // len(tenants)
    for block, name in cached:
        if len(tenants) > 1 and sum(other == name for _, other in cached) > floor:
            return block
    own = [block for block, name in cached if name == tenant]
    return own[0] if own else cached[0][0]


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.sampled_from("abc")),
            st.tuples(st.just("remove"), st.integers(0, NUM_BLOCKS - 1)),
            st.tuples(st.just("evict"), st.integers(0, 3)),
        ),
        max_size=60,
    )
)
def test_who_is_evicted(operations: list[tuple[str, str | int]]) -> None:
    cache, twin = CachedBlocks(NUM_BLOCKS), []
    free = list(range(NUM_BLOCKS))
    for verb, value in operations:
        if verb == "add" and free and isinstance(value, str):
            block = free.pop(0)
            cache.add(block, value)
            twin.append((block, value))
        elif twin and isinstance(value, int):
            at = value % len(twin) if verb == "remove" else 0
            needer = "abcd"[value % 4]
            block = twin[at][0] if verb == "remove" else cache.next(needer)
            if verb == "evict":
                assert block == evicted(twin, NUM_BLOCKS, needer)
            cache.remove(block)
            twin = [entry for entry in twin if entry[0] != block]
            free.append(block)
        assert cache.blocks() == [block for block, _ in twin]
        assert len(cache) == len(twin)
        assert all((block in cache) != (block in free) for block in range(NUM_BLOCKS))
        for tenant in "abcd":
            others = {other for _, other in twin if other != tenant}
            counts = [sum(name == other for _, name in twin) for other in others]
            assert cache.kept_from(tenant) == sum(min(cache.floor, count) for count in counts)


def test_with_nobody_above_the_floor_a_stranger_takes_the_oldest() -> None:
    cache = CachedBlocks(8)
    for block, tenant in enumerate("ab"):
        cache.add(block, tenant)
    assert cache.next("c") == 0
    cache.remove(0)
    cache.add(0, "a")
    assert cache.next("c") == 1
    cache.add(2, "a")
    cache.remove(0)
    cache.add(3, "b")
    cache.remove(1)
    assert cache.next("c") == 2, "though b is the tenant that was there first"


def test_half_of_the_pool_is_divided_among_those_that_have_cached_blocks() -> None:
    cache, floors = CachedBlocks(13), []
    for block, tenant in enumerate("abcd"):
        cache.add(block, tenant)
        floors.append(cache.floor)
    assert floors == [6, 3, 2, 1]


def test_who_has_more_than_its_floor_is_evicted_before_the_needer_and_the_oldest() -> None:
    cache = CachedBlocks(8)
    for block, tenant in enumerate("abbb"):
        cache.add(block, tenant)
    assert cache.floor == 2
    assert cache.next("a") == cache.next("c") == 1
    cache.remove(1)
    assert cache.next("a") == 0, "nobody is above: the needer's own"


def submit(driver: EngineDriver, name: str, tenant: str, prompt: list[int], tokens: int) -> None:
    sampling = SamplingParams(max_tokens=tokens, seed=1)
    request = make_request(name, prompt, sampling=sampling)
    driver.submit(replace(request, tenant=tenant))


def test_a_flood_leaves_the_others_their_floor() -> None:
    """A hundred prompts of one tenant, many at once, against the eight blocks of another."""
    driver = EngineDriver(
        make_info(block_size=4, num_blocks=64),
        SchedulerConfig(max_num_seqs=16, max_waiting=200, policy="reserve"),
    )
    mine = list(range(33))
    submit(driver, "mine", "quiet", mine, 1)
    driver.run()
    for number in range(100):
        flood = [40 + number % 9, 30 + number // 9, *range(20)]
        submit(driver, f"f{number}", "flood", flood, 10)
    driver.run()
    assert driver.counters["evicted_blocks"] > 300
    submit(driver, "again", "quiet", mine, 1)
    driver.run()
    driver.verify()
    assert driver.outputs[-1].num_cached_tokens == 32
    # Without another tenant's need for them, the same blocks go as the oldest would.
    for number in range(100):
        flood = [40 + number % 9, 30 + number // 9, *range(20)]
        submit(driver, f"g{number}", "quiet", flood, 10)
    driver.run()
    submit(driver, "gone", "quiet", mine, 1)
    driver.run()
    assert driver.outputs[-1].num_cached_tokens == 0


def test_a_request_that_needs_the_whole_pool_gets_it() -> None:
    """Floors bind who wants in beside others; a request alone is not kept waiting for them."""
    driver = EngineDriver(make_info(block_size=4, num_blocks=16), SchedulerConfig(policy="reserve"))
    submit(driver, "kept", "quiet", list(range(25)), 1)
    driver.run()
    submit(driver, "small", "loud", [1] * 8, 40)
    submit(driver, "whole", "loud", [2] * 24, 40)
    driver.step()
    assert [seq.state.request.request_id for seq in driver.core.scheduler.waiting] == ["whole"]
    driver.run()
    driver.verify()
    assert driver.counters["preemptions"] == 0
