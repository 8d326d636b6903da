"""What a frontend keeps of each request in a simulation, and holds every output against."""

from __future__ import annotations

from octavo.core.request import BranchOutput, FinishReason, Request, Submit
from octavo.core.runner import RunnerInfo
from octavo.core.step import SlotState
from octavo.errors import OverloadedError
from octavo.testing.fake_runner import hidden_state, run_alone, run_beam_alone, visible


class SimulationError(Exception):
    """Something that must never happen, happened."""


class JournalEntry:
    """One request: what was delivered per branch, and how branches ended.

    ``limit`` is the most output tokens a branch may have; where the request leaves it open, what
    the engine fitted to its pool. ``hidden`` is what its probe was told.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        self.epoch = 0
        self.delivered: list[list[int]] = [[] for _ in range(request.sampling.num_branches)]
        self.ended: dict[int, FinishReason] = {}
        self.stopped: set[int] = set()
        self.limit = request.sampling.max_tokens or 1
        self.hidden = b""

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
        where = f"{output.request_id}/{output.branch}"
        if output.error_code == OverloadedError.code and self.epoch:
            raise SimulationError(f"{where}: a continuation is refused: {output.error}")
        if output.branch in self.ended:
            raise SimulationError(f"{where}: output after its end")
        if output.position != len(self.delivered[output.branch]) or output.epoch != self.epoch:
            raise SimulationError(f"{where}: position {output.position} epoch {output.epoch}")
        self.delivered[output.branch] += output.token_ids
        self.hidden = self.hidden or output.hidden
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
        limit = self.limit if whole else len(got)
        probe = request.probe
        if probe is not None and probe.labels:
            limit = min(limit, len(probe.labels[branch]))
        elif probe is not None and self.hidden != self._hidden_alone(info):
            raise SimulationError(f"{request.request_id} was told another state than it has alone")
        if sampling.use_beam_search:
            found = run_beam_alone(state, info, stop_ids=stop_ids, limit=limit)
            alone = list(found[branch].token_ids)
        else:
            alone = run_alone(state, info, stop_ids=stop_ids, limit=limit)
        if got != alone:
            raise SimulationError(
                f"{request.request_id}/{branch} answered {got}, alone it answers {alone}"
            )

    def _hidden_alone(self, info: RunnerInfo) -> bytes:
        """The state of the prompt's last token, without any engine."""
        windows = [group.window for group in info.groups]
        return hidden_state(visible(self.request.prompt_token_ids, windows))
