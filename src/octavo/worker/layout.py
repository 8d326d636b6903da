"""What stays the same from step to step while the same slots do the same thing.

While a batch decodes, only tokens, positions and now and then a block change. Which rows there are,
where they lie in the flat batch and how they sample is kept and reused, until a row comes, goes or
changes its width, or a slot is given to another sequence.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from octavo.core.step import RowPlan
from octavo.worker.row_layout import RowKey, RowLayout
from octavo.worker.slots import SlotTable

_GATHERED = (
    "seed", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty",
    "frequency_penalty", "num_logprobs", "num_prompt",
)  # fmt: skip


def row_layout(rows: tuple[RowPlan, ...], table: SlotTable) -> RowLayout:
    """The layout of ``rows``: the last one again if it still holds."""
    key = [
        (row.slot, len(row.token_ids), row.num_samples, row.num_drafts, row.num_scored)
        for row in rows
    ]
    if table.layout is None or table.layout.key != key:
        table.layout = _make(key, table)
    return table.layout


def _make(key: list[RowKey], table: SlotTable) -> RowLayout:
    slots, lengths, *_ = np.array(key, np.int32).reshape(len(key), 5).T.copy()
    starts = np.zeros(len(key) + 1, np.int32)
    np.cumsum(lengths, out=starts[1:])
    picks = [pick for index, row_key in enumerate(key) for pick in _picks(index, row_key)]
    row, behind, offset, scored = np.array(picks, np.int32).reshape(len(picks), 4).T.copy()
    sampled = slots[row]
    columns = {name: getattr(table, name)[sampled] for name in _GATHERED}
    is_scored = scored != 0
    columns["num_logprobs"][is_scored] = table.num_prompt_logprobs[sampled[is_scored]]
    columns["branch"] = table.branch[sampled] + offset
    columns["token_index"] = starts[row + 1] - 1 - behind
    return RowLayout(
        key=key,
        slots=slots,
        starts=starts,
        row=row,
        ahead=lengths[row] - behind,
        is_scored=is_scored,
        slot_names=sampled.tolist(),
        columns=columns,
    )


def _picks(index: int, key: RowKey) -> Iterator[tuple[int, int, int, int]]:
    """Samples of a row: (row, tokens behind it, branch offset, whether it scores the prompt)."""
    _, length, count, num_drafts, num_scored = key
    for at in range(num_scored):
        yield index, length - 1 - at, 0, 1
    for behind in range(num_drafts, -1, -1):
        for k in range(count):
            yield index, behind, k, 0
