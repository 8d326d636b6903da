"""The shape of a batch: which rows there are, where they lie, how they sample."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from octavo.backends.program import StepBatch
from octavo.core.step import RowPlan

RowKey = tuple[int, int, int, int, int]


@dataclass(slots=True, kw_only=True)
class RowLayout:
    """R rows and S samples, and the batch that every step with these rows fills in.

    ``key`` is per row (slot, tokens, samples, drafts, scored). Of the samples [S]: ``picks`` (row,
    how far behind its row's start it samples), ``slot_names``, and ``scored``, those that score a
    token of the prompt. ``answering`` are the rows that sample or score; where each draws one token
    and nothing else is asked of it, ``is_plain``. In ``batch`` everything is set that follows from
    who runs; ``mask_index`` is its own as long as no grammar binds a row, its first positions are
    those after ``num_moves`` moves of a window.
    """

    key: list[RowKey]
    picks: list[tuple[int, int]]
    slot_names: list[int]
    scored: list[int]
    answering: list[int]
    is_plain: bool
    batch: StepBatch
    mask_index: NDArray[np.int32]
    num_moves: int

    def fill(self, rows: Sequence[RowPlan]) -> None:
        """Put a step's tokens and positions into the batch."""
        # Hot: once per step. Arrays of Python's own, since a handful of numpy calls with cold
        # caches would take as long as all the rest of the batch.
        batch = self.batch
        starts = [row.start for row in rows]
        tokens = list(chain.from_iterable([row.token_ids for row in rows]))
        positions = [starts[row] + ahead for row, ahead in self.picks]
        batch.token_ids.data[:] = array("i", tokens)
        batch.context_lens.data[:] = array("i", starts)
        batch.sample.position.data[:] = array("i", positions)
