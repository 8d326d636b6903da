"""Reads Prometheus exposition text: what a server tells of itself, where it tells anything."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_LINE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Sample:
    """One line."""

    name: str
    labels: Mapping[str, str]
    value: float


class Exposition:
    """One scrape."""

    def __init__(self, text: str) -> None:
        self.samples = [sample for line in text.splitlines() if (sample := _sample(line))]

    def total(self, name: str) -> float | None:
        """Sum over all label sets of a metric, None when it is not there."""
        values = [sample.value for sample in self.samples if sample.name == name]
        return sum(values) if values else None

    def by_label(self, name: str, label: str) -> dict[str, float]:
        """A metric's values by one label."""
        found: dict[str, float] = {}
        for sample in self.samples:
            if sample.name == name and label in sample.labels:
                key = sample.labels[label]
                found[key] = found.get(key, 0.0) + sample.value
        return found

    def labels(self, name: str) -> Mapping[str, str]:
        """The labels of the first sample of a metric, {} when it is not there."""
        return next((sample.labels for sample in self.samples if sample.name == name), {})


def grown(before: Exposition, after: Exposition, name: str) -> float | None:
    """How much a counter grew between two scrapes, None where the server has none."""
    first, last = before.total(name), after.total(name)
    return None if first is None or last is None else last - first


def histogram_quantiles(
    before: Exposition, after: Exposition, name: str, *, percents: Sequence[float]
) -> dict[float, float] | None:
    """Quantiles of what a histogram gained, linear within a bucket; None where it gained nothing.

    A quantile in the open last bucket reads as that bucket's lower bound.
    """
    bucket = f"{name}_bucket"
    first, last = before.by_label(bucket, "le"), after.by_label(bucket, "le")
    counts = sorted(
        (math.inf if bound == "+Inf" else float(bound), count - first.get(bound, 0.0))
        for bound, count in last.items()
    )
    if not counts or counts[-1][1] <= 0:
        return None
    return {percent: _quantile(counts, percent / 100 * counts[-1][1]) for percent in percents}


def _quantile(counts: Sequence[tuple[float, float]], rank: float) -> float:
    lower, below = 0.0, 0.0
    for bound, count in counts:
        if count >= rank and count > below:
            if math.isinf(bound):
                return lower
            return lower + (bound - lower) * (rank - below) / (count - below)
        lower, below = bound, count
    return lower


def _sample(line: str) -> Sample | None:
    match = _LINE.match(line)
    if match is None:
        return None
    try:
        value = float(match[3])
    except ValueError:
        return None
    return Sample(match[1], dict(_LABEL.findall(match[2] or "")), value)
