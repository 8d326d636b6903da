"""What serving without pages does to KV memory: one contiguous piece per request, first come first.

A request is admitted when the allocator finds room for all that a rule reserves, and keeps it to
its end. The allocators are real ones: what cannot be used because it lies in pieces is measured,
not estimated.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from octavo.bench.virtual import KVUsage, StepTime
from octavo.bench.workload import PlannedRequest

Rule = Callable[[PlannedRequest, int], int]


def power_of_two(count: int) -> int:
    """The smallest power of two that is at least ``count``."""
    return 1 << (count - 1).bit_length()


# Slots reserved for a request, given the model's context. "power of two" knows the output's length
# up to a factor of two, "oracle" knows it.
RULES: dict[str, Rule] = {
    "maximum": lambda request, context: context,
    "power of two": lambda request, context: min(
        request.prompt_tokens + power_of_two(request.output_tokens), context
    ),
    "oracle": lambda request, context: request.prompt_tokens + request.output_tokens,
}


class Allocator(Protocol):
    """Hands out contiguous ranges of slots."""

    def allocate(self, count: int) -> tuple[int, int] | None:
        """(start, length ≥ ``count``) of a range, or None where no piece is large enough."""
        ...

    def free(self, start: int, length: int) -> None:
        """Take a range back."""
        ...


class FirstFit:
    """The lowest hole that is large enough; holes that touch become one."""

    def __init__(self, capacity: int) -> None:
        self.holes = [(0, capacity)]

    def allocate(self, count: int) -> tuple[int, int] | None:
        """See ``Allocator``."""
        for index, (start, length) in enumerate(self.holes):
            if length >= count:
                rest = [(start + count, length - count)] if length > count else []
                self.holes[index : index + 1] = rest
                return start, count
        return None

    def free(self, start: int, length: int) -> None:
        """See ``Allocator``."""
        insort(self.holes, (start, length))
        merged: list[tuple[int, int]] = []
        for hole in self.holes:
            if merged and sum(merged[-1]) == hole[0]:
                merged[-1] = (merged[-1][0], merged[-1][1] + hole[1])
            else:
                merged.append(hole)
        self.holes = merged


class Buddy:
    """Powers of two, halved until they just hold the request (Knowlton, 1965)."""

    def __init__(self, capacity: int) -> None:
        self._top = capacity.bit_length() - 1
        self._free: list[list[int]] = [[] for _ in range(self._top + 1)]
        self._free[self._top].append(0)

    def allocate(self, count: int) -> tuple[int, int] | None:
        """See ``Allocator``."""
        order = power_of_two(count).bit_length() - 1
        found = next((k for k in range(order, self._top + 1) if self._free[k]), None)
        if found is None:
            return None
        start = self._free[found].pop(0)
        for k in range(found - 1, order - 1, -1):
            insort(self._free[k], start + (1 << k))
        return start, 1 << order

    def free(self, start: int, length: int) -> None:
        """See ``Allocator``."""
        order = length.bit_length() - 1
        while order < self._top and (buddy := start ^ (1 << order)) in self._free[order]:
            self._free[order].remove(buddy)
            start = min(start, buddy)
            order += 1
        insort(self._free[order], start)


ALLOCATORS: dict[str, Callable[[int], Allocator]] = {"first fit": FirstFit, "buddy": Buddy}


@dataclass(slots=True)
class _Running:
    """``computed`` slots hold a token; ``piece`` is (start, length) of what it reserved."""

    request: PlannedRequest
    piece: tuple[int, int]
    computed: int = 0

    @property
    def final(self) -> int:
        """Tokens of prompt and output; the last one's KV is never written."""
        return self.request.prompt_tokens + self.request.output_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """How much is reserved, from what, and the limits of a step."""

    rule: Rule
    allocator: Callable[[int], Allocator]
    capacity: int
    context: int
    token_budget: int


def replay_contiguous(
    requests: Sequence[PlannedRequest], how: Reservation, step_time: StepTime
) -> KVUsage:
    """Run all requests with iteration-level batching; usage while somebody is refused."""
    pool, usage = how.allocator(how.capacity), KVUsage(how.capacity)
    waiting, running = deque(requests), list[_Running]()
    now = 0.0
    while waiting or running:
        if not running and waiting[0].at_s > now:
            now = waiting[0].at_s
        is_short = False
        while waiting and waiting[0].at_s <= now and not is_short:
            piece = pool.allocate(how.rule(waiting[0], how.context))
            is_short = piece is None
            if piece is not None:
                running.append(_Running(waiting.popleft(), piece))
        budget = how.token_budget
        for row in running:
            wanted = max(1, row.request.prompt_tokens - row.computed)
            count = min(wanted, budget)
            row.computed += count
            budget -= count
        seconds = step_time(how.token_budget - budget)
        now += seconds
        if is_short:
            _measure(usage, running, seconds)
        for row in [row for row in running if row.computed >= row.final - 1]:
            pool.free(*row.piece)
            running.remove(row)
    usage.seconds = now
    return usage


def _measure(usage: KVUsage, running: Sequence[_Running], seconds: float) -> None:
    tokens = sum(row.computed for row in running)
    final = sum(min(row.final, row.piece[1]) for row in running)
    reserved = sum(row.piece[1] for row in running)
    usage.add(
        seconds,
        tokens=tokens,
        later=final - tokens,
        internal=reserved - final,
        running=len(running),
    )
