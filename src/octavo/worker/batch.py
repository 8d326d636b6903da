"""From a StepPlan to the arrays that a backend runs on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.backends.program import SampleBatch, StepBatch
from octavo.core.step import StepPlan
from octavo.worker.layout import row_layout
from octavo.worker.row_layout import RowLayout
from octavo.worker.slots import SlotTable

_NO_COPIES = np.zeros((0, 4), np.int32)
NO_MASKS = np.zeros((0, 0), np.uint32)
_NO_INTS = np.zeros(0, np.int32)
_NO_FLOATS = np.zeros(0, np.float32)


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
    """Arrays of one step; ``table`` must have seen the plan's slots and rows already.

    ``allowed`` (see ``allowed_mask``) binds every sample.
    """
    rows = plan.rows
    layout = row_layout(rows, table)
    context_lens = np.array([row.start for row in rows], np.int32)
    return StepBatch(
        token_ids=np.fromiter(
            chain.from_iterable([row.token_ids for row in rows]), np.int32, int(layout.starts[-1])
        ),
        query_start_loc=layout.starts,
        context_lens=context_lens,
        slots=layout.slots,
        block_tables=table.block_tables,
        first_position=tuple(first[layout.slots] for first in table.first_position),
        copies=_copies(plan),
        sample=_samples(plan, layout, context_lens, table=table, allowed=allowed),
        want_logits=want_logits,
        want_hidden=not table.hidden.keys().isdisjoint(layout.slot_names),
    )


def _copies(plan: StepPlan) -> NDArray[np.int32]:
    if not plan.copies:
        return _NO_COPIES
    return np.array([(c.group, c.src, c.dst, c.num_tokens) for c in plan.copies], np.int32)


def _samples(
    plan: StepPlan,
    layout: RowLayout,
    context_lens: NDArray[np.int32],
    *,
    table: SlotTable,
    allowed: NDArray[np.uint32],
) -> SampleBatch:
    names = layout.slot_names
    count = len(names)
    position = context_lens[layout.row] + layout.ahead
    banned = [
        table.banned_at(slot, at) for slot, at in zip(names, position.tolist(), strict=True)
    ] if table.has_bans else []  # fmt: skip
    biases = [table.bias.get(slot) for slot in names] if table.bias else []
    histories = [
        table.history(slot, at) for slot, at in zip(names, position.tolist(), strict=True)
    ] if table.has_histories else []  # fmt: skip
    history_start, history = _csr(count, histories, _NO_INTS)
    bias_start, bias_ids = _csr(count, [b[0] if b else None for b in biases], _NO_INTS)
    mask_index, masks = _masks(plan, layout.row, position, allowed=allowed)
    if table.allowed:
        mask_index, masks = _bind_slots(mask_index, masks, names, table=table)
    _, bias_values = _csr(count, [b[1] if b else None for b in biases], _NO_FLOATS)
    banned_start, banned_ids = _csr(count, banned, _NO_INTS)
    return SampleBatch(
        **layout.columns,
        position=position,
        history_start=history_start,
        history=history,
        bias_start=bias_start,
        bias_ids=bias_ids,
        bias_values=bias_values,
        banned_start=banned_start,
        banned_ids=banned_ids,
        mask_index=mask_index,
        masks=masks,
        forced=_forced(layout, position, table),
    )


def _forced(layout: RowLayout, position: NDArray[np.int32], table: SlotTable) -> NDArray[np.int32]:
    """The given token of each sample that is a label's or the prompt's, -1 for those drawn."""
    forced = np.full(len(position), -1, np.int32)
    for index in np.flatnonzero(layout.is_scored).tolist():
        forced[index] = table.prompts[layout.slot_names[index]][position[index]]
    if not table.labels:
        return forced
    branch = layout.columns["branch"]
    for index, slot in enumerate(layout.slot_names):
        probe = table.labels.get(slot)
        if probe is not None:
            label = probe.labels[branch[index]]
            forced[index] = label[position[index] - table.num_prompt[slot]]
    return forced


def _masks(
    plan: StepPlan,
    row: NDArray[np.int32],
    position: NDArray[np.int32],
    *,
    allowed: NDArray[np.uint32],
) -> tuple[NDArray[np.int32], NDArray[np.uint32]]:
    """Which line of the masks binds each sample (``row`` and ``position`` are theirs), and these.

    ``allowed``, if there is one, is their first line and part of every other.
    """
    line_of = np.full(len(row), len(allowed) - 1, np.int32)
    if not plan.grammar_masks:
        return line_of, allowed
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


def _csr(
    count: int, parts: Sequence[NDArray[Any] | None], empty: NDArray[Any]
) -> tuple[NDArray[np.int32], NDArray[Any]]:
    """Starts [count + 1] and the concatenated parts; None and a short list mean empty parts."""
    start = np.zeros(count + 1, np.int32)
    held = [part for part in parts if part is not None]
    if not held:
        return start, empty
    np.cumsum([0 if part is None else len(part) for part in parts], out=start[1:])
    return start, np.concatenate(held)
