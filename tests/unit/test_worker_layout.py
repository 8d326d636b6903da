"""A kept layout gives the batch that one made afresh gives."""

from __future__ import annotations

import random
from dataclasses import fields

import numpy as np

from octavo.backends.program import SampleBatch, StepBatch
from octavo.core.sampling_params import SamplingParams
from octavo.core.step import RowPlan, SlotState, StepPlan
from octavo.worker.batch import build_batch
from octavo.worker.slots import SlotTable
from oracles.plain_batch import strays

NUM_SLOTS = 6


def state(slot: int, rng: random.Random) -> SlotState:
    extras = [
        {"bad_token_ids": ((3,), (4, 5))}, {"bad_token_ids": ((5, 6, 7),)},
        {"logit_bias": ((7, 1.5),)}, {"allowed_token_ids": (1, 2)},
        {"frequency_penalty": 0.5}, {"logprobs": 2},
    ]  # fmt: skip
    chosen = rng.choice(extras) if rng.random() < 0.3 else {}
    params = SamplingParams(temperature=rng.random(), top_k=rng.randrange(9), **chosen)
    is_early = rng.random() < 0.2
    return SlotState(
        slot=slot, branch=rng.randrange(3), seed=rng.randrange(99), sampling=params,
        num_prompt_tokens=1, token_ids=(1,), banned_token_ids=(9, 2) if is_early else (),
        banned_until=20 * is_early,
    )  # fmt: skip


def plan(step: int, positions: dict[int, int], rng: random.Random) -> StepPlan:
    """Mostly one token and one sample per row; now and then a chunk, or several samples."""
    rows = []
    for slot, start in positions.items():
        count, samples = 1, 1
        if rng.random() < 0.05:
            count, samples = rng.randint(1, 4), rng.randrange(3)
        rows.append(RowPlan(slot, start, tuple(range(start, start + count)), (), samples))
        positions[slot] += count
    return StepPlan(step_id=step, rows=tuple(rows))


def same(left: object, right: object) -> bool:
    if isinstance(left, StepBatch | SampleBatch):
        return all(same(getattr(left, f.name), getattr(right, f.name)) for f in fields(left))
    if isinstance(left, tuple):
        assert isinstance(right, tuple)
        return all(same(a, b) for a, b in zip(left, right, strict=True))
    if isinstance(left, np.ndarray):
        assert isinstance(right, np.ndarray)
        return (
            left.dtype == right.dtype and left.shape == right.shape and bool((left == right).all())
        )
    return left == right


def test_a_kept_layout_gives_the_batch_of_a_new_one() -> None:
    rng = random.Random(0)
    table = SlotTable(max_slots=NUM_SLOTS, max_blocks=8, num_groups=1, vocab_size=64)
    positions: dict[int, int] = {}
    num_kept = num_new = 0
    for step in range(2000):
        if step % 10 == 0:
            slot = rng.randrange(NUM_SLOTS)
            table.assign(state(slot, rng))
            positions[slot] = 0
        elif step % 37 == 0:
            slot, _ = positions.popitem()
            table.free(slot)
        wanted = plan(step, positions, rng)
        before = table.layout
        batch = build_batch(wanted, table)
        num_kept += table.layout is before
        num_new += table.layout is not before
        table.layout = None
        assert same(batch, build_batch(wanted, table))
        assert strays(batch) == []
    assert min(num_kept, num_new) > 200
