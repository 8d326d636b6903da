"""Row slots and batches: what a plan says is what the arrays hold."""

from __future__ import annotations

import numpy as np

from octavo.core.sampling_params import SamplingParams
from octavo.core.step import BlockCopy, RowPlan, SlotState, StepPlan, TableUpdate
from octavo.worker.batch import build_batch
from octavo.worker.slots import SlotTable


def table() -> SlotTable:
    return SlotTable(max_slots=4, max_blocks=8, num_groups=1)


def state(slot: int, tokens: tuple[int, ...], **sampling: object) -> SlotState:
    params = SamplingParams(**sampling)  # type: ignore[arg-type]
    return SlotState(
        slot=slot, branch=0, seed=5, sampling=params, num_prompt_tokens=len(tokens),
        token_ids=tokens, banned_token_ids=(2, 9), banned_until=params.min_tokens,
    )  # fmt: skip


def test_flat_tokens_follow_rows_and_samples_point_at_their_last() -> None:
    slots = table()
    slots.assign(state(1, (10, 11, 12)))
    slots.assign(state(3, (20, 21)))
    rows = (
        RowPlan(slot=3, start=0, token_ids=(20, 21), num_samples=2),
        RowPlan(slot=1, start=0, token_ids=(10, 11)),
        RowPlan(slot=1, start=2, token_ids=(12,), num_samples=1),
    )
    batch = build_batch(StepPlan(step_id=1, rows=rows), slots)
    assert batch.token_ids.tolist() == [20, 21, 10, 11, 12]
    assert batch.query_start_loc.tolist() == [0, 2, 4, 5]
    assert batch.context_lens.tolist() == [0, 0, 2]
    assert batch.slots.tolist() == [3, 1, 1]
    assert batch.sample.token_index.tolist() == [1, 1, 4]
    assert batch.sample.branch.tolist() == [0, 1, 0]
    assert batch.sample.position.tolist() == [2, 2, 3]


def test_tables_keep_and_append() -> None:
    slots = table()
    slots.assign(state(0, (1,)))
    slots.update([RowPlan(slot=0, start=0, token_ids=(1,), tables=(TableUpdate(blocks=(7, 8)),))])
    slots.update(
        [RowPlan(slot=0, start=1, token_ids=(2,), tables=(TableUpdate(keep=1, blocks=(5, 6)),))]
    )
    assert slots.block_tables[0][0, :3].tolist() == [7, 5, 6]


def test_history_ignores_recomputed_tokens_and_grows() -> None:
    slots = table()
    slots.assign(state(2, (4, 5, 6), repetition_penalty=1.5))
    slots.update([RowPlan(slot=2, start=0, token_ids=(4, 5, 6))])
    slots.update([RowPlan(slot=2, start=2, token_ids=(6, 7))])
    for position in range(4, 1000):
        slots.update([RowPlan(slot=2, start=position, token_ids=(position,))])
    held = slots.history(2, 1000)
    assert held is not None
    assert held.tolist() == [4, 5, 6, 7, *range(4, 1000)]


def test_a_verify_row_samples_behind_every_draft_with_the_history_up_to_there() -> None:
    slots = table()
    slots.assign(state(2, (4, 5, 6), presence_penalty=0.5, min_tokens=2))
    row = RowPlan(slot=2, start=3, token_ids=(7, 8, 9), num_samples=1, num_drafts=2)
    for _ in range(2):  # the second time over what the first has left
        slots.update([row])
        sample = build_batch(StepPlan(step_id=1, rows=(row,)), slots).sample
        assert sample.token_index.tolist() == [0, 1, 2]
        assert sample.position.tolist() == [4, 5, 6]
        assert sample.history.tolist() == [4, 5, 6, 7, 4, 5, 6, 7, 8, 4, 5, 6, 7, 8, 9]
        assert sample.banned_start.tolist() == [0, 2, 2, 2]
        # The first draft was not accepted: the next row begins there with another token.
        row = RowPlan(slot=2, start=4, token_ids=(1,), num_samples=1)
        slots.update([row])
        sample = build_batch(StepPlan(step_id=2, rows=(row,)), slots).sample
        assert sample.history.tolist() == [4, 5, 6, 7, 1]
        row = RowPlan(slot=2, start=3, token_ids=(7, 8, 9), num_samples=1, num_drafts=2)


def test_bans_end_with_min_tokens_and_a_slot_forgets() -> None:
    slots = table()
    slots.assign(state(0, (1, 2), min_tokens=1, logit_bias=((9, 1.5), (3, -2.0))))
    first = RowPlan(slot=0, start=0, token_ids=(1, 2), num_samples=1)
    second = RowPlan(slot=0, start=2, token_ids=(7,), num_samples=1)
    sample = build_batch(StepPlan(step_id=1, rows=(first,)), slots).sample
    assert sample.banned_ids.tolist() == [2, 9]
    assert sample.bias_ids.tolist() == [3, 9]
    assert sample.bias_values.tolist() == [-2.0, 1.5]
    sample = build_batch(StepPlan(step_id=2, rows=(second,)), slots).sample
    assert sample.banned_ids.tolist() == []
    slots.assign(state(0, (1, 2)))
    sample = build_batch(StepPlan(step_id=3, rows=(first,)), slots).sample
    assert sample.bias_start.tolist() == [0, 0]
    assert sample.history_start.tolist() == [0, 0]


def test_negative_seeds_become_their_unsigned_twin_and_copies_cross() -> None:
    slots = table()
    slots.assign(
        SlotState(
            slot=0, branch=3, seed=-1, sampling=SamplingParams(), num_prompt_tokens=1,
            token_ids=(1,),
        )
    )  # fmt: skip
    plan = StepPlan(
        step_id=1,
        rows=(RowPlan(slot=0, start=0, token_ids=(1,), num_samples=1),),
        copies=(BlockCopy(src=3, dst=4, num_tokens=5),),
    )
    batch = build_batch(plan, slots)
    assert batch.sample.seed.tolist() == [2**64 - 1]
    assert batch.sample.branch.tolist() == [3]
    assert batch.copies.tolist() == [[0, 3, 4, 5]]
    assert batch.copies.dtype == np.int32
