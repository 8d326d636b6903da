"""What a frontend keeps of each request in a simulation, and holds every output against."""

from __future__ import annotations

from octavo.core.request import BranchOutput, FinishReason, Request, Submit, TokenLogprobs
from octavo.core.runner import RunnerInfo
from octavo.core.step import SlotState
from octavo.errors import OverloadedError
from octavo.testing.fake_runner import hidden_state, run_alone, run_beam_alone, score, visible
from octavo.testing.toy_grammar import ToyState


class SimulationError(Exception):
    """Something that must never happen, happened."""


class JournalEntry:
    """One request: what was delivered per branch, and how branches ended.

    ``limit`` is the most output tokens a branch may have; where the request leaves it open, what
    the engine fitted to its pool. ``hidden`` is what its probe was told, ``scores`` what was told
    of its prompt.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        self.epoch = 0
        self.delivered: list[list[int]] = [[] for _ in range(request.sampling.num_branches)]
        self.ended: dict[int, FinishReason] = {}
        self.stopped: set[int] = set()
        self.limit = request.sampling.max_tokens or 1
        self.hidden = b""
        self._asks_logprobs = request.sampling.num_logprobs >= 0
        self.scores: tuple[TokenLogprobs, ...] = ()

    @property
    def is_done(self) -> bool:
        """Whether every branch has its outcome."""
        return len(self.ended) == self.request.sampling.num_branches

    def submit(self) -> Submit:
        """The request with what was delivered so far."""
        return Submit(
            request=self.request,
            epoch=self.epoch,
            branch_tokens=tuple(map(tuple, self.delivered)),
            finished_branches=tuple(sorted(self.ended)),
        )

    def take(self, output: BranchOutput) -> None:
        """Accept one output: in order, once, and not after the end (P1, P2).

        An attempt that continues one which was accepted may not be turned away for lack of room.
        """
        wrong = ""
        if output.error_code == OverloadedError.code and self.epoch:
            wrong = f"a continuation is refused: {output.error}"
        elif output.branch in self.ended:
            wrong = "output after its end"
        elif output.position != len(self.delivered[output.branch]) or output.epoch != self.epoch:
            wrong = f"position {output.position} epoch {output.epoch}"
        elif (output.prompt_logprobs and self.scores) or (
            self._asks_logprobs
            and tuple([told.token_id for told in output.logprobs]) != output.token_ids
        ):
            wrong = "told other logprobs than were asked for"
        if wrong:
            raise SimulationError(f"{output.request_id}/{output.branch}: {wrong}")
        self.delivered[output.branch] += output.token_ids
        self.hidden = self.hidden or output.hidden
        self.scores = self.scores or output.prompt_logprobs
        if output.finish_reason is not None:
            self.ended[output.branch] = output.finish_reason

    def verify(self, branch: int, info: RunnerInfo) -> None:
        """An ended branch delivered what the request alone gives, or a prefix if it was cut."""
        got = self.delivered[branch]
        natural = self.ended[branch] in (FinishReason.STOP, FinishReason.LENGTH)
        whole = natural and branch not in self.stopped
        if not whole and not got:
            return
        request, sampling = self.request, self.request.sampling
        eos = () if sampling.ignore_eos else request.eos_token_ids
        stop_ids = frozenset((*eos, *sampling.stop_token_ids))
        state = SlotState(
            slot=0,
            branch=branch,
            seed=sampling.seed or 0,
            sampling=sampling,
            num_prompt_tokens=len(request.prompt_token_ids),
            token_ids=request.prompt_token_ids,
            banned_token_ids=tuple(sorted(stop_ids)) if sampling.min_tokens else (),
            banned_until=sampling.min_tokens,
            probe=request.probe,
            num_candidates=2 * sampling.width + (len(stop_ids) if sampling.min_tokens else 0),
        )
        self._verify_told(state, info)
        limit = self.limit if whole else len(got)
        probe = request.probe
        if probe is not None and probe.labels:
            limit = min(limit, len(probe.labels[branch]))
        if sampling.use_beam_search:
            found = run_beam_alone(state, info, stop_ids=stop_ids, limit=limit)
            alone = list(found[branch].token_ids)
        else:
            grammar = None
            if sampling.grammar is not None:
                grammar = ToyState.of(sampling.grammar, vocab_size=info.vocab_size)
            alone = run_alone(state, info, stop_ids=stop_ids, limit=limit, grammar=grammar)
        if got != alone:
            raise SimulationError(
                f"{request.request_id}/{branch} answered {got}, alone it answers {alone}"
            )

    def _verify_told(self, state: SlotState, info: RunnerInfo) -> None:
        """What was told of the prompt, held against what it is without any engine."""
        prompt = state.token_ids
        windows = [group.window for group in info.groups]
        asks_state = state.probe is not None and state.probe.hidden
        if asks_state and self.hidden != hidden_state(visible(prompt, windows)):
            raise SimulationError(f"{self.request.request_id} was told another state")
        if state.sampling.prompt_logprobs is not None:
            alone = [
                score(state, visible(prompt[:at], windows), prompt[at], vocab_size=info.vocab_size)
                for at in range(1, len(prompt))
            ]
            if list(self.scores) != alone:
                raise SimulationError(f"{self.request.request_id} was told other prompt_logprobs")
