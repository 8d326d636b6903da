"""Drafts by somebody who knows the answer, and is wrong exactly where a test wants it."""

from __future__ import annotations

from collections.abc import Callable

from octavo.core.runner import RunnerInfo
from octavo.scheduler import Sequence
from octavo.scheduler.guess import SURE, Guess
from octavo.testing.fake_runner import foresee

AHEAD = 8


class _Foresight:
    """What the fake runner will say behind each sequence, found out a few tokens at a time."""

    def __init__(self, info: RunnerInfo) -> None:
        self._info = info
        self._known: dict[Sequence, list[int]] = {}

    def next_tokens(self, seq: Sequence, limit: int) -> list[int]:
        """The ``limit`` tokens that follow, fewer where a grammar ends."""
        if seq.grammar is not None:
            state = seq.slot_state()
            return foresee(state, self._info, limit=limit, wrong=limit, grammar=seq.grammar)
        output, at = seq.token_ids[seq.num_prompt :], seq.num_output
        known = self._known.get(seq, [])
        if known[:at] != output or len(known) < at + limit:
            count = limit + AHEAD
            found = foresee(seq.slot_state(), self._info, limit=count, wrong=count)
            known = self._known[seq] = output + found
        return known[at : at + limit]


def clairvoyant(
    info: RunnerInfo, first_wrong: Callable[[], int]
) -> Callable[[Guess, Sequence, int], list[int]]:
    """A proposer for the fake runner's tokens; its draft number ``first_wrong()`` is wrong.

    It claims to be nearly always right, so that all it proposes is verified.
    """

    foresight = _Foresight(info)

    def propose(guess: Guess, seq: Sequence, limit: int) -> list[int]:
        guess.chance = SURE - 1
        wrong, drafts = first_wrong(), foresight.next_tokens(seq, limit)
        if wrong < len(drafts):
            drafts[wrong] = (drafts[wrong] + 1) % info.vocab_size
        return drafts

    return propose


def clairvoyant_tree(
    info: RunnerInfo, first_wrong: Callable[[], int], *, num_paths: int = 3
) -> Callable[[Guess, Sequence, int], list[int]]:
    """As ``clairvoyant``, but each of ``num_paths`` paths has a wrong draft of its own.

    It claims that paths beside the first are nearly always right where that one is wrong. With
    ``step_cost`` high enough all of them are verified.
    """

    foresight = _Foresight(info)

    def propose(guess: Guess, seq: Sequence, limit: int) -> list[int]:
        guess.chance, guess.detour = 3 * SURE // 4, SURE - 1
        right = foresight.next_tokens(seq, limit)
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
