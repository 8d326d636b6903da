"""Covering arrays: few rows in which every pair of values of two factors occurs somewhere.

    rows = covering_rows({"n": ("1", "3"), "seed": ("no", "yes"), …}, incompatible)

Greedy and deterministic: each row begins with a pair that no row has yet, and every further factor
takes the value that adds most pairs to those before it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from itertools import combinations
from random import Random

Factors = Mapping[str, tuple[str, ...]]
Setting = tuple[str, str]
Pair = frozenset[Setting]
Row = dict[str, str]


def pairs_of(factors: Factors) -> Iterator[Pair]:
    """Every pair of values of two factors."""
    for (one, ones), (other, others) in combinations(factors.items(), 2):
        for mine in ones:
            for theirs in others:
                yield frozenset({(one, mine), (other, theirs)})


def pairs_in(row: Row) -> set[Pair]:
    """The pairs that a row has."""
    return set(map(frozenset, combinations(row.items(), 2)))


def covering_rows(factors: Factors, incompatible: Set[Pair], *, seed: int = 0) -> list[Row]:
    """Rows with a value of each factor, no incompatible pair, and every other pair.

    ``seed`` changes which of equally good rows are found. The first value of a factor must be
    compatible with everything: it stands in where nothing else does.
    """
    rng = Random(seed)
    missing = [pair for pair in pairs_of(factors) if pair not in incompatible]
    rng.shuffle(missing)
    uncovered = dict.fromkeys(missing)
    rows = []
    while uncovered:
        row = _fill(dict(sorted(next(iter(uncovered)))), factors, incompatible, uncovered, rng)
        for pair in pairs_in(row):
            uncovered.pop(pair, None)
        rows.append({name: row[name] for name in factors})
    return rows


def _fill(
    row: Row,
    factors: Factors,
    incompatible: Set[Pair],
    uncovered: Collection[Pair],
    rng: Random,
) -> Row:
    for name in rng.sample(list(factors), len(factors)):
        if name in row:
            continue
        fitting = [
            value for value in factors[name]
            if not {frozenset({(name, value), has}) for has in row.items()} & incompatible
        ]  # fmt: skip
        row[name] = max(fitting, key=lambda value: _gain((name, value), row.items(), uncovered))
    return row


def _gain(setting: Setting, row: Iterable[Setting], uncovered: Collection[Pair]) -> int:
    return sum(frozenset({setting, has}) in uncovered for has in row)
