"""The seeded simulation: real engine, virtual clock, every kind of trouble."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

from octavo.testing.simulator import simulate

# Seeds that once failed stay here.
REGRESSION_SEEDS = (1, 2, 3, 5)
KINDS = (
    "aborts", "arrivals", "cache resets", "cow_copies", "crashes", "duplicate submits",
    "ended cancelled", "ended context_length_exceeded", "ended deadline_exceeded",
    "ended engine_error", "ended length", "ended overloaded", "ended stop", "evicted_blocks",
    "forced evictions", "forced preemptions", "forks", "lease ends", "leases", "mixed_steps",
    "partial_hits", "preemptions", "prefix_hit_tokens", "promises_shed", "refused allocations",
    "resubmits", "runner faults", "stopped branches", "twin_waits",
)  # fmt: skip


def test_every_kind_of_trouble() -> None:
    """Each kind of event happens, and at least four sequences run on average."""
    events = simulate(2026, 20_000)
    missing = [kind for kind in KINDS if not events[kind]]
    assert missing == []
    assert events["steps"] >= 20_000
    assert events["running"] / events["steps"] >= 4


@pytest.mark.parametrize("seed", REGRESSION_SEEDS)
def test_seeds(seed: int) -> None:
    assert simulate(seed, 1500)["steps"] >= 1500


def test_same_seed_same_run() -> None:
    """Also in another process, whose string hashes differ."""
    code = "from octavo.testing.simulator import simulate; print(sorted(simulate(9, 500).items()))"
    outputs = {
        subprocess.run(
            [sys.executable, *flags, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed, flags in (("1", []), ("2", ["-O"]))
    }
    assert outputs == {f"{sorted(simulate(9, 500).items())}\n"}


@pytest.mark.slow
def test_three_hundred_thousand_steps() -> None:
    events: Counter[str] = Counter()
    for seed in range(100, 115):
        events += simulate(seed, 20_000)
    assert events["steps"] >= 300_000
