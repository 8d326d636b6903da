"""A request in the engine and its branches.

There is no prefill phase and no decode phase: a sequence's computed tokens chase its tokens.
"""

from __future__ import annotations

from enum import IntEnum

from octavo.core.grammar import GrammarState
from octavo.core.request import Lane, Submit, TokenLogprobs
from octavo.core.step import SlotState
from octavo.kv import Account, SequenceKV
from octavo.scheduler.beam_search import BeamSearch
from octavo.scheduler.guess import Guess

# (step at which it is due, arrival, branch)
Order = tuple[int, int, int]

# Logits of so many positions are held at once for one sequence.
MAX_SCORED_CHUNK = 64


class Status(IntEnum):
    """Where a sequence is. One state at a time (I7).

    NEW and COMPILING stand in no queue; the latter waits for its grammar.
    """

    WAITING = 0
    RUNNING = 1
    FINISHED = 2
    NEW = 3
    COMPILING = 4


class RequestState:
    """A request with one owner epoch, its live branches and what ends them.

    ``stop_ids`` end a branch, but not among its first ``min_tokens`` tokens. ``max_output``
    is the most tokens a branch may have. ``order`` is the arrival number, ``due`` its place by age
    and priority (see ``scheduler.fair_queue``; None until it is queued). ``resumed`` says that
    this attempt continues an earlier one: ``num_cached_tokens`` is then what that one has read.
    ``owed_branches`` are those that had not ended when it began. A ``beam`` search has a sequence
    per live beam, or per part that several beams share and that is computed again; ``leader``
    stands for all of them in the queue. ``scores`` are the prompt's logprobs so far; None where
    nobody asks, or has them.
    """

    __slots__ = (
        "account",
        "beam",
        "branches",
        "digest",
        "due",
        "epoch",
        "leader",
        "max_output",
        "num_cached_tokens",
        "order",
        "owed_branches",
        "request",
        "resumed",
        "scores",
        "stop_ids",
        "submit",
    )

    def __init__(
        self, submit: Submit, *, order: int, max_output: int, digest: bytes, num_cached: int = 0
    ) -> None:
        request = submit.request
        sampling = request.sampling
        eos = () if sampling.ignore_eos else request.eos_token_ids
        self.request = request
        self.submit = submit
        self.account = Account(request.tenant, request.request_id)
        self.epoch = submit.epoch
        self.resumed = submit.resumes
        self.order = order
        self.due: int | None = None
        self.max_output = max_output
        self.digest = digest
        self.stop_ids = frozenset((*eos, *sampling.stop_token_ids))
        self.branches: dict[int, Sequence] = {}
        self.owed_branches = [
            branch
            for branch in range(sampling.num_branches)
            if branch not in submit.finished_branches
        ]
        self.leader = Sequence(
            self, 0, list(request.prompt_token_ids), num_spare=sampling.width - 1
        )
        self.beam: BeamSearch | None = None
        if sampling.use_beam_search:
            self.beam = BeamSearch(sampling, stop_ids=self.stop_ids, max_output=max_output)
        self.num_cached_tokens = num_cached
        has_begun = bool(submit.finished_branches or any(submit.branch_tokens))
        wants_scores = sampling.prompt_logprobs is not None and not has_begun
        self.scores: list[TokenLogprobs] | None = [] if wants_scores else None

    def take_scores(self, start: int, scores: tuple[TokenLogprobs, ...]) -> None:
        """Scores behind the prompt's tokens from ``start``; after a preemption they come again."""
        if self.scores is not None:
            self.scores[start : start + len(scores)] = scores

    @property
    def num_prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.request.prompt_token_ids)


class Sequence:
    """One branch: its token ids (prompt first), its KV and its row slot (-1: none).

    ``num_spare`` branches after this one are forked from it at its first token. ``num_lost``
    tokens were computed once already, before a preemption. ``grammar`` stands after its last token.
    ``guess`` is what speculation knows of it. A stem is what several beams of a search share:
    nothing is sampled at its end, where it is forked into them. ``max_output`` is the most tokens
    that it may have: of a probe, its label's. A draft path is forked from its ``trunk`` for one
    step, to verify other drafts; no request knows of it.
    """

    __slots__ = (
        "branch",
        "grammar",
        "guess",
        "is_stem",
        "kv",
        "max_output",
        "num_lost",
        "num_prompt",
        "num_spare",
        "preempted",
        "slot",
        "state",
        "status",
        "token_ids",
        "trunk",
    )

    def __init__(
        self, state: RequestState, branch: int, token_ids: list[int], *, num_spare: int = 0
    ) -> None:
        self.state = state
        self.branch = branch
        self.token_ids = token_ids
        self.num_prompt = state.num_prompt_tokens
        self.num_spare = num_spare
        probe = state.request.probe
        labels = probe.labels if probe is not None else ()
        self.max_output = len(labels[branch]) if labels else state.max_output
        self.is_stem = False
        self.num_lost = 0
        self.preempted = False
        self.guess: Guess | None = None
        self.kv: SequenceKV | None = None
        self.grammar: GrammarState | None = None
        self.trunk: Sequence | None = None
        self.slot = -1
        self.status = Status.NEW

    @property
    def order(self) -> Order:
        """Place among its tenant's: when it is due, arrival, branch."""
        return (self.state.due or 0, self.state.order, self.branch)

    @property
    def lane(self) -> Lane:
        """What its outputs have in common."""
        state = self.state
        return state.request.request_id, self.branch, state.epoch, state.num_cached_tokens

    @property
    def is_fresh(self) -> bool:
        """Whether its request is new here: never admitted, and not continued from elsewhere."""
        return not self.preempted and not self.state.resumed

    @property
    def num_output(self) -> int:
        """Tokens sampled so far."""
        return len(self.token_ids) - self.num_prompt

    @property
    def num_computed(self) -> int:
        """Tokens whose KV is in the cache."""
        return self.kv.num_computed if self.kv is not None else 0

    @property
    def num_samples(self) -> int:
        """What the row of its last token samples."""
        if self.state.beam is not None:
            return int(not self.is_stem)
        return 1 + self.num_spare

    @property
    def may_guess(self) -> bool:
        """Whether drafts may be verified behind its last token: its row samples one branch."""
        state = self.state
        return not self.num_spare and state.beam is None and state.request.probe is None

    @property
    def max_chunk(self) -> int:
        """The most tokens of it that a step may compute: each that is scored costs a head."""
        return MAX_SCORED_CHUNK if self.state.scores is not None else len(self.token_ids)

    def num_scored(self, start: int, end: int) -> int:
        """How many of the tokens at positions ``start`` to ``end`` a scored one follows."""
        return 0 if self.state.scores is None else max(0, min(end, self.num_prompt - 1) - start)

    @property
    def has_offer(self) -> bool:
        """Whether it is a beam whose tokens are all computed and that waits for the others."""
        beam = self.state.beam
        return beam is not None and beam.has_offer(self.branch)

    @property
    def num_seats(self) -> int:
        """Places in the batch that it will need, with the branches it still has to fork."""
        return 1 + self.num_spare

    def slot_state(self) -> SlotState:
        """What the runner keeps for its row slot."""
        sampling, beam = self.state.request.sampling, self.state.beam
        banned = tuple(sorted(self.state.stop_ids)) if sampling.min_tokens else ()
        return SlotState(
            slot=self.slot,
            branch=self.branch,
            seed=sampling.seed or 0,
            sampling=sampling,
            num_prompt_tokens=self.num_prompt,
            token_ids=tuple(self.token_ids),
            banned_token_ids=banned,
            banned_until=sampling.min_tokens,
            num_candidates=beam.num_candidates if beam is not None else 0,
            probe=self.state.request.probe,
        )
