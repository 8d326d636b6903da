"""What a client of the engine receives: typed deltas, mergeable when the client is slow.

Made for every token, hence not frozen (see ``core.step``); nobody changes them all the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from octavo.core.request import FinishReason, TokenLogprobs


@dataclass(slots=True)
class Usage:
    """Token counts so far, over all branches. ``cached_tokens`` were read from the prefix cache.

    ``accepted_tokens`` and ``rejected_tokens`` count the drafts that were verified.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    accepted_tokens: int = 0
    rejected_tokens: int = 0


@dataclass(slots=True)
class BranchDelta:
    """What is new in one branch.

    ``text`` may lag behind ``token_ids`` (half a character, a possible stop string); with the
    finish it is complete. ``logprobs`` has one entry per token where they were asked for.
    ``stop_reason`` is the stop string or stop token id that ended the branch, where one did.
    ``hidden`` is the state that a probe asked for: float32 values, little-endian.
    ``prompt_logprobs`` come with the first delta of all, an entry per prompt token but the first.
    """

    branch: int
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None
    hidden: bytes = b""
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()

    def followed_by(self, later: BranchDelta) -> BranchDelta:
        """This delta and the next one as one."""
        return replace(
            later,
            text=self.text + later.text,
            token_ids=self.token_ids + later.token_ids,
            logprobs=self.logprobs + later.logprobs,
            prompt_logprobs=self.prompt_logprobs or later.prompt_logprobs,
        )


@dataclass(slots=True)
class RequestOutput:
    """New deltas of one request (at most one per branch) and the usage so far."""

    request_id: str
    branches: tuple[BranchDelta, ...]
    usage: Usage
    finished: bool = False

    def followed_by(self, later: RequestOutput) -> RequestOutput:
        """This output and the next one as one."""
        return replace(later, branches=tuple(merge_deltas([*self.branches, *later.branches])))

    @property
    def error(self) -> str | None:
        """Why the request was dropped, if it was."""
        return next((delta.error for delta in self.branches if delta.error is not None), None)


def merge_deltas(deltas: Iterable[BranchDelta]) -> list[BranchDelta]:
    """One delta per branch, in order of first appearance."""
    merged: dict[int, BranchDelta] = {}
    for delta in deltas:
        earlier = merged.get(delta.branch)
        merged[delta.branch] = earlier.followed_by(delta) if earlier else delta
    return list(merged.values())
