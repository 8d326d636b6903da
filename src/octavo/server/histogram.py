"""A histogram and a counter for what is observed once per token: a bisection, a few additions.

The library's own take locks; these are only ever touched by the event loop's thread.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from math import inf

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector


class TokenHistogram(Collector):
    """Counts by upper ``bounds`` (inclusive, rising); rendered at scrape time."""

    def __init__(self, name: str, *, model: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._model = model
        self._bounds = (*bounds, inf)
        self._counts = [0] * len(self._bounds)
        self._sum = 0.0

    def observe(self, value: float, count: int) -> None:
        """Take ``count`` equal observations."""
        self._counts[bisect_left(self._bounds, value)] += count
        self._sum += value * count

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """See ``prometheus_client``."""
        family = HistogramMetricFamily(
            self._name, "measured at the frontend", labels=["model_name"]
        )
        total, buckets = 0, []
        for bound, count in zip(self._bounds, self._counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == inf else str(float(bound)), total))
        family.add_metric([self._model], buckets=buckets, sum_value=self._sum)
        yield family


class TokenCounter(Collector):
    """A sum that is added to by ``value += …``; rendered at scrape time."""

    def __init__(self, name: str, *, model: str) -> None:
        self._name = name
        self._model = model
        self.value = 0

    def collect(self) -> Iterator[CounterMetricFamily]:
        """See ``prometheus_client``."""
        family = CounterMetricFamily(self._name, "counted at the frontend", labels=["model_name"])
        family.add_metric([self._model], self.value)
        yield family
