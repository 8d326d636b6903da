"""Planned workloads: determinism, distributions, traces, sharing, and what is refused."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from octavo.bench.lengths import parse_lengths
from octavo.bench.prompts import PROBE_WORDS, TokenLine, probe_request, prompt_text
from octavo.bench.traces import read_trace
from octavo.bench.workload import PlannedRequest, ServeWorkload, check_trace_use, plan_requests
from octavo.errors import ConfigError

OPEN = ServeWorkload(rate_per_s=3.0, num_requests=2000, seed=5)

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:17:03.9799600,4808,10\n"
    "2023-11-16 18:17:04.0319600,3180,0\n"
)
MOONCAKE = (
    '{"timestamp": 500, "input_length": 1300, "output_length": 20, "hash_ids": [7, 8, 9]}\n'
    '{"timestamp": 1500, "input_length": 600, "output_length": 4, "hash_ids": [7, 3]}\n'
)


def test_a_plan_is_a_function_of_its_seed() -> None:
    assert plan_requests(OPEN) == plan_requests(OPEN)
    assert plan_requests(OPEN) != plan_requests(replace(OPEN, seed=6))


def test_cancels_leave_arrivals_and_lengths_alone() -> None:
    plain, cancelled = plan_requests(OPEN), plan_requests(replace(OPEN, cancel_fraction=0.5))
    assert [replace(r, cancel_after=0) for r in cancelled] == plain
    share = sum(r.cancel_after > 0 for r in cancelled) / len(cancelled)
    assert share == pytest.approx(0.5, abs=0.05)
    assert all(r.cancel_after <= r.output_tokens for r in cancelled)


def test_poisson_arrivals_have_the_asked_rate() -> None:
    planned = plan_requests(OPEN)
    assert len(planned) / planned[-1].at_s == pytest.approx(3.0, rel=0.1)


@pytest.mark.parametrize(
    ("text", "mean"),
    [("128", 128), ("uniform:10:30", 20), ("exponential:161", 161), ("lognormal:100:0.8", 100)],
)
def test_lengths_have_the_asked_mean(text: str, mean: float) -> None:
    rng = random.Random(1)
    lengths = parse_lengths(text, option="--x")
    drawn = [lengths.sample(rng) for _ in range(20_000)]
    assert min(drawn) >= 1
    assert sum(drawn) / len(drawn) == pytest.approx(mean, rel=0.05)


@pytest.mark.parametrize(
    "text", ["", "0", "-4", "nan", "inf", "uniform:5", "uniform:9:3", "zipf:2", "exponential:x"]
)
def test_impossible_lengths_are_refused_by_option(text: str) -> None:
    with pytest.raises(ConfigError, match="--prompt-tokens"):
        parse_lengths(text, option="--prompt-tokens")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"rate_per_s": 0.0}, "--rate"),
        ({"concurrency": 4}, "not both"),
        ({"num_requests": 0}, "--num-requests"),
        ({"cancel_fraction": 1.5}, "--cancel-fraction"),
        ({"length_scale": 0.0}, "--length-scale"),
        ({"shared_prefix_tokens": -1}, "--shared-prefix-tokens"),
        ({"output_tokens": "many"}, "--output-tokens"),
    ],
)
def test_impossible_workloads_are_refused(change: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        plan_requests(replace(OPEN, **change))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"rate_per_s": 3.0, "time_scale": 2.0}, "--time-scale"),
        ({"concurrency": 3, "length_scale": 2.0}, "--length-scale"),
        ({"trace": Path("t.csv"), "prompt_tokens": "5"}, "--prompt-tokens"),
        ({"trace": Path("t.csv"), "output_tokens": "5"}, "--output-tokens"),
        ({"trace": Path("t.csv"), "rate_per_s": 3.0, "time_scale": 2.0}, "--time-scale"),
    ],
)
def test_what_would_do_nothing_is_refused(change: dict[str, object], named: str) -> None:
    workload = ServeWorkload(**change)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=f"{named} would do nothing"):  # noqa: PT012
        check_trace_use(workload)
        plan_requests(workload)


def test_an_azure_trace_gives_times_and_lengths(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(AZURE)
    first, second = read_trace(path, limit=10)
    assert (first.at_s, first.prompt_tokens, first.output_tokens) == (0.0, 4808, 10)
    assert second.at_s == pytest.approx(0.052)
    # A request that generated nothing still asks for a token.
    assert second.output_tokens == 1


def test_a_mooncake_trace_shares_blocks(tmp_path: Path) -> None:
    path = tmp_path / "mooncake.jsonl"
    path.write_text(MOONCAKE)
    workload = ServeWorkload(trace=path, time_scale=2.0, length_scale=0.5)
    first, second = plan_requests(workload)
    assert second.at_s == 2.0
    assert (first.prompt_tokens, first.output_tokens) == (650, 10)
    assert first.segments[0] == second.segments[0]
    texts = [prompt_text(r, TokenLine()).split() for r in (first, second)]
    assert texts[0][:256] == texts[1][:256]
    assert texts[0][256:300] != texts[1][256:300]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "TIMESTAMP,ContextTokens\n2023-11-16 18:17:03.1,5\n"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\nnoon,5,5\n"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.1,many,5\n"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.1,-5,5\n"),
        ("a.jsonl", '{"timestamp": 0, "input_length": 5, "output_length": -1}\n'),
        ("a.jsonl", '{"timestamp": 0}\n'),
        ("a.jsonl", "not json\n"),
        ("a.jsonl", ""),
    ],
)
def test_a_malformed_trace_is_refused(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ConfigError, match=name):
        read_trace(path, limit=10)


def test_a_missing_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_trace(tmp_path / "none.csv", limit=1)


def test_shared_prefixes_are_equal_text_and_the_rest_is_not() -> None:
    planned = plan_requests(
        replace(OPEN, num_requests=3, shared_prefix_tokens=50, prompt_tokens="20")
    )
    texts = [prompt_text(r, TokenLine()).split() for r in planned]
    assert [len(text) for text in texts] == [70, 70, 70]
    assert texts[0][:50] == texts[1][:50] == texts[2][:50]
    assert texts[0][50:] != texts[1][50:]


def test_prompts_meet_a_tokenizer_s_own_line() -> None:
    """A tokenizer with 2 tokens a word and 8 of template: the probes show it, lengths fit it."""

    def tokens(request: PlannedRequest, line: TokenLine) -> int:
        return 8 + 2 * len(prompt_text(request, line).split())

    probes = [(n, tokens(probe_request(n), TokenLine())) for n in PROBE_WORDS]
    line = TokenLine.through(probes)
    assert (line.constant, line.slope) == (8.0, 2.0)
    planned = plan_requests(replace(OPEN, num_requests=1, prompt_tokens="100"))
    assert tokens(planned[0], line) == 100


def test_a_senseless_line_falls_back_to_one_token_a_word() -> None:
    assert TokenLine.through([(16, 0), (144, 0)]) == TokenLine()
