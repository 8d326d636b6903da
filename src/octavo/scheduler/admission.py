"""How much growth a sequence is promised when it is admitted: three policies, one interface.

reserve      all of it: nothing admitted is ever preempted for want of blocks
estimate     what outputs have been measured to need, plus a margin (the default)
optimistic   nothing beyond the tokens known now; preemption pays for optimism

``reserve`` is exact for full attention, and for windows where nothing is shared. Where sequences
share blocks in a windowed group (prefixes, branches), or a reader leases them, a block that slides
out of one window may still be in another's: it is missing although its holder was promised the
next one, so promises can be shed and, at worst, a sequence is preempted and recomputed.
"""

from __future__ import annotations

from typing import Protocol

from octavo.errors import ConfigError

POLICIES = ("reserve", "estimate", "optimistic")


class AdmissionPolicy(Protocol):
    """Decides promises, and learns from what outputs really needed."""

    promises_branches: bool

    def output_tokens(self, max_output: int) -> int:
        """Output tokens to promise a branch that may have at most ``max_output``."""
        ...

    def observe(self, num_output: int) -> None:
        """A branch ended after ``num_output`` tokens."""
        ...


class Reserve:
    """Promise the worst case."""

    promises_branches = True

    def output_tokens(self, max_output: int) -> int:
        """All that the branch may ever need."""
        return max_output

    def observe(self, num_output: int) -> None:
        """The worst case does not depend on what happened."""


class Optimistic:
    """Promise nothing."""

    promises_branches = False

    def output_tokens(self, max_output: int) -> int:
        """Only the token that the prompt's last row samples, whose KV is not written yet."""
        return min(1, max_output)

    def observe(self, num_output: int) -> None:
        """Optimism does not learn."""


class Estimate:
    """Promise the running mean of output lengths plus two mean deviations.

    Both are exponential averages with weight 1/8 and 1/4, the classic estimator of round-trip
    times (Jacobson, 1988); in integers, so that equal histories give equal plans.
    """

    promises_branches = True
    first_guess = 128

    def __init__(self) -> None:
        # Scaled by 8 and by 4.
        self._mean8 = 8 * self.first_guess
        self._deviation4 = 4 * self.first_guess // 4

    def output_tokens(self, max_output: int) -> int:
        """Mean + 2 · deviation, at most ``max_output``."""
        return min(max_output, (self._mean8 >> 3) + (self._deviation4 >> 1) + 1)

    def observe(self, num_output: int) -> None:
        """Move the averages toward ``num_output``."""
        error = num_output - (self._mean8 >> 3)
        self._mean8 += error
        self._deviation4 += abs(error) - (self._deviation4 >> 2)


def admission_policy(name: str) -> AdmissionPolicy:
    """The policy called ``name``.

    Raises:
        ConfigError: no such policy.
    """
    if name == "reserve":
        return Reserve()
    if name == "estimate":
        return Estimate()
    if name == "optimistic":
        return Optimistic()
    raise ConfigError(f"unknown scheduler policy {name!r}; choose one of {', '.join(POLICIES)}")
