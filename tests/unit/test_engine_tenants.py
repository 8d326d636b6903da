"""Tenants and salts across a death of the engine: apart in cache, answers and turns, as before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from octavo.config import SchedulerConfig
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.testing import EngineDriver, make_info, make_request

PROMPT = list(range(1, 14))
OWNERS = [("red", ""), ("blue", ""), ("red", "salt"), ("blue", "salt")]


def driver() -> EngineDriver:
    info = make_info(block_size=2, num_blocks=96)
    return EngineDriver(info, SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=16))


def asked(name: str, tenant: str, domain: str = "", *, seed: int = 1, tokens: int = 6) -> Request:
    """The same prompt for everybody; ``seed`` makes the answer theirs."""
    sampling = SamplingParams(max_tokens=tokens, seed=seed)
    return replace(make_request(name, PROMPT, sampling=sampling), tenant=tenant, domain=domain)


def replay(dead: EngineDriver) -> EngineDriver:
    """A new engine that the journal's open requests are submitted to again."""
    engine = driver()
    engine.entries = dead.entries
    for entry in engine.entries.values():
        if not entry.is_done:
            entry.epoch += 1
            engine.core.handle(entry.submit(), engine.now)
    return engine


def check_apart(engine: EngineDriver) -> int:
    """No block is held for two owners; how many are held by several of one's requests."""
    holders: dict[int, list[tuple[str, str]]] = {}
    for seq in engine.core.scheduler.running:
        assert seq.kv is not None
        request = seq.state.request
        for block in seq.kv.tables[0].blocks:
            holders.setdefault(block, []).append((request.tenant, request.domain))
    assert all(len(set(owners)) == 1 for owners in holders.values())
    return sum(len(owners) > 1 for owners in holders.values())


@pytest.mark.parametrize("death", range(1, 24, 2))
def test_nothing_crosses_between_owners_before_or_after_a_death(death: int) -> None:
    engine = driver()
    for number in range(20):
        tenant, domain = OWNERS[number % 4]
        engine.submit(asked(f"r{number}", tenant, domain, seed=number))
    num_shared = 0
    for _ in range(death):
        engine.step()
        num_shared += check_apart(engine)
    engine = replay(engine)
    while engine.core.has_work():
        engine.step()
        num_shared += check_apart(engine)
    # Each has its own answer, which is what it would have got alone.
    engine.verify()
    answers = [tuple(entry.delivered[0]) for entry in engine.entries.values()]
    assert len(set(answers)) == len(answers)
    assert num_shared > 0


def test_what_one_replayed_into_the_cache_is_not_found_by_another() -> None:
    engine = driver()
    engine.submit(asked("first", "red"))
    for _ in range(4):
        engine.step()
    engine = replay(engine)
    engine.run()
    assert engine.core.kv.pools[0].cached_by_tenant().keys() == {"red"}

    def cached(name: str, tenant: str, domain: str) -> int:
        engine.submit(asked(name, tenant, domain, seed=len(engine.entries)))
        engine.run()
        [count] = {o.num_cached_tokens for o in engine.outputs if o.request_id == name}
        return count

    assert [cached(f"new {owner}", *owner) for owner in OWNERS] == [12, 0, 0, 0]
    assert [cached(f"again {owner}", *owner) for owner in OWNERS] == [12, 12, 12, 12]
    engine.verify()


@pytest.mark.parametrize("death", [0, 3, 9, 20])
def test_turns_stay_fair_after_a_death(death: int) -> None:
    """A flood that came first is not let in first again: what is served stays even."""
    engine = driver()
    for number in range(24):
        engine.submit(asked(f"red {number}", "red", seed=number, tokens=4))
    for number in range(8):
        engine.submit(asked(f"blue {number}", "blue", seed=number, tokens=4))
    for _ in range(death):
        engine.step()
    engine = replay(engine)
    before = done(engine)
    while done(engine)["blue"] < 8:
        engine.step()
        served = {name: count - before[name] for name, count in done(engine).items()}
        # Apart by no more than what runs at once.
        assert abs(served["red"] - served["blue"]) <= 8
    engine.run()
    engine.verify()
    assert engine.core.scheduler.waiting.num_accounts == 0


def done(engine: EngineDriver) -> dict[str, int]:
    """Requests that have ended, by tenant."""
    counts = {"red": 0, "blue": 0}
    for entry in engine.entries.values():
        counts[entry.request.tenant] += entry.is_done
    return counts
