"""What a step's rows do to the sequences of a beam search: fork, drop, finish.

    all rows of the group are in ─► advance ─► drop the dead ─► fork the fertile
    a stem is computed           ─► fork it where its beams part     (after a preemption)

A fork shares every block; whoever appends to a shared tail copies it in the next step, so a step of
``width`` beams computes ``width`` tokens. The first sequence of a group holds the promises and the
seats of beams that are missing for now.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass

from octavo.core.request import BranchOutput, FinishReason
from octavo.core.step import RowResult
from octavo.errors import EngineError
from octavo.kv import KVCacheManager
from octavo.scheduler import Beam, BeamSearch, RequestState, Scheduler, Sequence, shared_tokens

TOO_FEW = "beam search ended with fewer sequences than n: too few tokens had a finite logit"


@dataclass(slots=True)
class _Part:
    """One beam, or several that go on together as far as ``token_ids`` (output tokens)."""

    beams: List[Beam]
    token_ids: tuple[int, ...]
    num_spare: int


class BeamCommitter:
    """Applies a search's choices to its sequences; knows scheduler and KV, no events."""

    def __init__(self, kv: KVCacheManager, scheduler: Scheduler) -> None:
        self._kv = kv
        self._scheduler = scheduler
        self.num_forks = 0
        self.num_advances = 0
        self.num_splits = 0

    def offer(self, search: BeamSearch, seq: Sequence, row: RowResult) -> None:
        """Note what a row says may follow its beam."""
        top = row.logprobs[0].top if row.logprobs else ()
        search.offer(seq.branch, row.candidates, top)

    def settle(self, state: RequestState) -> list[BranchOutput]:
        """After a step: part what was computed together, go on where all are ready.

        Returns the answers when the search is over; its sequences are still to be released. One
        that was dropped meanwhile has no sequences.
        """
        search = state.beam
        assert search is not None
        for seq in list(state.branches.values()):
            if seq.is_stem and seq.num_computed == len(seq.token_ids):
                self._split(seq, search)
        if not state.branches or not search.is_ready:
            return []
        self.num_advances += 1
        families = search.advance()
        if not families:
            return _answers(state, search)
        for branch in [branch for branch in state.branches if branch not in families]:
            self._scheduler.finish(state.branches.pop(branch))
        num_missing = search.width - len(search.beams)
        for branch, beams in families.items():
            parts = [_Part([beam], beam.token_ids, 0) for beam in beams]
            parts[0].num_spare = num_missing
            num_missing = 0
            self._divide(state.branches[branch], parts)
        return []

    def _split(self, stem: Sequence, search: BeamSearch) -> None:
        """Fork a computed stem into one sequence per token that goes on from it."""
        groups = search.below(tuple(stem.token_ids[stem.num_prompt :]))
        parts = [_Part(beams, shared_tokens(beams), len(beams) - 1) for beams in groups]
        num_known = sum(len(beams) for beams in groups)
        parts[0].num_spare += 1 + stem.num_spare - num_known
        self.num_splits += 1
        self._divide(stem, parts)

    def _divide(self, parent: Sequence, parts: List[_Part]) -> None:
        """``parent`` becomes the first part; the others are forked from it."""
        state, num_prompt = parent.state, parent.num_prompt
        assert parent.kv is not None
        self._promise(parent, sum(1 + part.num_spare for part in parts), parent.num_computed)
        children = []
        for part in parts[1:]:
            child = Sequence(state, part.beams[0].branch, parent.token_ids[:num_prompt])
            child.num_lost = parent.num_lost
            child.kv = self._kv.fork(parent.kv)
            state.branches[child.branch] = child
            children.append(child)
        self._scheduler.add_fork(parent, children)
        self.num_forks += len(children)
        for seq, part in zip((parent, *children), parts, strict=True):
            seq.token_ids[num_prompt:] = part.token_ids
            seq.num_spare = part.num_spare
            seq.is_stem = len(part.beams) > 1
            self._promise(seq, 1 + part.num_spare, len(seq.token_ids))
        self._kv.shed_promises()

    def _promise(self, seq: Sequence, num_branches: int, fork_at: int) -> None:
        """Promise ``seq`` what it may take with the beams that will be forked from it."""
        assert seq.kv is not None
        if self._scheduler.policy.promises_branches:
            target = seq.kv.target_tokens
            self._kv.promise(seq.kv, target, branches=num_branches, fork_at=fork_at)


def _answers(state: RequestState, search: BeamSearch) -> list[BranchOutput]:
    """One output per branch that is owed: a whole hypothesis each, best first."""
    outputs = []
    for branch in state.owed_branches:
        output = BranchOutput(
            request_id=state.request.request_id,
            branch=branch,
            epoch=state.epoch,
            position=0,
            finish_reason=FinishReason.ERROR,
            num_cached_tokens=state.num_cached_tokens,
        )
        if branch < len(search.hypotheses):
            found = search.hypotheses[branch]
            last = found.token_ids[-1]
            stopped = last in state.stop_ids
            output.token_ids = found.token_ids
            output.logprobs = found.logprobs
            output.finish_reason = FinishReason.STOP if stopped else FinishReason.LENGTH
            output.stop_token_id = last if stopped else None
        else:
            output.error, output.error_code = TOO_FEW, EngineError.code
        outputs.append(output)
    return outputs
