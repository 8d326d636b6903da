"""Step batches written by hand, for tests that drive an executor without a worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.backends.program import SampleBatch, StepBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of a step: ``tokens`` at positions ``start…``, through ``table``.

    ``first`` is the position that the table begins at; ``logits_at`` are offsets in ``tokens``
    whose logits (and greedy tokens) are wanted.
    """

    tokens: Sequence[int]
    table: Sequence[int]
    start: int = 0
    first: int = 0
    logits_at: Sequence[int] = ()


def sample_arrays(token_index: Sequence[int], **fields: NDArray[Any]) -> SampleBatch:
    """Greedy samples without penalties or logprobs, except for the given fields."""
    count = len(token_index)
    values: dict[str, NDArray[Any]] = {
        "token_index": np.array(token_index, np.int32),
        "seed": np.zeros(count, np.uint64),
        "top_p": np.ones(count, np.float32),
        "repetition_penalty": np.ones(count, np.float32),
        "num_logprobs": np.full(count, -1, np.int32),
        "mask_index": np.full(count, -1, np.int32),
        "forced": np.full(count, -1, np.int32),
        "masks": np.zeros((0, 1), np.uint32),
    }
    for name in ("branch", "position", "top_k", "num_prompt"):
        values[name] = np.zeros(count, np.int32)
    for name in ("temperature", "min_p", "presence_penalty", "frequency_penalty"):
        values[name] = np.zeros(count, np.float32)
    for name in ("history_start", "bias_start", "banned_start"):
        values[name] = np.zeros(count + 1, np.int32)
    for name in ("history", "bias_ids", "banned_ids"):
        values[name] = np.zeros(0, np.int32)
    values["bias_values"] = np.zeros(0, np.float32)
    values |= fields
    return SampleBatch(**values, max_logprobs=int(values["num_logprobs"].max(initial=-1)))


def step(rows: Sequence[Row], *, copies: Sequence[Sequence[int]] = (), **sample: Any) -> StepBatch:
    """One mixed batch of a single KV group; ``want_logits`` is set."""
    lengths = [len(row.tokens) for row in rows]
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    width = max((len(row.table) for row in rows), default=1)
    tables = np.full((max(len(rows), 1), width), -1, np.int32)
    for index, row in enumerate(rows):
        tables[index, : len(row.table)] = row.table
    wanted = [int(starts[i]) + at for i, row in enumerate(rows) for at in row.logits_at]
    tokens = [token for row in rows for token in row.tokens]
    return StepBatch(
        token_ids=np.array(tokens, np.int32),
        query_start_loc=starts,
        context_lens=np.array([row.start for row in rows], np.int32),
        slots=np.arange(len(rows), dtype=np.int32),
        block_tables=(tables,),
        first_position=(np.array([row.first for row in rows], np.int32),),
        copies=np.array(copies, np.int32).reshape(-1, 4),
        sample=sample_arrays(wanted, **sample),
        want_logits=True,
    )
