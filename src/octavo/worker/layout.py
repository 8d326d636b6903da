"""What stays the same from step to step while the same slots do the same thing.

While a batch decodes, only tokens, positions and now and then a block change. Which rows there are,
where they lie in the flat batch and how they sample is kept, with the batch that says so, until a
row comes, goes or changes its width, or a slot is given to another sequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.backends.program import SampleBatch, StepBatch
from octavo.core.step import RowPlan
from octavo.worker.row_layout import RowKey, RowLayout
from octavo.worker.slots import SlotTable

_GATHERED = (
    "seed", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty",
    "frequency_penalty", "num_logprobs", "num_prompt",
)  # fmt: skip
NO_COPIES = np.zeros((0, 4), np.int32)
NO_INTS = np.zeros(0, np.int32)
_NO_FLOATS = np.zeros(0, np.float32)


def row_layout(
    rows: Sequence[RowPlan], table: SlotTable, *, allowed: NDArray[np.uint32]
) -> RowLayout:
    """The layout of ``rows``: the last one again if it still holds.

    Rows that come as the same object are the same, but for their tokens, where these stand, and
    their tables. ``allowed`` (see ``batch.allowed_mask``) is the same in every call for one table.
    """
    layout = table.layout
    if layout is not None and layout.rows is rows:
        return layout
    key = [
        (row.slot, len(row.token_ids), row.num_samples, row.num_drafts, row.num_scored)
        for row in rows
    ]
    if layout is None or layout.key != key:
        layout = table.layout = _make(key, table, allowed)
    layout.rows = rows
    return layout


def _make(key: list[RowKey], table: SlotTable, allowed: NDArray[np.uint32]) -> RowLayout:
    slots, lengths, *_ = np.array(key, np.int32).reshape(len(key), 5).T.copy()
    starts = np.zeros(len(key) + 1, np.int32)
    np.cumsum(lengths, out=starts[1:])
    picks = [pick for index, row_key in enumerate(key) for pick in _picks(index, row_key)]
    row, behind, offset, scored = np.array(picks, np.int32).reshape(len(picks), 4).T.copy()
    sampled = slots[row]
    names: list[int] = sampled.tolist()
    columns = {name: getattr(table, name)[sampled] for name in _GATHERED}
    is_scored = scored != 0
    columns["num_logprobs"][is_scored] = table.num_prompt_logprobs[sampled[is_scored]]
    columns["branch"] = table.branch[sampled] + offset
    columns["token_index"] = starts[row + 1] - 1 - behind
    mask_index = np.full(len(picks), len(allowed) - 1, np.int32)
    want_hidden = not table.hidden.keys().isdisjoint(names)
    answering = [index for index, row_key in enumerate(key) if row_key[2] or row_key[4]]
    numbers = np.zeros(int(starts[-1]) + len(key) + len(picks), np.int32)
    tokens, context, columns["position"] = np.split(numbers, [starts[-1], starts[-1] + len(key)])
    samples = _samples(columns, names, table, mask_index=mask_index, masks=allowed)
    return RowLayout(
        rows=(),
        key=key,
        picks=list(zip(row.tolist(), (lengths[row] - behind).tolist(), strict=True)),
        slot_names=names,
        scored=np.flatnonzero(is_scored).tolist(),
        answering=answering,
        is_plain=len(picks) == len(answering) and samples.max_logprobs < 0 and not want_hidden,
        varies=bool(is_scored.any()) or any(map(table.varies, names)),
        sample=samples,
        batch=StepBatch(
            token_ids=tokens,
            query_start_loc=starts,
            context_lens=context,
            slots=slots,
            block_tables=table.block_tables,
            first_position=tuple(first[slots] for first in table.first_position),
            copies=NO_COPIES,
            sample=samples,
            want_hidden=want_hidden,
        ),
        num_moves=table.num_moves,
        numbers=numbers.data,
        packer=Struct(f"{len(numbers)}i"),
    )


def _samples(
    columns: dict[str, NDArray[Any]],
    names: list[int],
    table: SlotTable,
    *,
    mask_index: NDArray[np.int32],
    masks: NDArray[np.uint32],
) -> SampleBatch:
    """Samples without what depends on their tokens or on a grammar."""
    count = len(names)
    biases = [table.bias.get(slot) for slot in names]
    bias_start, bias_ids = csr(count, [b[0] if b else None for b in biases], NO_INTS)
    _, bias_values = csr(count, [b[1] if b else None for b in biases], _NO_FLOATS)
    nothing = np.zeros(count + 1, np.int32)
    return SampleBatch(
        **columns, forced=np.full(count, -1, np.int32),
        history_start=nothing, history=NO_INTS, banned_start=nothing, banned_ids=NO_INTS,
        bias_start=bias_start, bias_ids=bias_ids, bias_values=bias_values,
        mask_index=mask_index, masks=masks,
        max_logprobs=int(columns["num_logprobs"].max(initial=-1)),
    )  # fmt: skip


def _picks(index: int, key: RowKey) -> Iterator[tuple[int, int, int, int]]:
    """Samples of a row: (row, tokens behind it, branch offset, whether it scores the prompt)."""
    _, length, count, num_drafts, num_scored = key
    for at in range(num_scored):
        yield index, length - 1 - at, 0, 1
    for behind in range(num_drafts, -1, -1):
        for k in range(count):
            yield index, behind, k, 0


def csr(
    count: int, parts: Sequence[NDArray[Any] | None], empty: NDArray[Any]
) -> tuple[NDArray[np.int32], NDArray[Any]]:
    """Starts [count + 1] and the concatenated parts; None and a short list mean empty parts."""
    start = np.zeros(count + 1, np.int32)
    held = [part for part in parts if part is not None]
    if not held:
        return start, empty
    np.cumsum([0 if part is None else len(part) for part in parts], out=start[1:])
    return start, np.concatenate(held)
