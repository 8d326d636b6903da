"""The shape of a batch: which rows there are, where they lie, how they sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from struct import Struct

from octavo.backends.program import SampleBatch, StepBatch
from octavo.core.step import RowPlan

RowKey = tuple[int, int, int, int, int]


@dataclass(slots=True, kw_only=True)
class RowLayout:
    """R rows and S samples, and the batch that every step with these rows fills in.

    ``rows`` are the last that had it. ``key`` is per row (slot, tokens, samples, drafts, scored).
    Of the samples [S]: ``picks`` (row, how far behind its row's start it samples), ``slot_names``,
    and ``scored``, those that score a token of the prompt. ``answering`` are the rows that sample
    or score; where each draws one token and nothing else is asked of it, ``is_plain``. In ``batch``
    everything is set that follows from who runs. Its samples are ``sample`` unless a grammar binds
    a row or one ``varies`` with the tokens so far, its first positions those after ``num_moves``
    moves of a window. ``numbers`` are its tokens, context lengths and positions in one piece, for
    ``packer``.
    """

    rows: Sequence[RowPlan]
    key: list[RowKey]
    picks: list[tuple[int, int]]
    slot_names: list[int]
    scored: list[int]
    answering: list[int]
    is_plain: bool
    varies: bool
    sample: SampleBatch
    batch: StepBatch
    num_moves: int
    numbers: memoryview
    packer: Struct

    def fill(self, rows: Sequence[RowPlan]) -> None:
        """Put a step's tokens and positions into the batch."""
        # Hot: once per step. One call for all numbers, since a handful of them with cold caches
        # would take as long as all the rest of the batch.
        starts = [row.start for row in rows]
        tokens = chain.from_iterable([row.token_ids for row in rows])
        positions = [starts[row] + ahead for row, ahead in self.picks]
        self.packer.pack_into(self.numbers, 0, *tokens, *starts, *positions)
