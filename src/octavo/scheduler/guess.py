"""What one sequence was proposed last, and how well its proposals have fared."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.scheduler.lookup import Lookup

SURE = 1 << 10
_WEIGHT = 8
_RECOVERY = 64


class Guess:
    """``chance`` / SURE estimates that the next draft is right: a moving average, 1/2 at first.

    ``others`` are further paths that drafts may take. ``detour`` / SURE estimates that where the
    first path is wrong, one that parts from it there is right: 1/4 at first.
    """

    __slots__ = ("chance", "detour", "drafts", "lookup", "others", "position")

    def __init__(self, tokens: Sequence[int]) -> None:
        self.chance = SURE // 2
        self.lookup = Lookup(len(tokens))
        self.drafts: list[int] = []
        self.detour = SURE // 4
        self.others: list[list[int]] = []
        self.position = len(tokens)

    def learn(self, tokens: Sequence[int]) -> None:
        """Compare the drafts with the tokens that came in their place, and forget them.

        Only up to the first that differs, and whether or not a step has verified them.
        """
        for at, (draft, token) in enumerate(
            zip(self.drafts, tokens[self.position :], strict=False)
        ):
            self.chance += ((SURE if draft == token else 0) - self.chance) // _WEIGHT
            if draft != token:
                self._learn_detour(at, token)
                break
        self.drafts = []
        self.others = []
        self.position = len(tokens)

    def _learn_detour(self, at: int, token: int) -> None:
        """The first path was wrong at ``at``: was one that parts from it there right?"""
        there = [
            path[at]
            for path in self.others
            if path[:at] == self.drafts[:at] and path[at : at + 1] != self.drafts[at : at + 1]
        ]
        if there:
            self.detour += ((SURE if token in there else 0) - self.detour) // _WEIGHT

    def recover(self, num_drafts: int) -> None:
        """Where no draft is made none can be right: give the drafter another chance in time."""
        if not num_drafts:
            self.chance += (SURE - self.chance) // _RECOVERY
