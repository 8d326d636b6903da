"""What a step's samples do to their sequences: append, fork, stop, emit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from octavo.core.request import BranchOutput, FinishReason, TokenLogprobs, TokenRun
from octavo.core.step import RowPlan, RowResult, StepResult
from octavo.engine.beam_commit import BeamCommitter
from octavo.engine.stats import DraftCounters
from octavo.errors import EngineError
from octavo.kv import KVCacheManager
from octavo.scheduler import RequestState, ScheduledStep, Scheduler, Sequence


def validate_result(step: ScheduledStep, result: StepResult, vocab_size: int) -> None:
    """Hold a result against its plan before anything is changed.

    Raises:
        EngineError: the runner answered something else than was asked.
    """
    drawn = result.token_ids
    if drawn and (result.rows or not step.is_plain):
        raise EngineError("the runner returned bare tokens for rows that ask for more")
    num_answers = len(drawn) + len(result.rows)
    if result.step_id != step.plan.step_id or num_answers != len(step.answering):
        raise EngineError("the runner answered another step than the one it was given")
    for index, row in zip(step.answering, result.rows, strict=False):
        asked = step.plan.rows[index]
        if row.row != index or len(row.token_ids) != asked.num_samples + row.num_verified:
            raise EngineError("the runner returned a wrong number of samples for a row")
        if len(row.scores) != asked.num_scored:
            raise EngineError("the runner returned a wrong number of scores for a row")
        if row.num_verified or row.proposals:
            _check_verified(asked, row)
        if not row.failed:
            drawn += row.token_ids
    if drawn and (min(drawn) < 0 or max(drawn) >= vocab_size):
        raise EngineError("the runner sampled a token outside the vocabulary")


def _check_verified(asked: RowPlan, row: RowResult) -> None:
    """What the runner says that it accepted are drafts of the row, its own ones included."""
    drafts = (*asked.token_ids[len(asked.token_ids) - asked.num_drafts :], *row.proposals)
    is_accepted = row.token_ids[: row.num_verified] == drafts[: row.num_verified]
    if not is_accepted or len(row.proposals) > asked.num_proposals:
        raise EngineError("the runner accepted what was no draft of its row")


class TokenCommitter:
    """Applies results to sequences; knows scheduler and KV, no events and no queue of outputs."""

    def __init__(self, kv: KVCacheManager, scheduler: Scheduler) -> None:
        self._kv = kv
        self._scheduler = scheduler
        self.beams = BeamCommitter(kv, scheduler)
        self.num_forks = 0
        self.drafts = DraftCounters()

    def commit_kv(self, step: ScheduledStep) -> None:
        """The step's slots are written: count them as computed and publish full blocks.

        A sequence that was dropped meanwhile has let go of its KV: nothing of it is published.
        Rows with drafts follow in ``accept``, where it turns out how many of them stay.
        """
        commit = self._kv.commit
        for (seq, count), row in zip(step.rows, step.plan.rows, strict=True):
            if seq.kv is not None and not row.num_drafts and not row.num_proposals:
                commit(seq.kv, seq.token_ids, count)

    def go_on(self, step: ScheduledStep, token_ids: tuple[int, ...]) -> TokenRun | None:
        """Commit a step of steady rows in one pass; None, and no change, if a row may end."""
        steady = step.steady
        run = steady.take(token_ids) if steady is not None and token_ids else None
        if steady is not None and run is not None:
            for index in steady.due:
                _, kv, tokens = steady.columns[index]
                self._kv.commit(kv, tokens, 0)
        return run

    def accept(self, step: ScheduledStep, result: StepResult) -> list[BranchOutput]:
        """Append every row's samples; one output per branch that got a token.

        A beam search answers when it is over, a whole sequence per output. A sequence that was
        dropped meanwhile gets none.
        """
        if result.token_ids:
            outputs = _append_each(step, result.token_ids)
        else:
            outputs = self._accept_rows(step, result.rows)
        searching = [seq.state for seq, _ in step.rows if seq.state.beam is not None]
        for state in dict.fromkeys(searching):
            outputs += self.beams.settle(state)
        return outputs

    def _accept_rows(self, step: ScheduledStep, rows: Iterable[RowResult]) -> list[BranchOutput]:
        outputs: list[BranchOutput] = []
        num_drafts: dict[Sequence, int] = {}
        if step.paths:
            rows, num_drafts = self._keep_best_paths(step, rows)
        step_rows, plan_rows = step.rows, step.plan.rows
        for row in _sampled(step, rows):
            seq = step_rows[row.row][0]
            seq = seq.trunk or seq
            if seq.state.beam is not None:
                self.beams.offer(seq.state.beam, seq, row)
            elif seq.num_spare and seq.kv is not None:
                for index, branch in enumerate(self._fork(seq)):
                    logprobs = row.logprobs[index : index + 1]
                    outputs.append(_append(branch, (row.token_ids[index],), logprobs))
                    _give_scores(branch.state, outputs[-1])
            elif seq.kv is not None:
                output = _append(seq, row.token_ids, row.logprobs)
                output.hidden = row.hidden
                _give_scores(seq.state, output)
                outputs.append(output)
                asked = plan_rows[row.row]
                if asked.num_drafts or asked.num_proposals:
                    depth = asked.num_drafts + len(row.proposals)
                    output.num_drafts = num_drafts.get(seq, depth)
                    output.num_accepted = min(row.num_verified, len(output.token_ids))
                    self._keep_drafts(seq, output, row.proposals)
                    self.drafts.count(output.num_drafts, output.num_accepted, depth=depth)
        return outputs

    def _keep_best_paths(
        self, step: ScheduledStep, rows: Iterable[RowResult]
    ) -> tuple[list[RowResult], dict[Sequence, int]]:
        """Of each draft tree the row that is right longest, the trunk's among equals.

        The trunk goes on with that row's table and the others are rolled back. Also the drafts of
        each trunk's paths together.
        """
        best: dict[Sequence, RowResult] = {}
        trunks = {path.trunk: 0 for path in step.paths if path.trunk is not None}
        for row in rows:
            seq = step.rows[row.row][0]
            trunk = seq.trunk or seq
            if trunk in trunks:
                trunks[trunk] += step.plan.rows[row.row].num_drafts
            if trunk not in best or row.num_verified > best[trunk].num_verified:
                best[trunk] = row
        for trunk, row in best.items():
            path = step.rows[row.row][0]
            if path is not trunk and trunk.kv is not None:
                self._scheduler.paths.adopt(path)
                self.drafts.paths_kept += 1
        self._scheduler.paths.drop(step.paths)
        self.drafts.trees += len(trunks)
        self.drafts.paths += len(step.paths)
        return list(best.values()), trunks

    def _keep_drafts(self, seq: Sequence, output: BranchOutput, proposals: tuple[int, ...]) -> None:
        """Commit all that was appended but the last token; the other slots go back at once.

        ``proposals`` of the runner's own are what its next ones are judged by.
        """
        assert seq.kv is not None
        assert seq.guess is not None, "a sequence without a guess has no drafts"
        seq.guess.drafts += proposals
        self._kv.commit(seq.kv, seq.token_ids, len(output.token_ids))

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


def _append_each(step: ScheduledStep, token_ids: tuple[int, ...]) -> list[BranchOutput]:
    """One token for each row that answers: none of them failed, so all are still there."""
    outputs = []
    for index, token_id in zip(step.answering, token_ids, strict=True):
        seq = step.rows[index][0]
        outputs.append(_append(seq, (token_id,), ()))
        _give_scores(seq.state, outputs[-1])
    return outputs


def _sampled(step: ScheduledStep, rows: Iterable[RowResult]) -> Iterator[RowResult]:
    """Rows with samples; what scores came with any row is its request's."""
    for row in rows:
        if row.scores:
            state = step.rows[row.row][0].state
            state.take_scores(step.plan.rows[row.row].start, row.scores)
        if row.token_ids:
            yield row


def _give_scores(state: RequestState, output: BranchOutput) -> None:
    """The first output of all takes the prompt's logprobs along."""
    if state.scores is not None:
        output.prompt_logprobs, state.scores = tuple(state.scores), None


def _append(
    seq: Sequence, token_ids: tuple[int, ...], logprobs: tuple[TokenLogprobs, ...]
) -> BranchOutput:
    """Extend one branch, up to a token that ends it, and say whether one did."""
    state, tokens = seq.state, seq.token_ids
    position = len(tokens) - seq.num_prompt
    reason = None
    for count, token_id in enumerate(token_ids, 1):
        tokens.append(token_id)
        if seq.grammar is not None:
            seq.grammar.accept(token_id)
        elif token_id not in state.stop_ids and position + count < seq.max_output:
            continue
        reason = finish_reason(seq)
        if reason is not None:
            token_ids, logprobs = token_ids[:count], logprobs[:count]
            break
    is_stop = reason is FinishReason.STOP and token_ids[-1] in state.stop_ids
    return BranchOutput(
        state.request.request_id,
        seq.branch,
        state.epoch,
        position,
        token_ids,
        logprobs,
        reason,
        token_ids[-1] if is_stop else None,
        state.num_cached_tokens,
    )


def finish_reason(seq: Sequence) -> FinishReason | None:
    """Whether the tokens so far end the branch: a function of the tokens alone."""
    state, num_output = seq.state, seq.num_output
    if num_output > state.request.sampling.min_tokens and seq.token_ids[-1] in state.stop_ids:
        return FinishReason.STOP
    if num_output and seq.grammar is not None and seq.grammar.is_complete:
        return FinishReason.STOP
    return FinishReason.LENGTH if num_output >= seq.max_output else None
