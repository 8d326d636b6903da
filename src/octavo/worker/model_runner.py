"""The Runner that the engine drives: plans in, samples out, numbers in between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from octavo.backends.program import Executor, StepOutput
from octavo.core.request import TokenLogprobs
from octavo.core.runner import RunnerInfo
from octavo.core.step import RowPlan, RowResult, StepPlan, StepResult
from octavo.errors import EngineError
from octavo.worker.batch import allowed_mask, build_batch
from octavo.worker.drafter import Drafter
from octavo.worker.row_layout import RowLayout
from octavo.worker.slots import SlotTable


class ModelRunner:
    """Owns the executor (weights, KV bytes) and the row slots.

    ``trace`` of the last step: ``last_output`` keeps the backend's output, raw logits included
    when ``want_logits`` is set (accuracy tests). ``unsampled_ids`` are rows of the vocabulary that
    no sample may be: they stand for no token.
    """

    def __init__(
        self,
        executor: Executor,
        info: RunnerInfo,
        *,
        max_slots: int,
        unsampled_ids: Sequence[int] = (),
        drafter: Drafter | None = None,
    ) -> None:
        self._executor = executor
        self._drafter = drafter
        self._info = info
        self._generation = 0
        blocks_per_table = -(-info.max_model_len // info.block_size) + 1
        self._slots = SlotTable(
            max_slots=max_slots,
            max_blocks=blocks_per_table,
            num_groups=len(info.groups),
            num_unsampled=len(unsampled_ids),
            vocab_size=info.vocab_size,
        )
        self._unsampled = frozenset(unsampled_ids)
        self._allowed = allowed_mask(info.vocab_size, unsampled_ids)
        self.want_logits = False
        self.last_output: StepOutput | None = None

    @property
    def info(self) -> RunnerInfo:
        """Facts of the model and its pool."""
        return self._info

    @property
    def executor(self) -> Executor:
        """The backend's executor (tests poison and read blocks through it)."""
        return self._executor

    @property
    def progress(self) -> int:
        """A counter that grows with every layer computed; readable from another thread."""
        return self._executor.progress

    def execute(self, plan: StepPlan) -> StepResult:
        """Apply slots and copies, run the forward, sample.

        Raises:
            EngineError: the plan asks for what this runner does not do.
        """
        layout = self._slots.layout
        if layout is None or layout.rows is not plan.rows:
            _refuse_unsupported(plan, can_draft=self._drafter is not None)
        if plan.new_slots or plan.freed_slots or plan.generation != self._generation:
            self._take_slots(plan)
        self._slots.update(plan.rows)
        proposals: dict[int, tuple[int, ...]] = {}
        if self._drafter is not None:
            proposals = self._drafter.propose(plan, self._slots, allowed=self._allowed)
            plan = self._with_proposals(plan, proposals)
        batch = build_batch(plan, self._slots, allowed=self._allowed, want_logits=self.want_logits)
        output = self._executor.forward(batch)
        self.last_output = output
        layout = self._slots.layout
        assert layout is not None, "a batch has a layout"
        progress = self._executor.progress
        if layout.is_plain and self._drafter is None and min(output.token_ids, default=-1) >= 0:
            return StepResult(step_id=plan.step_id, token_ids=output.token_ids, progress=progress)
        rows = _row_results(plan, layout, output)
        if self._slots.num_candidates:
            self._add_candidates(plan, rows)
        if output.hidden is not None:
            self._add_hidden(plan, rows, output.hidden)
        if self._drafter is not None:
            for row in rows:
                row.proposals = proposals.get(row.row, ())
                self._drafter.note(plan.rows[row.row], row.proposals, row.num_verified)
        return StepResult(step_id=plan.step_id, rows=rows, progress=progress)

    def _take_slots(self, plan: StepPlan) -> None:
        """Slots that are void, that end and that begin."""
        if plan.generation != self._generation:
            self._slots.clear()
            self._generation = plan.generation
        for slot in plan.freed_slots:
            self._slots.free(slot)
        for state in plan.new_slots:
            self._slots.assign(state)

    def _add_candidates(self, plan: StepPlan, rows: tuple[RowResult, ...]) -> None:
        """Of beam rows, the likeliest ids that stand for a token: their logprobs are enough."""
        for row in rows:
            count = self._slots.num_candidates.get(plan.rows[row.row].slot, 0)
            if count:
                top = row.logprobs[0].top
                stand = [pair for pair in top if pair[0] >= 0 and pair[0] not in self._unsampled]
                row.candidates = tuple(stand[:count])

    def _add_hidden(
        self, plan: StepPlan, rows: tuple[RowResult, ...], hidden: NDArray[np.float32]
    ) -> None:
        """Give the rows of probes what they asked for; ``hidden`` [S, H] is per sample."""
        at = 0
        for row in rows:
            asked = plan.rows[row.row]
            at += asked.num_scored
            if asked.slot in self._slots.hidden:
                row.hidden = hidden[at].astype("<f4").tobytes()
            at += asked.num_samples + asked.num_drafts

    def close(self) -> None:
        """Free the executors. Idempotent."""
        self._executor.close()
        if self._drafter is not None:
            self._drafter.close()

    def _with_proposals(self, plan: StepPlan, proposals: dict[int, tuple[int, ...]]) -> StepPlan:
        """The plan with the drafter's proposals as drafts."""
        rows = list(plan.rows)
        for index, drafts in proposals.items():
            tokens = (*rows[index].token_ids, *drafts)
            rows[index] = replace(rows[index], token_ids=tokens, num_drafts=len(drafts))
        self._slots.update([replace(rows[index], tables=()) for index in proposals])
        return replace(plan, rows=tuple(rows))


def _row_results(plan: StepPlan, layout: RowLayout, output: StepOutput) -> tuple[RowResult, ...]:
    """What the samples mean to the rows."""
    tokens = output.token_ids
    wanted: list[int] = layout.batch.sample.num_logprobs.tolist()
    results = []
    at = 0
    for index in layout.answering:
        row = plan.rows[index]
        scored = range(at, at + row.num_scored)
        scores = _logprobs(output, scored, wanted[at]) if row.num_scored else ()
        at = scored.stop
        if not row.num_samples:
            results.append(RowResult(row=index, token_ids=(), scores=scores))
            continue
        num_verified = _num_verified(row, tokens[at : at + row.num_drafts])
        end = at + row.num_samples + num_verified
        logprobs = () if wanted[at] < 0 else _logprobs(output, range(at, end), wanted[at])
        drawn = tokens[at:end]
        results.append(
            RowResult(
                row=index,
                token_ids=drawn,
                logprobs=logprobs,
                num_verified=num_verified,
                failed=min(drawn) < 0,
                scores=scores,
            )
        )
        at += row.num_samples + row.num_drafts
    return tuple(results)


def _num_verified(row: RowPlan, drawn: tuple[int, ...]) -> int:
    """How many leading drafts are what was sampled in their place."""
    drafts = row.token_ids[len(row.token_ids) - row.num_drafts :]
    for count, (draft, token) in enumerate(zip(drafts, drawn, strict=True)):
        if draft != token:
            return count
    return row.num_drafts


def _logprobs(output: StepOutput, samples: range, count: int) -> tuple[TokenLogprobs, ...]:
    return tuple(
        TokenLogprobs(
            output.token_ids[i],
            float(output.logprobs[i]),
            tuple(
                zip(
                    output.top_ids[i, :count].tolist(),
                    np.asarray(output.top_logprobs[i, :count], np.float64).tolist(),
                    strict=True,
                )
            ),
        )
        for i in samples
    )


def _refuse_unsupported(plan: StepPlan, *, can_draft: bool) -> None:
    if not can_draft and [row for row in plan.rows if row.num_proposals]:
        raise EngineError("this runner has no model that drafts")
