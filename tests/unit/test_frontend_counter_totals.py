from __future__ import annotations

import random

from octavo.frontend.counter_totals import CounterTotals


def twin(snapshots: list[tuple[int, dict[str, int]]]) -> dict[str, int]:
    """The last snapshot of each epoch, added up."""
    last = dict(snapshots)
    names = {name for counters in last.values() for name in counters}
    return {name: sum(counters.get(name, 0) for counters in last.values()) for name in names}


def test_totals_are_the_sum_over_engines_and_never_fall() -> None:
    rng = random.Random(5)
    totals, seen = CounterTotals(), []
    assert totals.totals() == {}
    before: dict[str, int] = {}
    for epoch in (7, 3, 9):
        counters = {"steps": 0, "tokens": 0} if epoch != 9 else {"steps": 0, "late": 1}
        for _ in range(20):
            counters = {name: value + rng.randrange(3) for name, value in counters.items()}
            seen.append((epoch, counters))
            totals.note(epoch, counters)
            now = totals.totals()
            assert now == twin(seen)
            assert all(now[name] >= value for name, value in before.items())
            before = now
    assert before["steps"] > seen[-1][1]["steps"]
