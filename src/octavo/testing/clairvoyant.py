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
        state = seq.slot_state()
        return foresee(state, info, seq.token_ids, limit=limit, wrong=first_wrong())

    return propose
