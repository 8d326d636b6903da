"""``octavo bench memory``: allocators, replays in virtual time, beams, and the report."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from octavo.bench.contiguous import (
    ALLOCATORS,
    RULES,
    Buddy,
    FirstFit,
    Reservation,
    power_of_two,
    replay_contiguous,
)
from octavo.bench.report import ABSENT
from octavo.bench.virtual import (
    FIRST_NATS,
    GAP_NATS,
    KVUsage,
    Replay,
    Setup,
    StepTime,
    VirtualEngine,
    candidates,
    prompt_ids,
)
from octavo.bench.workload import PlannedRequest, Segment
from octavo.cli.main import main
from octavo.errors import ConfigError
from octavo.kv import check_kv

SECOND = StepTime(base_s=1.0, token_s=0.0)


def planned(index: int, prompt: int, output: int, at_s: float = 0.0) -> PlannedRequest:
    return PlannedRequest(
        index=index, at_s=at_s, segments=(Segment(f"own/{index}", prompt),), output_tokens=output
    )


# -- contiguous --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALLOCATORS)
def test_an_allocator_gives_each_slot_once_and_takes_all_back(name: str) -> None:
    """Against a bitmap; at the end the whole pool is one piece again."""
    rng, pool, taken, held = Random(3), ALLOCATORS[name](256), [0] * 256, []
    refused = 0
    for _ in range(3000):
        if held and rng.random() < 0.5:
            start, length = held.pop(rng.randrange(len(held)))
            pool.free(start, length)
            taken[start : start + length] = [0] * length
            continue
        count = rng.randint(1, 60)
        piece = pool.allocate(count)
        if piece is None:
            refused += 1
            runs = "".join(map(str, taken)).split("1")
            if name == "first fit":
                assert max(map(len, runs)) < count
            continue
        start, length = piece
        assert length == (count if name == "first fit" else power_of_two(count))
        assert not any(taken[start : start + length])
        assert start + length <= 256
        taken[start : start + length] = [1] * length
        held.append(piece)
    assert refused > 0
    for piece in held:
        pool.free(*piece)
    assert pool.allocate(256) == (0, 256)
    assert pool.allocate(1) is None


def test_first_fit_takes_the_lowest_hole_and_buddies_find_each_other() -> None:
    pool = FirstFit(10)
    assert [pool.allocate(4), pool.allocate(3), pool.allocate(3)] == [(0, 4), (4, 3), (7, 3)]
    pool.free(0, 4)
    pool.free(7, 3)
    assert pool.allocate(4) == (0, 4)
    assert pool.allocate(4) is None
    buddy = Buddy(8)
    assert [buddy.allocate(3), buddy.allocate(1), buddy.allocate(2)] == [(0, 4), (4, 1), (6, 2)]
    buddy.free(4, 1)
    assert buddy.allocate(4) is None
    buddy.free(6, 2)
    assert buddy.allocate(4) == (4, 4)


def test_the_rules_reserve_what_they_know() -> None:
    request = planned(0, 10, 5)
    assert {name: rule(request, 64) for name, rule in RULES.items()} == {
        "maximum": 64, "power of two": 18, "oracle": 15
    }  # fmt: skip
    assert RULES["power of two"](planned(0, 30, 33), 64) == 64
    assert list(map(power_of_two, (1, 2, 3, 4, 5))) == [1, 2, 4, 4, 8]


def test_a_second_request_waits_for_the_first_ones_reservation() -> None:
    """Ten slots, eight reserved: 4 prompt tokens and 3 more are held for three steps, then go."""
    how = Reservation(
        rule=RULES["maximum"], allocator=FirstFit, capacity=10, context=8, token_budget=4
    )
    usage = replay_contiguous([planned(0, 4, 3), planned(1, 4, 1, at_s=0.5)], how, SECOND)
    # Steps end with 4, 5 and 6 tokens; the second request is refused in the second and third.
    assert usage.percent() == {
        "tokens": 55.0, "later": 15.0, "internal": 10.0, "external": 20.0,
        "tokens_of_reserved": 68.8, "running": 1.0,
    }  # fmt: skip
    assert usage.seconds == 4.0
    late = replay_contiguous([planned(0, 4, 3), planned(1, 6, 1, at_s=9.0)], how, SECOND)
    assert set(late.percent().values()) == {ABSENT}
    assert late.seconds == 11.0


# -- paged -------------------------------------------------------------------------------------


def test_a_replay_is_the_engine_in_virtual_time() -> None:
    setup = Setup(pool_tokens=64, context=64, block_size=4, policy="reserve")
    engine = VirtualEngine(setup, SECOND)
    replay = engine.run([planned(0, 30, 9), planned(1, 30, 9), planned(2, 4, 2, at_s=40.0)])
    # One of 30 + 9 at a time: nine steps each, then silence until the third comes.
    assert [record.end_s for record in replay.records] == [9.0, 18.0, 42.0]
    assert [record.ttft_s for record in replay.records] == [1.0, 10.0, 1.0]
    assert [record.output_tokens for record in replay.records] == [9, 9, 2]
    shares = replay.usage.percent()
    assert shares["running"] == 1.0
    # 30 to 38 tokens of 64; ten blocks of four hold what is there and what is promised.
    assert shares["tokens"] == round(100 * 34 / 64, 1)
    assert shares["external"] == round(100 * 24 / 64, 1)
    assert replay.saved_percent == 0.0
    assert replay.counters["preemptions"] == 0


def test_branches_save_and_optimism_preempts() -> None:
    requests = [planned(index, 33, 20) for index in range(4)]
    roomy = VirtualEngine(Setup(pool_tokens=4096, context=64, n=4), SECOND).run(requests)
    assert roomy.saved_percent > 30
    assert roomy.counters["forks"] == 12
    assert all(record.output_tokens == 80 for record in roomy.records)
    tight = VirtualEngine(Setup(pool_tokens=160, context=64), SECOND).run(requests)
    assert tight.counters["preemptions"] > 0
    assert len(tight.records) == 4


def test_a_pool_that_is_too_small_is_named() -> None:
    with pytest.raises(ConfigError, match="request 0: the request needs up to"):
        VirtualEngine(Setup(pool_tokens=32, context=64), SECOND).run([planned(0, 40, 9)])


def test_prompts_share_the_tokens_of_equal_segments() -> None:
    one = PlannedRequest(
        index=0, at_s=0, segments=(Segment("a", 5), Segment("b", 2)), output_tokens=1
    )
    two = PlannedRequest(
        index=1, at_s=0, segments=(Segment("a", 4), Segment("c", 9)), output_tokens=1
    )
    assert prompt_ids(one)[:4] == prompt_ids(two)[:4]
    assert prompt_ids(one)[5:] != prompt_ids(two)[4:6]


def test_usage_without_a_refusal_is_absent() -> None:
    assert set(KVUsage(8).percent().values()) == {ABSENT}


# -- beams -------------------------------------------------------------------------------------


class CheckedEngine(VirtualEngine):
    """Every invariant after every step, and how many sequences there were at most."""

    widest = 0

    def _measure(self, *args, **options) -> None:
        assert check_kv(self.engine.kv) == []
        self.widest = max(self.widest, len(self.engine.kv.sequences))
        super()._measure(*args, **options)


def search(n: int, requests: list[PlannedRequest]) -> tuple[Replay, CheckedEngine]:
    engine = CheckedEngine(
        Setup(pool_tokens=4096, context=80, block_size=4, n=n, beam=True), SECOND
    )
    return engine.run(requests), engine


def test_beams_are_the_engines_own_searches() -> None:
    replay, engine = search(4, [planned(index, 9 + index, 40) for index in range(3)])
    counters = replay.counters
    # A search chooses once per output token, the first time from the prompt's row; the last choice
    # ends it.
    assert counters["beam_steps"] == 3 * 40
    assert engine.widest == 12
    assert counters["forks"] > 12
    assert counters["cow_copies"] > 0
    assert counters["preemptions"] == 0
    assert [record.output_tokens for record in replay.records] == [4 * 40] * 3
    assert 30 < replay.saved_percent < 75, "four beams that shared everything would save 75"
    pool = engine.engine.kv.pools[0]
    assert pool.num_free == pool.num_blocks


def test_wider_beams_save_more_and_more_than_branches_do() -> None:
    requests = [planned(index, 20, 40) for index in range(3)]
    saved = [search(n, requests)[0].saved_percent for n in (2, 4, 6)]
    assert saved == sorted(saved)
    branches = VirtualEngine(Setup(pool_tokens=4096, context=80, block_size=4, n=4), SECOND)
    assert branches.run(requests).saved_percent < saved[1]


def test_candidates_are_ranked_and_of_the_stated_statistics() -> None:
    drawn = [candidates(8, key=str(key)) for key in range(4000)]
    assert all([token for token, _ in row] == list(range(8)) for row in drawn)
    costs = [[-logprob for _, logprob in row] for row in drawn]
    assert all(row == sorted(row) and row[0] >= 0 for row in costs)
    assert sum(row[0] for row in costs) / 4000 == pytest.approx(FIRST_NATS, rel=0.05)
    assert sum(row[7] - row[0] for row in costs) / 28000 == pytest.approx(GAP_NATS, rel=0.05)
    assert candidates(0, key="0") == ()


# -- the command -------------------------------------------------------------------------------


def test_the_command_reports_every_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        "bench",
        "memory",
        "--num-requests",
        "6",
        "--pool-tokens",
        "1024",
        "--context",
        "256",
    ]
    assert main([*command, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    systems = [row["system"] for row in report["rows"] if row["workload"] == "ShareGPT"]
    assert systems == [
        f"{rule}, {allocator}" for rule in RULES for allocator in ALLOCATORS
    ] + [f"paged, {policy}" for policy in ("reserve", "estimate", "optimistic")]  # fmt: skip
    for row in report["rows"]:
        parts = [row[name] for name in ("tokens", "later", "internal", "external")]
        assert ABSENT in parts or sum(parts) == pytest.approx(100, abs=0.3)
    tables = report["tables"]
    assert {name: len(rows) for name, rows in tables.items()} == {
        "sharing by branches": 12, "block size": 9, "shared prefix": 2, "admission policy": 3
    }  # fmt: skip
    wastes = [row["tail_waste_percent"] for row in tables["block size"]]
    assert wastes[0] == 0.0 < wastes[4] < wastes[-1]
    assert next(row["preemptions"] for row in tables["admission policy"]) == 0
    assert tables["shared prefix"][1]["prompt_tokens_cached_percent"] > 0


def test_a_trace_takes_the_place_of_the_statistics(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.csv"
    lines = [f"2023-11-16 18:00:{at:02d}.0000000,{40 + at},{5 + at}" for at in range(8)]
    trace.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]))
    command = [
        "bench",
        "memory",
        "--num-requests",
        "8",
        "--pool-tokens",
        "512",
        "--context",
        "1024",
    ]
    assert main([*command, "--trace", str(trace), "--time-scale", "0.01"]) == 1
    assert "--pool-tokens is 512" in capsys.readouterr().err
    command[5] = "1024"
    assert main([*command, "--trace", str(trace), "--time-scale", "0.01"]) == 0
    text = capsys.readouterr().out
    assert "trace: trace.csv" in text
    assert str(tmp_path) not in text
    assert "Alpaca" not in text
