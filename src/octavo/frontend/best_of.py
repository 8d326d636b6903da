"""The best ``n`` of ``best_of`` branches: what the answer is, is known when all have ended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from octavo.core.sampling_params import SamplingParams
from octavo.frontend.outputs import BranchDelta, merge_deltas


class BestOf:
    """Holds a request's deltas back, then gives the best branches, renumbered from 0."""

    def __init__(self, sampling: SamplingParams) -> None:
        self._n = sampling.n
        self._shows_logprobs = sampling.logprobs is not None
        self._held: list[BranchDelta] = []

    def take(self, deltas: Iterable[BranchDelta], *, ended: bool) -> list[BranchDelta]:
        """Hold ``deltas``; the answer once every branch has ``ended``, nothing before.

        Branches stand by mean logprob of their tokens, ties by number.
        """
        self._held += deltas
        if not ended:
            return []
        merged = merge_deltas(self._held)
        # They came with some branch, and belong to the answer.
        scores = next((delta.prompt_logprobs for delta in merged if delta.prompt_logprobs), ())
        ranked = sorted(merged, key=lambda delta: (-mean_logprob(delta), delta.branch))
        return [
            replace(
                delta,
                branch=rank,
                logprobs=delta.logprobs if self._shows_logprobs else (),
                prompt_logprobs=() if rank else scores,
            )
            for rank, delta in enumerate(ranked[: self._n])
        ]


def mean_logprob(delta: BranchDelta) -> float:
    """Mean logprob per token of a branch, in double precision; -inf when it has no token."""
    if not delta.logprobs:
        return float("-inf")
    return sum(entry.logprob for entry in delta.logprobs) / len(delta.logprobs)
