"""From an engine's outputs to what a client sees. Pure and synchronous; no socket, no clock.

    BranchOutput → new? (request, branch, epoch, position) → text, stop strings → journal → delta

The same object serves the asynchronous client and the in-process one. Tokens past a stop string
are discarded here: they are in no usage, no logprobs and no journal.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from octavo.core.request import BranchOutput, FinishReason, Request, StopBranch
from octavo.errors import (
    ContextLengthError,
    DeadlineExceededError,
    EngineError,
    InvalidRequestError,
    OctavoError,
    OverloadedError,
    UnavailableError,
)
from octavo.frontend.best_of import BestOf
from octavo.frontend.journal import UNKNOWN_NUMERICS, GapError, Journal, JournalEntry, Numerics
from octavo.frontend.outputs import BranchDelta, RequestOutput, Usage, merge_deltas
from octavo.text import TextStream, Tokenizer, spell_words

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Processed:
    """What a batch of outputs amounts to.

    ``outputs`` are to be delivered, ``stops`` sent to the engine. ``gaps`` names requests whose
    outputs were lost on the way; they are to be resubmitted from the journal. ``failures`` holds
    the error of each request that was dropped.
    """

    outputs: list[RequestOutput] = field(default_factory=list)
    stops: list[StopBranch] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    failures: dict[str, OctavoError] = field(default_factory=dict)


@dataclass(slots=True)
class _Open:
    entry: JournalEntry
    texts: list[TextStream]
    ranking: BestOf | None
    completion_tokens: int = 0
    cached_tokens: int = 0
    accepted_tokens: int = 0
    rejected_tokens: int = 0


def draw_seed() -> int:
    """A seed for a request that has none."""
    return secrets.randbits(63)


class OutputProcessor:
    """Owns the text state of the requests in flight, and the journal."""

    def __init__(self, tokenizer: Tokenizer, *, new_seed: Callable[[], int] = draw_seed) -> None:
        self._tokenizer = tokenizer
        self._open: dict[str, _Open] = {}
        self.journal = Journal(draw_seed=new_seed)

    def __len__(self) -> int:
        return len(self._open)

    def open(self, request: Request, numerics: Numerics = UNKNOWN_NUMERICS) -> JournalEntry:
        """Journal a request and prepare its text state; ``entry.submission()`` is to be sent.

        Its ``bad_words`` are spelled in tokens now.

        ``numerics`` are those of the engine that is to run it.

        Raises:
            OverloadedError: the journal is full.
        """
        if request.sampling.bad_words:
            runs = spell_words(request.sampling.bad_words, self._tokenizer)
            request = replace(request, sampling=replace(request.sampling, bad_token_ids=runs))
        entry = self.journal.open(request, numerics)
        sampling = entry.request.sampling
        texts = [
            TextStream(
                self._tokenizer,
                stops=sampling.stop,
                include_stop_str=sampling.include_stop_str_in_output,
                skip_special_tokens=sampling.skip_special_tokens,
                min_tokens=sampling.min_tokens,
            )
            for _ in range(sampling.num_branches)
        ]
        ranking = BestOf(sampling) if sampling.is_ranked else None
        self._open[request.request_id] = _Open(entry, texts, ranking)
        return entry

    def close(self, request_id: str) -> None:
        """Forget a request, finished or not. Idempotent."""
        self._open.pop(request_id, None)
        self.journal.close(request_id)

    def process(self, outputs: Iterable[BranchOutput]) -> Processed:
        """Take what the engine says. Stale and repeated outputs vanish here."""
        result = Processed()
        deltas: dict[str, list[BranchDelta]] = {}
        for output in outputs:
            state = self._open.get(output.request_id)
            if state is None or output.request_id in result.gaps:
                continue
            if output.request_id in result.failures and output.finish_reason not in _DROPPED:
                continue
            try:
                fresh = self.journal.accept(output)
            except GapError:
                result.gaps.append(output.request_id)
                continue
            if fresh is not None:
                delta = self._delta_or_failure(state, fresh, result)
                deltas.setdefault(output.request_id, []).append(delta)
        for request_id, parts in deltas.items():
            state = self._open[request_id]
            if state.ranking is not None and request_id not in result.failures:
                parts = state.ranking.take(parts, ended=state.entry.finished)
            if parts:
                result.outputs.append(self._request_output(state, parts))
        return result

    def _delta_or_failure(
        self, state: _Open, output: BranchOutput, result: Processed
    ) -> BranchDelta:
        """Whatever goes wrong with one request's output costs that request alone."""
        if output.finish_reason in _DROPPED:
            return self._fail(output, failure_of(output), result)
        try:
            return self._delta(state, output, result)
        except OverloadedError as full:
            return self._fail(output, full, result)
        except Exception:
            logger.exception("the output of request %s cannot be read", output.request_id)
            text = f"request {output.request_id} is dropped: its output is unreadable"
            return self._fail(output, EngineError(text), result)

    def _fail(self, output: BranchOutput, failure: OctavoError, result: Processed) -> BranchDelta:
        """Never a normal end (P5), whatever the engine thought of the branch."""
        result.failures.setdefault(output.request_id, failure)
        self.journal.finish_branch(output.request_id, output.branch)
        dropped = output.finish_reason in _DROPPED
        return BranchDelta(
            branch=output.branch,
            finish_reason=output.finish_reason if dropped else FinishReason.ERROR,
            error=failure.message,
        )

    def _delta(self, state: _Open, output: BranchOutput, result: Processed) -> BranchDelta:
        state.cached_tokens = state.cached_tokens or output.num_cached_tokens
        text, num_tokens, stop = self._text(state, output)
        token_ids = output.token_ids[:num_tokens]
        self.journal.record(output.request_id, output.branch, token_ids)
        state.completion_tokens += len(token_ids)
        # A stop string may have cut off tokens that the engine had accepted.
        accepted = min(output.num_accepted, len(token_ids))
        state.accepted_tokens += accepted
        state.rejected_tokens += output.num_drafts - accepted
        reason = output.finish_reason
        stop_reason: str | int | None = output.stop_token_id if reason is not None else None
        if stop is not None:
            if reason is None:
                result.stops.append(StopBranch(request_id=output.request_id, branch=output.branch))
            reason, stop_reason = FinishReason.STOP, stop
        if reason is not None:
            self.journal.finish_branch(output.request_id, output.branch)
        logprobs = output.logprobs[:num_tokens]
        return BranchDelta(
            branch=output.branch,
            text=text,
            token_ids=token_ids,
            logprobs=logprobs,
            finish_reason=reason,
            stop_reason=stop_reason,
            hidden=output.hidden,
            prompt_logprobs=output.prompt_logprobs,
        )

    def _text(self, state: _Open, output: BranchOutput) -> tuple[str, int, str | None]:
        """The new text, how many of the tokens belong to the answer, and the stop string met."""
        shown = output.token_ids
        stop_token = output.stop_token_id
        hides_stop_token = (
            stop_token is not None
            and shown[-1:] == (stop_token,)
            and not state.entry.request.sampling.include_stop_str_in_output
        )
        if hides_stop_token:
            shown = shown[:-1]
        stream = state.texts[output.branch]
        delta = stream.push(shown)
        if delta.stop is not None:
            return delta.text, delta.num_tokens, delta.stop
        if output.finish_reason is None:
            return delta.text, len(output.token_ids), None
        end = stream.flush()
        return delta.text + end.text, len(output.token_ids), end.stop

    def _request_output(self, state: _Open, parts: list[BranchDelta]) -> RequestOutput:
        entry = state.entry
        usage = Usage(
            len(entry.request.prompt_token_ids),
            state.completion_tokens,
            state.cached_tokens,
            state.accepted_tokens,
            state.rejected_tokens,
        )
        branches = tuple(merge_deltas(parts)) if len(parts) > 1 else tuple(parts)
        finished = parts[-1].finish_reason is not None and entry.finished
        return RequestOutput(entry.request.request_id, branches, usage, finished)


def failure_of(output: BranchOutput) -> OctavoError:
    """The error that a dropped branch stands for."""
    kind = _FAILURES.get(output.error_code or "", EngineError)
    message = output.error or "the request was dropped by the engine"
    return kind(message, param=output.error_param)


_DROPPED = (FinishReason.ERROR, FinishReason.ABORT)
_FAILURES: dict[str, type[OctavoError]] = {
    str(kind.code or kind.error_type): kind
    for kind in (
        InvalidRequestError,
        ContextLengthError,
        OverloadedError,
        UnavailableError,
        DeadlineExceededError,
        EngineError,
    )
}
