"""The values that cross from the shell into the engine and back: requests, events, outputs.

They are plain dataclasses of plain values, so that a journal can store them, a socket can carry
them and a test can write them by hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from octavo.core.grammar import GrammarReady
from octavo.core.probe import Probe
from octavo.core.sampling_params import SamplingParams
from octavo.errors import InvalidRequestError

# Of one tenant's requests: -1 before the others, 0 like the others, 1 after the others.
PRIORITIES = (-1, 0, 1)


class FinishReason(StrEnum):
    """Why a branch ended. ABORT and ERROR never reach a client as a normal stop (P5)."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a user asked: one prompt, ``sampling.n`` branches.

    ``sampling.seed`` and ``sampling.max_tokens`` are set by the frontend before a request is
    journaled, so that a replay is the same request. Of one tenant's requests, a lower ``priority``
    is served earlier. ``tenant`` is who is served (fairness, accounting); ``domain`` is the
    security domain of its prefix cache; both are part of its identity. ``arrival_time`` and
    ``deadline`` are seconds on the engine's clock. With a ``probe``, ``sampling`` is the probe's.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    eos_token_ids: tuple[int, ...] = ()
    tenant: str = "default"
    domain: str = ""
    adapter: str = ""
    arrival_time: float = 0.0
    deadline: float | None = None
    priority: int = 0
    probe: Probe | None = None


def validate_priority(priority: object) -> None:
    """Check a priority.

    Raises:
        InvalidRequestError: naming the three that there are.
    """
    if type(priority) is not int or priority not in PRIORITIES:
        raise InvalidRequestError(
            "priority must be -1 (before your other requests), 0 or 1 (after them)",
            param="priority",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """Ask the engine to run ``request``.

    ``branch_tokens`` holds the tokens already delivered per branch: empty at first, filled when
    a frontend resubmits from its journal after a crash. ``finished_branches`` are not run again.
    """

    request: Request
    epoch: int = 0
    branch_tokens: tuple[tuple[int, ...], ...] = ()
    finished_branches: tuple[int, ...] = ()

    @property
    def resumes(self) -> bool:
        """Whether this continues an attempt that was accepted before; it is never turned away."""
        return bool(self.epoch or self.finished_branches or any(self.branch_tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort:
    """Cancel a request in any state. An unknown id is no error: it may just have ended."""

    request_id: str
    reason: str = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class StopBranch:
    """The frontend matched a stop string: end one branch; what it sampled since is discarded."""

    request_id: str
    branch: int


Event = Submit | Abort | StopBranch | GrammarReady


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities of the raw logits at one position.

    ``top`` holds (token id, logprob) by falling logprob, ties by id; it may omit the chosen one.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True)
class BranchOutput:
    """What one step adds to one branch. Never changed once made (not frozen, nor by
    keyword alone: see ``core.step``).

    ``position`` is the index of the first of ``token_ids`` in the branch's *output* (0-based), so
    that a duplicate is recognised. ``num_cached_tokens`` is how many prompt tokens the request's
    first attempt read from the prefix cache; an attempt that resumes on an engine which does not
    know the first says 0, so that usage is never counted twice. ``error`` says why a branch was
    dropped (finish reason ERROR or ABORT), ``error_param`` names the field at fault, if one is, and
    ``error_code`` is the code of its class in ``octavo.errors`` ("cancelled" for an abort). The
    last of ``token_ids`` may be the one that ended the branch: ``stop_token_id`` names it.
    ``num_accepted`` of the step's ``num_drafts`` draft tokens are among ``token_ids``. ``hidden``
    is the state that a probe asked for: float32 values, little-endian. ``prompt_logprobs`` come
    with the first token of all, one entry per token of the prompt but its first.
    """

    request_id: str
    branch: int
    epoch: int
    position: int
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    num_cached_tokens: int = 0
    num_drafts: int = 0
    num_accepted: int = 0
    error: str | None = None
    error_code: str | None = None
    error_param: str | None = None
    hidden: bytes = b""
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


# (request id, branch, epoch, cached tokens): what stays the same in the outputs of a branch.
Lane = tuple[str, int, int, int]


@dataclass(slots=True)
class TokenRun:
    """One token more for each of several branches, which says all: a step of nothing but decodes.

    ``lanes`` is the same object as long as the same branches get one; ``positions`` and
    ``token_ids`` have an entry for each (see ``BranchOutput``).
    """

    lanes: tuple[Lane, ...]
    positions: list[int]
    token_ids: list[int]

    def outputs(self) -> list[BranchOutput]:
        """The same as an output per branch."""
        rows = zip(self.lanes, self.positions, self.token_ids, strict=True)
        return [
            BranchOutput(*lane[:3], at, (token,), num_cached_tokens=lane[3])
            for lane, at, token in rows
        ]
