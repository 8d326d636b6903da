"""A small model that runs ahead of a large one and proposes what it might say.

Its KV lies in a pool of its own with the same block numbers: what the large model's block tables,
copies and roll-backs say holds for both, so that prefix hits, forks and preemption need nothing
here. It computes every token that the large one computes, in the same rows, then goes on alone:

    large     … [a b c]                          a b c [c's successor and drafts to verify]
    drafter   … [a b c] → p1  [p1] → p2  [p2] → p3

Proposals are drawn with the branch's own parameters and noise, so that a drafter that thinks like
the large model guesses seeded samples too. A proposal decides about speed alone.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from octavo.backends.program import Executor
from octavo.core.step import RowPlan, StepPlan
from octavo.worker.batch import build_batch
from octavo.worker.slots import SlotTable


class Drafter:
    """Owns the small model's executor, and per slot the one token that its KV may lack.

    That is the last proposal of a step, where all were accepted: nobody has computed it.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._lacking: dict[int, tuple[int, int]] = {}

    def propose(
        self, plan: StepPlan, table: SlotTable, *, allowed: NDArray[np.uint32]
    ) -> dict[int, tuple[int, ...]]:
        """Proposals by row for those that want some; ``table`` has seen the plan."""
        for slot in (*plan.freed_slots, *(state.slot for state in plan.new_slots)):
            self._lacking.pop(slot, None)
        proposals: dict[int, tuple[int, ...]] = {
            index: () for index, row in enumerate(plan.rows) if row.num_proposals
        }
        rows = tuple(
            replace(
                self._caught_up(row),
                num_samples=int(index in proposals),
                num_proposals=0,
                num_scored=0,
            )
            for index, row in enumerate(plan.rows)
        )
        going = list(proposals)
        step = StepPlan(step_id=plan.step_id, rows=rows, copies=plan.copies)
        while True:
            drawn = self._executor.forward(build_batch(step, table, allowed=allowed)).token_ids
            for index, token in zip(going, drawn, strict=True):
                proposals[index] += (token,) if token >= 0 else ()
            going = [
                index
                for index, token in zip(going, drawn, strict=True)
                if token >= 0 and len(proposals[index]) < plan.rows[index].num_proposals
            ]
            if not going:
                return proposals
            rows = tuple(_next_row(plan.rows[index], proposals[index]) for index in going)
            table.update(rows)
            step = StepPlan(step_id=plan.step_id, rows=rows)

    def note(self, row: RowPlan, proposals: tuple[int, ...], num_verified: int) -> None:
        """``num_verified`` of the proposals at a row's end were accepted."""
        if proposals and num_verified == len(proposals):
            self._lacking[row.slot] = (row.start + len(row.token_ids) - 1, proposals[-1])

    def close(self) -> None:
        """Free the executor. Idempotent."""
        self._executor.close()

    def _caught_up(self, row: RowPlan) -> RowPlan:
        position, token = self._lacking.pop(row.slot, (-1, -1))
        if position < 0 or position != row.start - 1:
            return row
        return replace(row, start=position, token_ids=(token, *row.token_ids))


def _next_row(row: RowPlan, proposals: tuple[int, ...]) -> RowPlan:
    """Compute the latest proposal, sample behind it."""
    start = row.start + len(row.token_ids) + len(proposals) - 1
    return RowPlan(slot=row.slot, start=start, token_ids=proposals[-1:], num_samples=1)
