"""How much growth a sequence is promised when it is admitted: three policies, one interface.

reserve      all of it: nothing admitted is ever preempted for want of blocks
estimate     what outputs of its tenant and class have been measured to need, plus a margin (the
             default); requests whose output limits have the same number of bits are a class
optimistic   nothing beyond the tokens known now; preemption pays for optimism

``reserve`` is exact for full attention, and for windows where nothing is shared. Where sequences
share blocks in a windowed group (prefixes, branches), or a reader leases them, a block that slides
out of one window may still be in another's: it is missing although its holder was promised the
next one, so promises can be shed and, at worst, a sequence is preempted and recomputed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from octavo.errors import ConfigError

POLICIES = ("reserve", "estimate", "optimistic")


class AdmissionPolicy(Protocol):
    """Decides promises, and learns from what outputs really needed."""

    promises_branches: bool

    def output_tokens(self, tenant: str, max_output: int) -> int:
        """Output tokens to promise a branch of ``tenant`` that may have at most ``max_output``."""

    def observe(self, tenant: str, max_output: int, num_output: int) -> None:
        """A branch of ``tenant`` that might have had ``max_output`` tokens had ``num_output``."""


class Reserve:
    """Promise the worst case."""

    promises_branches = True

    def output_tokens(self, tenant: str, max_output: int) -> int:
        """All that the branch may ever need."""
        return max_output

    def observe(self, tenant: str, max_output: int, num_output: int) -> None:
        """The worst case does not depend on what happened."""


class Optimistic:
    """Promise nothing."""

    promises_branches = False

    def output_tokens(self, tenant: str, max_output: int) -> int:
        """Only the token that the prompt's last row samples, whose KV is not written yet."""
        return min(1, max_output)

    def observe(self, tenant: str, max_output: int, num_output: int) -> None:
        """Optimism does not learn."""


@dataclass(slots=True)
class _Average:
    """Running mean and mean deviation of output lengths, scaled by 8 and by 4.

    Exponential averages with weight 1/8 and 1/4, the classic estimator of round-trip times
    (Jacobson, 1988); in integers, so that equal histories give equal plans.
    """

    mean8: int
    deviation4: int

    def bound(self) -> int:
        """Mean + 2 · deviation, in tokens."""
        return (self.mean8 >> 3) + (self.deviation4 >> 1) + 1

    def observe(self, num_output: int) -> None:
        """Move toward ``num_output``."""
        error = num_output - (self.mean8 >> 3)
        self.mean8 += error
        self.deviation4 += abs(error) - (self.deviation4 >> 2)


class Estimate:
    """Promise what outputs alike have needed: of the tenant's class, else tenant, else all.

    A class that is new starts from what is known of its tenant, and a tenant from what is known
    of all. At most ``max_averages`` are kept; the one that learnt nothing for longest goes.
    """

    promises_branches = True
    first_guess = 128
    max_averages = 1024

    def __init__(self) -> None:
        self._all = _Average(8 * self.first_guess, self.first_guess)
        self._averages: dict[tuple[str, int], _Average] = {}

    def output_tokens(self, tenant: str, max_output: int) -> int:
        """Mean + 2 · deviation of what is most like it, at most ``max_output``."""
        known = self._averages
        average = known.get((tenant, max_output.bit_length())) or known.get((tenant, 0))
        return min(max_output, (average or self._all).bound())

    def observe(self, tenant: str, max_output: int, num_output: int) -> None:
        """Learn for all, for the tenant, and for its class."""
        nearest = self._all
        nearest.observe(num_output)
        for key in ((tenant, 0), (tenant, max_output.bit_length())):
            average = self._averages.pop(key, None)
            if average is None:
                average = replace(nearest)
            else:
                average.observe(num_output)
            self._averages[key] = nearest = average
        while len(self._averages) > self.max_averages:
            del self._averages[next(iter(self._averages))]


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
