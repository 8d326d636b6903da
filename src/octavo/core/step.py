"""The only thing that control plane and data plane share: one step's plan and its result.

    StepPlan                                   StepResult
    ├── generation   (full-resync counter)     ├── rows: RowResult per sampling row, or token_ids
    ├── new_slots    SlotState …               │     samples, logprobs, num_verified, proposals
    ├── freed_slots                            └── progress
    ├── copies       BlockCopy …   (applied first, never chained)
    └── rows         RowPlan …
          positions   [start ───────── start + len(token_ids))
          tables      one TableUpdate per KV group

The values made once per step, or per row and step, are not frozen, and the latter may be made by
position, because freezing triples and keywords double the cost of making them. Whoever is given
them does not change them. The planner does, in place, where the same rows decode again: whoever
keeps a plan past its step copies its rows.

Block ids cross as integers. A *row slot* is a small integer naming persistent per-sequence state
in the worker (token history, sampling parameters, block tables); plans carry only what changed.
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.core.probe import Probe
from octavo.core.request import TokenLogprobs
from octavo.core.sampling_params import SamplingParams


@dataclass(slots=True, kw_only=True)
class SlotState:
    """The constant part of a row slot, sent when a sequence takes it (again after a resync).

    ``token_ids`` are all tokens known so far, prompt first. The worker extends the history itself
    with the tokens of later rows. ``banned_until`` output tokens exist, ``banned_token_ids``
    may not be sampled (``min_tokens``). ``num_candidates`` > 0 makes its rows report so many of the
    likeliest tokens (beam search). A ``probe`` gives the
    tokens that its samples are (see ``core.probe``), or makes its rows report hidden states.
    """

    slot: int
    branch: int
    seed: int
    sampling: SamplingParams
    num_prompt_tokens: int
    token_ids: tuple[int, ...]
    banned_token_ids: tuple[int, ...] = ()
    banned_until: int = 0
    num_candidates: int = 0
    probe: Probe | None = None


@dataclass(slots=True)
class TableUpdate:
    """How a row's block table of one KV group changed: keep ``keep`` entries, append ``blocks``.

    Entry ``i`` of the table covers positions ``first_position + [i * P, (i + 1) * P)``. Where
    ``first_position`` differs from before (a window moved), ``keep`` is 0: the table comes whole.
    """

    group: int = 0
    first_position: int = 0
    keep: int = 0
    blocks: tuple[int, ...] = ()


@dataclass(slots=True)
class RowPlan:
    """One sequence's share of the step: compute ``token_ids`` at positions ``start…``.

    ``num_samples`` 0 samples nothing (a prompt chunk that is not the last). 1 samples the token
    that follows the last one, for the slot's branch. n > 1 (at a request's first token) samples
    for branches ``branch … branch + n - 1`` from the one row. ``num_drafts`` of the trailing
    tokens are drafts to verify: the row samples after the token before them and after each of
    them, the history of each sample ending with the drafts before it. ``num_proposals`` more may
    be drafted and verified by the runner itself. Behind each of the first ``num_scored`` tokens the
    prompt's next token, which the slot knows, is given its logprob.
    """

    slot: int
    start: int
    token_ids: tuple[int, ...]
    tables: tuple[TableUpdate, ...] = ()
    num_samples: int = 0
    num_drafts: int = 0
    num_proposals: int = 0
    num_scored: int = 0

    @property
    def answers(self) -> bool:
        """Whether there is a result for it."""
        return bool(self.num_samples or self.num_scored)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCopy:
    """Copy the first ``num_tokens`` slots of block ``src`` to ``dst`` in every layer of a group."""

    src: int
    dst: int
    num_tokens: int
    group: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarMask:
    """Allowed tokens of one verify row: ``words`` are ⌈vocab / 32⌉ little-endian uint32 words.

    ``row`` indexes ``StepPlan.rows``; ``offset`` is the position within the row's tokens whose
    *next* token the mask constrains (draft i < offset is part of that position's history).
    """

    row: int
    offset: int
    words: bytes


@dataclass(slots=True, kw_only=True)
class StepPlan:
    """All that the data plane may do in one step; every block it touches is already reserved."""

    step_id: int
    generation: int = 0
    rows: tuple[RowPlan, ...] = ()
    new_slots: tuple[SlotState, ...] = ()
    freed_slots: tuple[int, ...] = ()
    copies: tuple[BlockCopy, ...] = ()
    grammar_masks: tuple[GrammarMask, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens computed by the step: the quantity that the token budget bounds."""
        return sum([len(row.token_ids) for row in self.rows])


@dataclass(slots=True)
class RowResult:
    """What one row produced. ``row`` indexes ``StepPlan.rows``; rows that neither sample nor score
    are absent.

    Results stand in the order of their rows.

    ``token_ids`` has one entry per sample, or, for drafts, the ``num_verified`` leading ones that
    equal what was sampled in their place, and the one sampled behind them. ``proposals`` are the
    drafts of the runner's own.
    ``logprobs`` is empty unless the row's parameters ask for it. ``failed`` says that some sample
    had no finite logit that is allowed: the request is at fault, not the step. ``candidates`` are
    (token id, logprob) of the likeliest tokens, ties by id, where the slot asks for them.
    ``hidden`` is the state that its probe asks for: float32, little-endian. ``scores`` are those of
    the prompt's tokens, ``num_scored`` of them.
    """

    row: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    num_verified: int = 0
    proposals: tuple[int, ...] = ()
    failed: bool = False
    candidates: tuple[tuple[int, float], ...] = ()
    hidden: bytes = b""
    scores: tuple[TokenLogprobs, ...] = ()


@dataclass(slots=True, kw_only=True)
class StepResult:
    """The answer to a plan. ``progress`` is the runner's monotonic work counter (P6).

    Where every row that answers drew one token and has no more to tell, these are ``token_ids``, in
    the order of their rows, and ``rows`` is empty: what a step of nothing but decodes comes to.
    """

    step_id: int
    rows: tuple[RowResult, ...] = ()
    token_ids: tuple[int, ...] = ()
    progress: int = 0
