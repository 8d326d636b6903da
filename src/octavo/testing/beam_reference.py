"""Beam search by full recomputation: the slow, obvious twin of the engine's.

It follows Hugging Face's ``generate``: a beam offers its 2 · width likeliest tokens, the 2 · width
best of all offers are looked at in order (ties by beam, then by token id), those that end a
sequence become hypotheses if they stand among the first ``width``, the first ``width`` others
go on. A hypothesis scores Σ logprob / length ** length_penalty, the length counted over generated
tokens, the one that ended it included.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

Continuations = Callable[[tuple[int, ...]], Sequence[tuple[int, float]]]
"""Output tokens so far → (token id, logprob) of what may follow, likeliest first, ties by id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamTask:
    """What is searched for. ``stop_ids`` end a sequence, but not among its ``min_tokens``."""

    width: int
    max_tokens: int
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    min_tokens: int = 0
    stop_ids: Collection[int] = ()


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A finished sequence: output tokens and score."""

    token_ids: tuple[int, ...]
    score: float


def beam_search(continuations: Continuations, task: BeamTask) -> list[Hypothesis]:
    """The finished sequences, at most ``width``, best first."""
    beams: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    done: list[Hypothesis] = []
    length = 0
    while not _is_over(task, beams, done, length=length):
        offers = []
        for beam, (tokens, total) in enumerate(beams):
            allowed = [
                (token, logprob)
                for token, logprob in continuations(tokens)
                if length >= task.min_tokens or token not in task.stop_ids
            ]
            offers += [(total + lp, beam, token) for token, lp in allowed[: 2 * task.width]]
        offers.sort(key=lambda offer: (-offer[0], offer[1], offer[2]))
        length += 1
        grown = []
        for place, (total, beam, token) in enumerate(offers[: 2 * task.width]):
            tokens = (*beams[beam][0], token)
            if token not in task.stop_ids and length < task.max_tokens:
                grown.append((tokens, total))
            elif place < task.width:
                done.append(Hypothesis(tokens, total / math.pow(length, task.length_penalty)))
        beams = grown[: task.width]
        done = sorted(done, key=lambda each: -each.score)[: task.width]
    return done


def _is_over(
    task: BeamTask,
    beams: Sequence[tuple[tuple[int, ...], float]],
    done: Sequence[Hypothesis],
    *,
    length: int,
) -> bool:
    """Whether nothing can go on, or nothing that goes on is expected to beat what is done.

    Expected is what the best beam would score at its length now, or, if early stopping is "never"
    and longer is better, at the greatest length.
    """
    if not beams:
        return True
    if len(done) < task.width:
        return False
    if task.early_stopping is True:
        return True
    longest = task.early_stopping == "never" and task.length_penalty > 0
    reach = task.max_tokens if longest else length
    return done[-1].score >= beams[0][1] / math.pow(reach, task.length_penalty)
