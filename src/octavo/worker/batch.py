"""From a StepPlan to the arrays that a backend runs on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

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
    batch.copies = _copies(plan) if plan.copies else NO_COPIES
    if layout.num_moves != table.num_moves:
        layout.num_moves = table.num_moves
        batch.first_position = tuple(first[batch.slots] for first in table.first_position)
    batch.sample = layout.sample
    if layout.varies or plan.grammar_masks:
        batch.sample = _varied(plan, layout, table)
    return batch


def _copies(plan: StepPlan) -> NDArray[np.int32]:
    return np.array([(c.group, c.src, c.dst, c.num_tokens) for c in plan.copies], np.int32)


def _varied(plan: StepPlan, layout: RowLayout, table: SlotTable) -> SampleBatch:
    """The samples with what depends on the tokens so far, on a grammar or on what is given."""
    sample, names = layout.sample, layout.slot_names
    position = sample.position.tolist()
    banned_start, banned_ids = csr(len(names), list(map(table.banned_at, names, position)), NO_INTS)
    history_start, history = csr(len(names), list(map(table.history, names, position)), NO_INTS)
    mask_index, masks = sample.mask_index, sample.masks
    if plan.grammar_masks:
        mask_index, masks = _masks(plan, layout)
    if table.allowed:
        mask_index, masks = _bind_slots(mask_index.copy(), masks, names, table=table)
    return replace(
        sample, banned_start=banned_start, banned_ids=banned_ids, history_start=history_start,
        history=history, mask_index=mask_index, masks=masks, forced=_forced(layout, table),
    )  # fmt: skip


def _forced(layout: RowLayout, table: SlotTable) -> NDArray[np.int32]:
    """The given token of each sample that is a label's or the prompt's, -1 for those drawn."""
    position, branch = layout.sample.position, layout.sample.branch
    forced = np.full(len(position), -1, np.int32)
    for index in layout.scored:
        forced[index] = table.prompts[layout.slot_names[index]][position[index]]
    for index, slot in enumerate(layout.slot_names):
        probe = table.labels.get(slot)
        if probe is not None:
            label = probe.labels[branch[index]]
            forced[index] = label[position[index] - table.num_prompt[slot]]
    return forced


def _masks(plan: StepPlan, layout: RowLayout) -> tuple[NDArray[np.int32], NDArray[np.uint32]]:
    """The lines of the plan's grammars and who is bound by them.

    What binds all samples, if anything does, is their first line and part of every other.
    """
    position, allowed = layout.sample.position, layout.sample.masks
    line_of = layout.sample.mask_index.copy()
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
