"""The per-token histogram says what the library's own would say."""

from __future__ import annotations

import random

from prometheus_client import CollectorRegistry, Histogram

from octavo.server.histogram import TokenHistogram

BOUNDS = (0.001, 0.01, 0.1, 1)


def test_it_counts_like_the_library() -> None:
    mine, theirs = CollectorRegistry(), CollectorRegistry()
    histogram = TokenHistogram("h", model="m", bounds=BOUNDS)
    mine.register(histogram)
    slow = Histogram("h", "", ["model_name"], buckets=BOUNDS, registry=theirs).labels("m")
    rng = random.Random(0)
    for _ in range(300):
        value = rng.choice((*BOUNDS, 0.0, 2.0, rng.random()))
        count = rng.randint(1, 3)
        histogram.observe(value, count)
        for _ in range(count):
            slow.observe(value)
    for le in ("0.001", "0.01", "0.1", "1.0", "+Inf"):
        labels = {"model_name": "m", "le": le}
        found = mine.get_sample_value("h_bucket", labels)
        assert found == theirs.get_sample_value("h_bucket", labels)
        assert found
    labels = {"model_name": "m"}
    assert mine.get_sample_value("h_count", labels) == theirs.get_sample_value("h_count", labels)
    left, right = (registry.get_sample_value("h_sum", labels) for registry in (mine, theirs))
    assert left is not None
    assert right is not None
    assert abs(left - right) < 1e-9
