"""What a frontend remembers so that a crash of the engine changes nothing.

Per request: the request itself (its seed drawn before anything runs), the numerics that it began
with, the attempt's epoch, and per branch the tokens that were delivered. A token is journaled
before it leaves. KV is a cache of this; replaying it gives the same continuation (P2).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from octavo.core.request import BranchOutput, Request, Submit
from octavo.errors import OverloadedError

MAX_JOURNAL_REQUESTS = 4096
MAX_JOURNAL_TOKENS = 8 << 20


class GapError(Exception):
    """Outputs were lost on the way: the branch must be replayed from the journal."""


class Numerics(NamedTuple):
    """What a continuation's bits depend on besides the request: how it is computed, and of what."""

    fingerprint: str = ""
    model_digest: str = ""


UNKNOWN_NUMERICS = Numerics()


@dataclass(slots=True)
class BranchRecord:
    """One branch: its delivered tokens and whether it ended."""

    token_ids: array[int] = field(default_factory=lambda: array("i"))
    finished: bool = False


@dataclass(slots=True)
class JournalEntry:
    """One request, the ``arrival``-th that came. ``epoch`` counts its attempts.

    ``blamed`` counts the engine deaths at which it ran alone; ``probation`` the tokens that it
    still has to give before it is trusted, of ``last_probation`` at the last death.
    """

    request: Request
    branches: list[BranchRecord]
    numerics: Numerics = UNKNOWN_NUMERICS
    arrival: int = 0
    epoch: int = 0
    blamed: int = 0
    probation: int = 0
    last_probation: int = 0

    @property
    def num_tokens(self) -> int:
        """Tokens held: prompt and outputs."""
        outputs = sum(len(branch.token_ids) for branch in self.branches)
        return len(self.request.prompt_token_ids) + outputs

    @property
    def finished(self) -> bool:
        """Whether every branch ended."""
        return all(branch.finished for branch in self.branches)

    def submission(self) -> Submit:
        """The message that starts or continues this attempt."""
        return Submit(
            request=self.request,
            epoch=self.epoch,
            branch_tokens=tuple(tuple(branch.token_ids) for branch in self.branches),
            finished_branches=tuple(
                index for index, branch in enumerate(self.branches) if branch.finished
            ),
        )


class Journal:
    """Owns the entries of all requests in flight; in memory, bounded in requests and tokens.

    ``max_tokens`` counts prompts and outputs together.
    """

    def __init__(
        self,
        *,
        draw_seed: Callable[[], int],
        max_requests: int = MAX_JOURNAL_REQUESTS,
        max_tokens: int = MAX_JOURNAL_TOKENS,
    ) -> None:
        self._draw_seed = draw_seed
        self.max_requests = max_requests
        self.max_tokens = max_tokens
        self._entries: dict[str, JournalEntry] = {}
        self._num_tokens = 0
        self._num_arrived = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def num_tokens(self) -> int:
        """Tokens held, prompts and outputs; 0 at idle."""
        return self._num_tokens

    def open(self, request: Request, numerics: Numerics = UNKNOWN_NUMERICS) -> JournalEntry:
        """Take a request in; a missing seed is drawn now. ``numerics`` are the engine's.

        Raises:
            OverloadedError: the journal is full.
        """
        assert request.request_id not in self._entries, "request ids are drawn by the frontend"
        size = len(request.prompt_token_ids)
        if len(self._entries) >= self.max_requests:
            raise OverloadedError(
                f"{len(self._entries)} requests are in flight, which is the limit; retry later"
            )
        self._check_room(size)
        if request.sampling.seed is None:
            sampling = replace(request.sampling, seed=self._draw_seed())
            request = replace(request, sampling=sampling)
        branches = [BranchRecord() for _ in range(request.sampling.num_branches)]
        self._num_arrived += 1
        entry = JournalEntry(request, branches, numerics, self._num_arrived)
        self._entries[request.request_id] = entry
        self._num_tokens += size
        return entry

    def _check_room(self, num_tokens: int) -> None:
        if self._num_tokens + num_tokens > self.max_tokens:
            raise OverloadedError(
                f"requests in flight hold {self._num_tokens} tokens; the limit is "
                f"{self.max_tokens}; retry later"
            )

    def get(self, request_id: str) -> JournalEntry | None:
        """The entry of a request in flight."""
        return self._entries.get(request_id)

    def accept(self, output: BranchOutput) -> BranchOutput | None:
        """What of ``output`` is new: None for a stale or repeated one, trimmed where it overlaps.

        Nothing is written; ``record`` does that.

        Raises:
            GapError: the output begins past what is journaled.
        """
        entry = self._entries.get(output.request_id)
        if entry is None or output.epoch != entry.epoch or output.branch >= len(entry.branches):
            return None
        branch = entry.branches[output.branch]
        if branch.finished:
            return None
        known = len(branch.token_ids)
        if output.position > known:
            raise GapError
        repeated = known - output.position
        if repeated == 0:
            return output
        if repeated >= len(output.token_ids) and output.finish_reason is None:
            return None
        return replace(
            output,
            position=known,
            token_ids=output.token_ids[repeated:],
            logprobs=output.logprobs[repeated:],
        )

    def record(self, request_id: str, branch: int, token_ids: tuple[int, ...]) -> None:
        """Append tokens that are about to leave.

        Raises:
            OverloadedError: the journal is full; nothing was appended.
        """
        self._check_room(len(token_ids))
        self._entries[request_id].branches[branch].token_ids.extend(token_ids)
        self._num_tokens += len(token_ids)

    def finish_branch(self, request_id: str, branch: int) -> bool:
        """Mark a branch as ended. Returns whether the request ended with it."""
        entry = self._entries[request_id]
        entry.branches[branch].finished = True
        return entry.finished

    def close(self, request_id: str) -> None:
        """Forget a request. Idempotent."""
        entry = self._entries.pop(request_id, None)
        if entry is not None:
            self._num_tokens -= entry.num_tokens
