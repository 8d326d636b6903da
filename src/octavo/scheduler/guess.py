"""What one sequence was proposed last, and how well its proposals have fared."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.scheduler.lookup import Lookup

SURE = 1 << 10
_WEIGHT = 8
_RECOVERY = 64


class Guess:
    """``chance`` / SURE estimates that the next draft is right: a moving average, 1/2 at first."""

    __slots__ = ("chance", "drafts", "lookup", "position")

    def __init__(self, tokens: Sequence[int]) -> None:
        self.chance = SURE // 2
        self.lookup = Lookup(len(tokens))
        self.drafts: list[int] = []
        self.position = len(tokens)

    def learn(self, tokens: Sequence[int]) -> None:
        """Compare the drafts with the tokens that came in their place, and forget them.

        Only up to the first that differs, and whether or not a step has verified them.
        """
        for draft, token in zip(self.drafts, tokens[self.position :], strict=False):
            self.chance += ((SURE if draft == token else 0) - self.chance) // _WEIGHT
            if draft != token:
                break
        self.drafts = []
        self.position = len(tokens)

    def recover(self, num_drafts: int) -> None:
        """Where no draft is made none can be right: give the drafter another chance in time."""
        if not num_drafts:
            self.chance += (SURE - self.chance) // _RECOVERY
