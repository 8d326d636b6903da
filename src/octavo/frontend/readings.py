"""What probes are made into: embeddings, similarities, scored labels.

The embedding of a text is the served model's final hidden state (after the last norm) of the text's
last token, scaled to length 1. A causal model's last token is the only one that has seen the whole
text; and it is what a prefix hit, a chunk or a preemption leaves as it is, bit for bit.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from octavo.frontend.outputs import BranchDelta, RequestOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelScore:
    """One label after a question.

    ``logprob`` is the natural logarithm of the probability of the label's tokens, all of them, at
    temperature 1. ``probability`` is its share among the question's labels: exp(logprob), scaled to
    sum to 1 over them.
    """

    label: str
    logprob: float
    probability: float
    token_ids: tuple[int, ...]


@dataclass(slots=True)
class Reading:
    """What a probe's request has given so far, by branch."""

    branches: dict[int, BranchDelta] = field(default_factory=dict)
    cached_tokens: int = 0

    def add(self, output: RequestOutput) -> None:
        """Take an output in."""
        self.cached_tokens = output.usage.cached_tokens
        for delta in output.branches:
            held = self.branches.get(delta.branch)
            self.branches[delta.branch] = held.followed_by(delta) if held else delta

    def embedding(self, dimensions: int | None = None) -> array[float]:
        """The hidden state as a unit vector of float32 [H], or of its first ``dimensions``."""
        state = array("f", self.branches[0].hidden)
        if sys.byteorder == "big":
            state.byteswap()
        return _unit(state[:dimensions])

    def label_scores(self, labels: Sequence[str]) -> list[LabelScore]:
        """Every label's score, in the order of the branches."""
        deltas = [self.branches[branch] for branch in range(len(labels))]
        sums = [math.fsum(entry.logprob for entry in delta.logprobs) for delta in deltas]
        highest = max(sums)
        weights = [math.exp(value - highest) for value in sums]
        total = math.fsum(weights)
        return [
            LabelScore(
                label=label, logprob=value, probability=weight / total, token_ids=delta.token_ids
            )
            for label, value, weight, delta in zip(labels, sums, weights, deltas, strict=True)
        ]


def _unit(values: Iterable[float]) -> array[float]:
    held = array("d", values)
    length = math.sqrt(math.fsum(value * value for value in held)) or 1.0
    return array("f", [value / length for value in held])


def similarity(first: Sequence[float], second: Sequence[float]) -> float:
    """The cosine of two unit vectors, -1 to 1."""
    return math.fsum(a * b for a, b in zip(first, second, strict=True))
