"""``/metrics``: the engine's last snapshot and what the frontend measures, under two naming sets.

Names beginning ``octavo_`` are ours; ``vllm:`` repeats those that dashboards already know.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from octavo.core.request import Request
from octavo.frontend import AsyncEngineClient, RequestOutput

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 5)
_KV_BYTES = "kv_bytes_"

# Engine counter → the name that other engines use for it.
_ALIASES = {
    "preemptions": "vllm:num_preemptions",
    "prefix_query_tokens": "vllm:prefix_cache_queries",
    "prefix_hit_tokens": "vllm:prefix_cache_hits",
    "cow_copies": "octavo_cow_copies",
    "recomputed_tokens": "octavo_recomputed_tokens",
}


class EngineCollector(Collector):
    """Turns the newest ``Stats`` into metric families at scrape time."""

    def __init__(
        self, client: AsyncEngineClient, model: str, draining: Callable[[], float]
    ) -> None:
        self._client = client
        self._model = model
        self._draining = draining

    def collect(self) -> Iterator[Metric]:
        """See ``prometheus_client``."""
        yield self._gauge("octavo_ready", "1 when new work is taken", float(self._client.ready))
        yield self._gauge("octavo_draining", "1 while shutting down", self._draining())
        yield self._gauge(
            "octavo_requests_in_flight", "requests known to the frontend", self._client.num_active
        )
        yield self._counter(
            "octavo_engine_restarts", "engine deaths survived", self._client.engine_restarts
        )
        yield from self._snapshot()
        yield from self._facts()

    def _snapshot(self) -> Iterator[Metric]:
        stats = self._client.stats
        if stats is None:
            return
        for prefix in ("octavo_", "vllm:"):
            yield self._gauge(f"{prefix}num_requests_running", "in the batch", stats.num_running)
            yield self._gauge(f"{prefix}num_requests_waiting", "in the queue", stats.num_waiting)
        kv_bytes = GaugeMetricFamily(
            "octavo_kv_bytes", "bytes of the KV pool by state", labels=["model_name", "state"]
        )
        for name, value in stats.gauges.items():
            if name.startswith(_KV_BYTES):
                kv_bytes.add_metric([self._model, name.removeprefix(_KV_BYTES)], value)
            elif name == "kv_usage":
                yield self._gauge("vllm:kv_cache_usage_perc", "share of the pool in use", value)
            else:
                yield self._gauge(f"octavo_{name}", "engine gauge", value)
        yield kv_bytes
        for name, value in stats.counters.items():
            yield self._counter(f"octavo_engine_{name}", "engine counter", value)
            if name in _ALIASES:
                yield self._counter(_ALIASES[name], "engine counter", value)

    def _facts(self) -> Iterator[Metric]:
        welcome = self._client.welcome
        if welcome is not None:
            info = GaugeMetricFamily(
                "vllm:cache_config_info",
                "the KV pool's shape",
                labels=["model_name", "block_size", "num_gpu_blocks", "kv_bytes", "fingerprint"],
            )
            shape = (
                welcome.block_size,
                welcome.num_blocks,
                welcome.kv_pool_bytes,
                welcome.fingerprint,
            )
            info.add_metric([self._model, *map(str, shape)], 1)
            yield info

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=["model_name"])
        family.add_metric([self._model], value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(name, text, labels=["model_name"])
        family.add_metric([self._model], value)
        return family


class Metrics:
    """Owns the registry; one per API process."""

    def __init__(
        self,
        client: AsyncEngineClient,
        *,
        model: str,
        is_draining: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self._registry = CollectorRegistry()
        self._registry.register(EngineCollector(client, model, lambda: float(is_draining())))
        self._labels = {"model_name": model}
        self.first_token = self._histogram("time_to_first_token_seconds", _SECONDS)
        self.inter_token = self._histogram("inter_token_latency_seconds", _TOKEN_SECONDS)
        self.latency = self._histogram("e2e_request_latency_seconds", _SECONDS)
        self.prompt_tokens = self._tokens("prompt_tokens")
        self.generation_tokens = self._tokens("generation_tokens")
        self._finished = Counter(
            "vllm:request_success",
            "finished choices by reason",
            ["model_name", "finished_reason"],
            registry=self._registry,
        )

    def _histogram(self, name: str, buckets: tuple[float, ...]) -> Histogram:
        family = Histogram(
            f"vllm:{name}", "measured at the frontend", ["model_name"], buckets=buckets,
            registry=self._registry,
        )  # fmt: skip
        return family.labels(**self._labels)

    def _tokens(self, name: str) -> Counter:
        family = Counter(
            f"vllm:{name}", "counted at the frontend", ["model_name"], registry=self._registry
        )
        return family.labels(**self._labels)

    def finished(self, reason: str) -> None:
        """Count an ended choice."""
        self._finished.labels(**self._labels, finished_reason=reason).inc()

    def watch(self, request: Request) -> RequestWatch:
        """Begin to measure a request."""
        return RequestWatch(self, request)

    def render(self) -> bytes:
        """The exposition text."""
        return generate_latest(self._registry)


class RequestWatch:
    """Measures one request from its arrival."""

    def __init__(self, metrics: Metrics, request: Request) -> None:
        self._metrics = metrics
        self._request = request
        self._last: float | None = None
        self._tokens = 0
        self._finished = False

    def observe(self, output: RequestOutput) -> None:
        """An output is about to leave."""
        metrics, now = self._metrics, self._metrics.clock()
        new_tokens = output.usage.completion_tokens - self._tokens
        self._tokens = output.usage.completion_tokens
        if self._last is None:
            metrics.first_token.observe(now - self._request.arrival_time)
            metrics.prompt_tokens.inc(output.usage.prompt_tokens)
        elif new_tokens:
            metrics.inter_token.observe((now - self._last) / new_tokens)
        metrics.generation_tokens.inc(new_tokens)
        self._last = now
        for delta in output.branches:
            if delta.finish_reason is not None:
                metrics.finished(delta.finish_reason.value)
        if output.finished:
            self._finished = True
            metrics.latency.observe(now - self._request.arrival_time)

    def close(self) -> None:
        """The request ended, or its client left."""
        if not self._finished:
            self._metrics.finished("abort")
