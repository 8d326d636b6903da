"""What a step's samples do to their sequences: append, fork, stop, emit."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.core.request import BranchOutput, FinishReason, TokenLogprobs
from octavo.core.step import RowResult, StepResult
from octavo.errors import EngineError
from octavo.kv import KVCacheManager
from octavo.scheduler import ScheduledStep, Scheduler, Sequence


def validate_result(step: ScheduledStep, result: StepResult, vocab_size: int) -> None:
    """Hold a result against its plan before anything is changed.

    Raises:
        EngineError: the runner answered something else than was asked.
    """
    plan = step.plan
    sampling = [index for index, row in enumerate(plan.rows) if row.num_samples]
    if result.step_id != plan.step_id or len(result.rows) != len(sampling):
        raise EngineError("the runner answered another step than the one it was given")
    for index, row in zip(sampling, result.rows, strict=True):
        tokens = row.token_ids
        if row.row != index or len(tokens) != plan.rows[index].num_samples:
            raise EngineError("the runner returned a wrong number of samples for a row")
        if not row.failed and (min(tokens) < 0 or max(tokens) >= vocab_size):
            raise EngineError("the runner sampled a token outside the vocabulary")


class TokenCommitter:
    """Applies results to sequences; knows scheduler and KV, no events and no queue of outputs."""

    def __init__(self, kv: KVCacheManager, scheduler: Scheduler) -> None:
        self._kv = kv
        self._scheduler = scheduler
        self.num_forks = 0

    def commit_kv(self, step: ScheduledStep) -> None:
        """The step's slots are written: count them as computed and publish full blocks.

        A sequence that was dropped meanwhile has let go of its KV: nothing of it is published.
        """
        commit = self._kv.commit
        for seq, count in step.rows:
            if seq.kv is not None:
                commit(seq.kv, seq.token_ids, count)

    def accept(self, step: ScheduledStep, rows: Iterable[RowResult]) -> list[BranchOutput]:
        """Append every row's samples; one output per branch that got a token.

        A sequence that was dropped meanwhile gets none.
        """
        outputs: list[BranchOutput] = []
        for row in rows:
            seq = step.rows[row.row][0]
            if seq.num_spare and seq.kv is not None:
                for index, branch in enumerate(self._fork(seq)):
                    logprobs = row.logprobs[index : index + 1]
                    outputs.append(_append(branch, row.token_ids[index], logprobs))
            elif seq.kv is not None:
                outputs.append(_append(seq, row.token_ids[0], row.logprobs))
        return outputs

    def _fork(self, parent: Sequence) -> list[Sequence]:
        """The parent and its spare branches, which now share the parent's blocks."""
        assert parent.kv is not None
        state = parent.state
        children = []
        for branch in range(parent.branch + 1, parent.branch + 1 + parent.num_spare):
            child = Sequence(state, branch, list(parent.token_ids))
            child.kv = self._kv.fork(parent.kv)
            if parent.grammar is not None:
                child.grammar = parent.grammar.fork()
            state.branches[branch] = child
            children.append(child)
        parent.num_spare = 0
        self._kv.forget_spares(parent.kv)
        self._scheduler.add_fork(parent, children)
        self.num_forks += len(children)
        return [parent, *children]


def _append(seq: Sequence, token_id: int, logprobs: tuple[TokenLogprobs, ...]) -> BranchOutput:
    """Extend one branch by one token and say whether that ended it."""
    state, tokens = seq.state, seq.token_ids
    position = len(tokens) - seq.num_prompt
    tokens.append(token_id)
    reason = None
    is_stop = token_id in state.stop_ids
    if seq.grammar is not None:
        seq.grammar.accept(token_id)
        reason = finish_reason(seq)
    elif is_stop or position + 1 >= state.max_output:
        reason = finish_reason(seq)
    return BranchOutput(
        request_id=state.request.request_id,
        branch=seq.branch,
        epoch=state.epoch,
        position=position,
        token_ids=(token_id,),
        logprobs=logprobs,
        finish_reason=reason,
        stop_token_id=token_id if is_stop and reason is FinishReason.STOP else None,
        num_cached_tokens=state.num_cached_tokens,
    )


def finish_reason(seq: Sequence) -> FinishReason | None:
    """Whether the tokens so far end the branch: a function of the tokens alone."""
    state, num_output = seq.state, seq.num_output
    if num_output > state.request.sampling.min_tokens and seq.token_ids[-1] in state.stop_ids:
        return FinishReason.STOP
    if num_output and seq.grammar is not None and seq.grammar.is_complete:
        return FinishReason.STOP
    return FinishReason.LENGTH if num_output >= state.max_output else None
