"""What clients ask for in the simulation: every shape of request, within a few thousand steps."""

from __future__ import annotations

from collections import Counter

from octavo.testing.simulator import simulate

SHAPES = (
    "allowed_token_ids", "beam searches", "best_of", "compiled grammars", "deadlines",
    "ended invalid_request_error", "grammars", "ignore_eos", "logprobs", "probes",
    "prompt_logprobs", "salts", "token budgets",
)  # fmt: skip


def test_a_few_seeds_see_every_shape_and_shed_promises() -> None:
    events: Counter[str] = Counter()
    for seed in (31, 32, 33):
        events += simulate(seed, 2500)
    assert [kind for kind in SHAPES if events[kind] < 10] == []
    assert events["promises_shed"] > 0
