"""The engine's step: forks, stops, prefix hits, preemption, chunks; each proved by a counter."""

from __future__ import annotations

from dataclasses import replace

import pytest

from octavo.config import CacheConfig, SchedulerConfig
from octavo.core.request import FinishReason, StopBranch
from octavo.core.runner import KVGroupSpec
from octavo.core.sampling_params import SamplingParams
from octavo.engine import EngineCore
from octavo.testing import EngineDriver, make_info, make_request

PROMPT = list(range(20, 57))
BLOCK_SIZES = (1, 2, 3, 8, 16, 32)


def sampling(**fields) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 8, "seed": 1, **fields})


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@pytest.mark.parametrize("windows", [(None,), (None, 6), (9, None), (5,)])
def test_a_batch_answers_like_each_alone(block_size: int, windows: tuple[int | None, ...]) -> None:
    """Chunks, mixed batches, forks and hits in one run: nothing changes an answer."""
    info = make_info(block_size=block_size, num_blocks=1200 // block_size, windows=windows)
    driver = EngineDriver(info, SchedulerConfig(max_num_batched_tokens=24))
    for i in range(8):
        prompt = [*PROMPT[: 10 + 3 * i], i]
        driver.submit(make_request(f"r{i}", prompt, sampling=sampling(n=1 + i % 3, seed=i)))
    driver.run()
    driver.submit(make_request("warm", [*PROMPT[:33], 99]))
    driver.run()
    driver.verify()
    counters = driver.counters
    assert counters["mixed_steps"] > 0
    assert counters["forks"] == 7
    assert counters["prefix_hit_tokens"] > 0
    assert driver.runner.counts.fork_rows == 5
    if block_size > 1:
        assert counters["cow_copies"] > 0
        assert counters["partial_hits"] > 0


def test_prompt_of_n_branches_is_computed_once() -> None:
    driver = EngineDriver(make_info(block_size=16))
    driver.submit(make_request("r", PROMPT, sampling=sampling(n=4, max_tokens=5)))
    driver.run()
    driver.verify()
    # 37 prompt tokens once, then 4 tokens of each branch (the last is never computed).
    assert driver.counters["computed_tokens"] == 37 + 4 * 4
    assert driver.counters["cow_copies"] == 3


@pytest.mark.parametrize("chunk", [1, 3, 7, 16, 64])
def test_any_chunk_size(chunk: int) -> None:
    driver = EngineDriver(make_info(block_size=8), SchedulerConfig(max_num_batched_tokens=chunk))
    driver.submit(make_request("r", PROMPT))
    driver.run()
    driver.verify()
    assert driver.runner.counts.steps >= -(-len(PROMPT) // chunk)


@pytest.mark.parametrize("at", range(12))
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_preempted_at_any_step(at: int, prefix_cache: bool) -> None:
    driver = EngineDriver(
        make_info(block_size=8),
        SchedulerConfig(max_num_batched_tokens=16),
        CacheConfig(prefix_cache=prefix_cache),
    )
    for i in range(3):
        driver.submit(make_request(f"r{i}", PROMPT[i:], sampling=sampling(n=2, seed=i)))
    steps = 0
    while driver.core.has_work():
        if steps == at:
            for seq in list(driver.core.scheduler.running):
                driver.core.scheduler.preempt(seq)
        driver.step()
        steps += 1
    driver.verify()
    assert (driver.counters["preemptions"] > 0) == (0 < at < steps)


def test_too_small_a_pool_preempts_and_ends() -> None:
    driver = EngineDriver(
        make_info(block_size=4, num_blocks=14), SchedulerConfig(policy="optimistic")
    )
    for i in range(4):
        driver.submit(make_request(f"r{i}", [i] * 9, sampling=sampling(max_tokens=30, seed=i)))
    driver.run()
    driver.verify()
    counters = driver.counters
    assert counters["preemptions"] > 0
    assert counters["recomputed_tokens"] > 0


@pytest.mark.parametrize("policy", ["reserve", "estimate", "optimistic"])
def test_every_policy_ends_every_request(policy: str) -> None:
    driver = EngineDriver(make_info(block_size=4, num_blocks=40), SchedulerConfig(policy=policy))
    for i in range(12):
        driver.submit(
            make_request(f"r{i}", [i, 1, 2], sampling=sampling(max_tokens=1 + 5 * i, seed=i))
        )
    driver.run()
    driver.verify()
    if policy == "reserve":
        assert driver.counters["preemptions"] == 0


def test_an_identical_prompt_waits_for_the_commit() -> None:
    driver = EngineDriver(make_info(block_size=8))
    for i in range(3):
        driver.submit(make_request(f"r{i}", PROMPT, sampling=sampling(seed=i)))
    driver.run()
    driver.verify()
    counters = driver.counters
    assert counters["twin_waits"] > 0
    # The second and third read all but the last prompt token, or whole blocks, from the first.
    assert counters["prefix_hit_tokens"] >= 2 * 32
    assert driver.entries["r1"].request.prompt_token_ids == tuple(PROMPT)
    assert {o.num_cached_tokens for o in driver.outputs if o.request_id == "r1"} == {32}


def test_a_hit_ends_before_the_last_token() -> None:
    driver = EngineDriver(make_info(block_size=8))
    driver.submit(make_request("a", PROMPT[:32]))
    driver.run()
    driver.submit(make_request("b", PROMPT[:32]))
    driver.run()
    driver.verify()
    assert driver.outputs[-1].num_cached_tokens == 31
    assert driver.counters["partial_hits"] == 1


@pytest.mark.parametrize("field", ["tenant", "domain"])
def test_tenants_and_domains_share_nothing(field: str) -> None:
    driver = EngineDriver(make_info(block_size=8))
    driver.submit(make_request("a", PROMPT))
    driver.run()
    driver.submit(replace(make_request("b", PROMPT), **{field: "other"}))
    driver.run()
    driver.verify()
    assert driver.counters["prefix_hit_tokens"] == 0


def test_reset_prefix_cache() -> None:
    driver = EngineDriver(make_info(block_size=8))
    driver.submit(make_request("a", PROMPT, sampling=sampling(max_tokens=20)))
    for _ in range(4):
        driver.step()
    driver.core.reset_prefix_cache()
    driver.run()
    assert driver.core.kv.pools[0].num_cached == 0
    driver.submit(make_request("b", PROMPT))
    driver.run()
    driver.verify()
    assert driver.counters["prefix_hit_tokens"] == 0


def test_prefix_cache_off() -> None:
    driver = EngineDriver(make_info(block_size=8), cache=CacheConfig(prefix_cache=False))
    for name in "ab":
        driver.submit(make_request(name, PROMPT))
        driver.run()
    driver.verify()
    assert driver.core.kv.pools[0].num_free == 64


# -- endings -----------------------------------------------------------------------------------


def answer(**fields) -> list[int]:
    driver = EngineDriver()
    entry = driver.submit(make_request("r", PROMPT, sampling=sampling(**fields)))
    driver.run()
    return entry.delivered[0]


def test_stop_token_ends_with_its_id() -> None:
    tokens = answer()
    driver = EngineDriver()
    driver.submit(make_request("eos", PROMPT, eos=(tokens[3],)))
    driver.submit(make_request("stop", PROMPT, sampling=sampling(stop_token_ids=(tokens[2],))))
    driver.submit(
        make_request("ignore", PROMPT, sampling=sampling(ignore_eos=True), eos=(tokens[0],))
    )
    driver.run()
    last = {o.request_id: o for o in driver.outputs if o.finish_reason}
    assert driver.entries["eos"].delivered[0] == tokens[:4]
    assert (last["eos"].finish_reason, last["eos"].stop_token_id) == (FinishReason.STOP, tokens[3])
    assert driver.entries["stop"].delivered[0] == tokens[:3]
    assert last["stop"].stop_token_id == tokens[2]
    assert driver.entries["ignore"].delivered[0] == tokens
    assert (last["ignore"].finish_reason, last["ignore"].stop_token_id) == (
        FinishReason.LENGTH,
        None,
    )


def test_min_tokens_bans_what_would_stop() -> None:
    tokens = answer()
    driver = EngineDriver()
    entry = driver.submit(
        make_request("r", PROMPT, sampling=sampling(min_tokens=4), eos=(tokens[1],))
    )
    driver.run()
    driver.verify()
    assert tokens[1] not in entry.delivered[0][:4]
    assert len(entry.delivered[0]) >= 4


def test_the_model_length_ends_a_branch() -> None:
    driver = EngineDriver(make_info(max_model_len=40))
    entry = driver.submit(make_request("r", PROMPT))
    driver.run()
    assert len(entry.delivered[0]) == 3
    assert entry.ended[0] is FinishReason.LENGTH


def test_stop_branch_ends_one_branch_only() -> None:
    driver = EngineDriver()
    entry = driver.submit(make_request("r", PROMPT, sampling=sampling(n=3)))
    driver.core.handle(StopBranch(request_id="r", branch=1), 0.0)
    driver.core.handle(StopBranch(request_id="nobody", branch=0), 0.0)
    driver.step()
    driver.step()
    driver.core.handle(StopBranch(request_id="r", branch=1), 0.0)
    driver.core.handle(StopBranch(request_id="r", branch=1), 0.0)
    driver.run()
    assert [len(tokens) for tokens in entry.delivered] == [8, 2, 8]
    assert entry.ended[1] is FinishReason.STOP
    assert driver.counters["branches_stopped"] == 1


def test_logprobs_travel_with_their_tokens() -> None:
    driver = EngineDriver()
    driver.submit(make_request("r", PROMPT, sampling=sampling(n=2, logprobs=0)))
    driver.run()
    for output in driver.outputs:
        assert [entry.token_id for entry in output.logprobs] == list(output.token_ids)


def test_stats_and_dumps() -> None:
    driver = EngineDriver(make_info(block_size=8))
    driver.submit(make_request("r", PROMPT, sampling=sampling(n=2)))
    driver.submit(make_request("late", PROMPT))
    driver.step()
    stats = driver.core.stats()
    assert (stats.num_running, stats.num_waiting) == (2, 1)
    assert stats.gauges["orphan_blocks"] == 0
    assert stats.gauges["kv_metadata_bytes"] > 0
    assert 0 < stats.gauges["kv_usage"] < 1
    terms = [v for k, v in stats.gauges.items() if k.startswith("kv_bytes_")]
    assert sum(terms) == 2 * stats.gauges["kv_bytes_pool"]
    ledger = driver.core.ledger()
    assert ledger.shared > 0
    assert ledger.accounted == ledger.pool
    dump = driver.core.debug_kv()
    assert set(dump.groups[0].tables) == {"r/0", "r/1"}
    requests = driver.core.debug_requests()
    assert requests["late"]["branches"][0]["status"] == "waiting"
    assert requests["r"]["branches"][1]["num_output_tokens"] == 1
    driver.run()
    assert driver.core.debug_requests() == {}
    assert driver.core.progress == driver.runner.counts.steps


@pytest.mark.parametrize(
    "change",
    [
        {"fingerprint": "x"},
        {"model_digest": "x"},
        {"tokenizer_digest": "x"},
        {"rope": "x"},
        {"kv_dtype": "x"},
        {"block_size": 8},
        {"groups": (KVGroupSpec(window=5, num_layers=2),)},
        {"groups": (KVGroupSpec(num_layers=3),)},
    ],
)
def test_every_fact_of_the_runner_is_in_the_key(change: dict[str, object]) -> None:
    digests = set()
    for info in (make_info(), replace(make_info(), **change)):
        driver = EngineDriver(info)
        driver.submit(make_request("r", PROMPT))
        digests.add(driver.core.requests.states["r"].digest)
    assert len(digests) == 2


@pytest.mark.parametrize("field", ["adapter", "tenant", "domain"])
def test_every_fact_of_the_request_is_in_the_key(field: str) -> None:
    request = make_request("r", PROMPT)
    key_of = EngineDriver().core.requests._prefix_key
    assert key_of(replace(request, **{field: "x"})).digest() != key_of(request).digest()


@pytest.mark.parametrize("priority", [-2, 2, True, 0.0])
def test_a_priority_that_does_not_exist_is_refused(priority: object) -> None:
    driver = EngineDriver()
    driver.submit(replace(make_request("r", PROMPT), priority=priority))
    driver.run()
    [output] = driver.outputs
    assert output.error_param == "priority"
    assert "-1" in str(output.error)


def test_production_checks_every_n_steps_only() -> None:
    driver = EngineDriver()
    config = SchedulerConfig(check_every_n_steps=0)
    driver.core = EngineCore(driver.runner, config, CacheConfig(), epoch=3)
    driver.submit(make_request("r", PROMPT))
    driver.run()
    driver.verify()
    assert driver.core.epoch == 3
    assert driver.core.violations == []


@pytest.mark.parametrize("n", [2, 3, 5])
def test_branches_that_wait_for_budget_copy_once_each(n: int) -> None:
    """Fewer tokens a step than branches: the parent writes in place only when it is alone."""
    driver = EngineDriver(
        make_info(block_size=8), SchedulerConfig(max_num_batched_tokens=1, policy="reserve")
    )
    driver.submit(make_request("r", PROMPT[:3], sampling=sampling(n=n)))
    driver.run()
    driver.verify()
    assert driver.counters["cow_copies"] == n - 1
    assert driver.counters["promises_shed"] == 0


def test_a_branch_left_alone_by_its_siblings_needs_no_copy() -> None:
    driver = EngineDriver(
        make_info(block_size=8), SchedulerConfig(max_num_batched_tokens=4, policy="reserve")
    )
    driver.submit(make_request("r", PROMPT[:3], sampling=sampling(n=2)))
    driver.step()
    driver.core.handle(StopBranch(request_id="r", branch=0), 0.0)
    driver.run()
    driver.entries["r"].verify(1, driver.info)
    assert driver.counters["cow_copies"] == 0


def test_a_parent_writes_in_place_and_its_branches_copy() -> None:
    """The copies that are promised, one per branch forked, are the copies that are made."""
    driver = EngineDriver(make_info(block_size=8))
    driver.submit(make_request("a", PROMPT, sampling=sampling(n=3)))
    driver.step()
    branches = driver.core.requests.states["a"].branches
    kv = branches[0].kv
    assert kv is not None
    assert [seq.branch for seq in driver.core.scheduler.running] == [1, 2, 0]
    assert [seq.kv.cow_due for seq in branches.values() if seq.kv] == [False, True, True]
    tail = kv.tables[0].blocks[-1]
    driver.step()
    assert kv.tables[0].blocks[-1] == tail
    assert driver.counters["cow_copies"] == 2
