"""A histogram for what is observed once per token: a bisection and three additions.

The library's own takes a lock per bucket; these are only ever touched by the event loop's thread.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from math import inf

from prometheus_client.core import HistogramMetricFamily
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
