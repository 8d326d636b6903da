"""From a StepPlan to the arrays that a backend runs on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from octavo.backends.program import SampleBatch, StepBatch
from octavo.core.step import StepPlan
from octavo.worker.layout import NO_COPIES, NO_INTS, csr, row_layout
from octavo.worker.row_layout import RowLayout
from octavo.worker.slots import SlotTable

NO_MASKS = np.zeros((0, 0), np.uint32)


def allowed_mask(vocab_size: int, unsampled_ids: Sequence[int]) -> NDArray[np.uint32]:
    """Bit words [1, ⌈V/32⌉] of the ids that may be sampled; [0, 0] when all of them may."""
    if not len(unsampled_ids):
        return NO_MASKS
    allowed = np.zeros(-(-vocab_size // 32) * 32, np.uint8)
    allowed[:vocab_size] = 1
    allowed[np.asarray(unsampled_ids)] = 0
    return np.packbits(allowed, bitorder="little").view("<u4").reshape(1, -1).astype(np.uint32)


def build_batch(
    plan: StepPlan,
    table: SlotTable,
    *,
    allowed: NDArray[np.uint32] = NO_MASKS,
    want_logits: bool = False,
) -> StepBatch:
    """Arrays of one step, good until the next call; ``table`` must have seen the plan already.

    ``allowed`` (see ``allowed_mask``) binds every sample.
    """
    layout = row_layout(plan.rows, table, allowed=allowed)
    layout.fill(plan.rows)
    batch = layout.batch
    batch.want_logits = want_logits
    batch.copies = _copies(plan)
    if layout.num_moves != table.num_moves:
        layout.num_moves = table.num_moves
        batch.first_position = tuple(first[batch.slots] for first in table.first_position)
    _enter_histories(batch.sample, layout.slot_names, table)
    _enter_masks(plan, layout, table=table, allowed=allowed)
    if layout.scored or table.labels:
        batch.sample.forced = _forced(batch.sample, layout, table)
    return batch


def _copies(plan: StepPlan) -> NDArray[np.int32]:
    if not plan.copies:
        return NO_COPIES
    return np.array([(c.group, c.src, c.dst, c.num_tokens) for c in plan.copies], np.int32)


def _enter_histories(sample: SampleBatch, names: list[int], table: SlotTable) -> None:
    """What depends on the tokens so far, in batches that have any of it."""
    if not (table.has_bans or table.has_histories):
        return
    placed = list(zip(names, sample.position.tolist(), strict=True))
    if table.has_bans:
        banned = [table.banned_at(slot, at) for slot, at in placed]
        sample.banned_start, sample.banned_ids = csr(len(names), banned, NO_INTS)
    if table.has_histories:
        histories = [table.history(slot, at) for slot, at in placed]
        sample.history_start, sample.history = csr(len(names), histories, NO_INTS)


def _enter_masks(
    plan: StepPlan, layout: RowLayout, *, table: SlotTable, allowed: NDArray[np.uint32]
) -> None:
    """Which line of the masks binds each sample, and these."""
    sample = layout.batch.sample
    sample.mask_index, sample.masks = layout.mask_index, allowed
    if plan.grammar_masks:
        sample.mask_index, sample.masks = _masks(plan, layout, allowed)
    if table.allowed:
        sample.mask_index, sample.masks = _bind_slots(
            sample.mask_index.copy(), sample.masks, layout.slot_names, table=table
        )


def _forced(sample: SampleBatch, layout: RowLayout, table: SlotTable) -> NDArray[np.int32]:
    """The given token of each sample that is a label's or the prompt's, -1 for those drawn."""
    position, branch = sample.position, sample.branch
    forced = np.full(len(position), -1, np.int32)
    for index in layout.scored:
        forced[index] = table.prompts[layout.slot_names[index]][position[index]]
    for index, slot in enumerate(layout.slot_names):
        probe = table.labels.get(slot)
        if probe is not None:
            label = probe.labels[branch[index]]
            forced[index] = label[position[index] - table.num_prompt[slot]]
    return forced


def _masks(
    plan: StepPlan, layout: RowLayout, allowed: NDArray[np.uint32]
) -> tuple[NDArray[np.int32], NDArray[np.uint32]]:
    """The lines of the plan's grammars and who is bound by them.

    ``allowed``, if there is one, is their first line and part of every other.
    """
    position = layout.batch.sample.position
    line_of = layout.mask_index.copy()
    row = np.array([row for row, _ in layout.picks], np.int32)
    words = np.array([np.frombuffer(mask.words, "<u4") for mask in plan.grammar_masks], np.uint32)
    for line, mask in enumerate(plan.grammar_masks, len(allowed)):
        at = plan.rows[mask.row].start + mask.offset + 1
        line_of[(row == mask.row) & (position == at)] = line
    if len(allowed):
        words = np.concatenate((allowed, words & allowed[0]))
    return line_of, words


def _bind_slots(
    mask_index: NDArray[np.int32],
    masks: NDArray[np.uint32],
    names: Sequence[int],
    *,
    table: SlotTable,
) -> tuple[NDArray[np.int32], NDArray[np.uint32]]:
    """Masks with a line more for each slot that may not sample everything, and who is bound by it.

    Such a slot has no grammar, so that its line so far is the one that binds all, if any.
    """
    added: dict[int, int] = {}
    lines: list[NDArray[np.uint32]] = list(masks)
    for index, slot in enumerate(names):
        words = table.allowed.get(slot)
        if words is None:
            continue
        if slot not in added:
            common = mask_index[index]
            added[slot] = len(lines)
            lines.append(words & masks[common] if common >= 0 else words)
        mask_index[index] = added[slot]
    return mask_index, np.array(lines, np.uint32) if lines else masks
