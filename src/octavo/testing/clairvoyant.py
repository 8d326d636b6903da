"""Drafts by somebody who knows the answer, and is wrong exactly where a test wants it."""

from __future__ import annotations

from collections.abc import Callable

from octavo.core.runner import RunnerInfo
from octavo.scheduler import Sequence
from octavo.scheduler.guess import SURE, Guess
from octavo.testing.fake_runner import foresee


def clairvoyant(
    info: RunnerInfo, first_wrong: Callable[[], int]
) -> Callable[[Guess, Sequence, int], list[int]]:
    """A proposer for the fake runner's tokens; its draft number ``first_wrong()`` is wrong.

    It claims to be nearly always right, so that all it proposes is verified.
    """

    def propose(guess: Guess, seq: Sequence, limit: int) -> list[int]:
        guess.chance = SURE - 1
        wrong, grammar = first_wrong(), seq.grammar
        return foresee(seq.slot_state(), info, limit=limit, wrong=wrong, grammar=grammar)

    return propose


def clairvoyant_tree(
    info: RunnerInfo, first_wrong: Callable[[], int], *, num_paths: int = 3
) -> Callable[[Guess, Sequence, int], list[int]]:
    """As ``clairvoyant``, but each of ``num_paths`` paths has a wrong draft of its own.

    It claims that paths beside the first are nearly always right where that one is wrong. With
    ``step_cost`` high enough all of them are verified.
    """

    def propose(guess: Guess, seq: Sequence, limit: int) -> list[int]:
        guess.chance, guess.detour = 3 * SURE // 4, SURE - 1
        state = seq.slot_state()
        right = foresee(state, info, limit=limit, wrong=limit, grammar=seq.grammar)
        paths: list[list[int]] = []
        for number in range(num_paths):
            path, wrong = list(right), first_wrong()
            if wrong < len(right):
                path[wrong] = (path[wrong] + 1 + number) % info.vocab_size
            if path not in paths:
                paths.append(path)
        guess.others = paths[1:]
        return paths[0]

    return propose
