"""``/metrics``: the engine's last snapshot and what the frontend measures, under two naming sets.

Names beginning ``octavo_`` are ours; ``vllm:`` repeats those that dashboards already know.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from octavo.core.request import Request
from octavo.frontend import AsyncEngineClient, RequestOutput
from octavo.server.histogram import TokenCounter, TokenHistogram

Limits = Mapping[str, tuple[float, float]]

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 5)
_KV_BYTES = "kv_bytes_"
_KV_POOL = "kv_bytes_pool"

# Engine counter → the name that other engines use for it.
_ALIASES = {
    "preemptions": "vllm:num_preemptions",
    "prefix_query_tokens": "vllm:prefix_cache_queries",
    "prefix_hit_tokens": "vllm:prefix_cache_hits",
    "cow_copies": "octavo_cow_copies",
    "recomputed_tokens": "octavo_recomputed_tokens",
    "draft_rows": "vllm:spec_decode_num_drafts",
    "draft_tokens": "vllm:spec_decode_num_draft_tokens",
    "draft_tokens_accepted": "vllm:spec_decode_num_accepted_tokens",
}
_ACCEPTED_AT = "draft_tokens_accepted_at_"


class EngineCollector(Collector):
    """Turns the newest ``Stats`` into metric families at scrape time."""

    def __init__(
        self,
        client: AsyncEngineClient,
        *,
        model: str,
        is_draining: Callable[[], bool],
        limits: Callable[[], Limits],
    ) -> None:
        self._client = client
        self._model = model
        self._is_draining = is_draining
        self._limits = limits

    def collect(self) -> Iterator[Metric]:
        """See ``prometheus_client``."""
        draining = self._is_draining()
        ready = self._client.ready and not draining
        yield self._gauge("octavo_ready", "1 when new work is taken", float(ready))
        yield self._gauge("octavo_draining", "1 while shutting down", float(draining))
        yield self._gauge(
            "octavo_requests_in_flight", "requests known to the frontend", self._client.num_active
        )
        yield self._counter(
            "octavo_engine_restarts", "engine deaths survived", self._client.engine_restarts
        )
        yield from self._bounds()
        yield from self._snapshot()
        yield from self._totals()
        yield from self._facts()

    def _bounds(self) -> Iterator[Metric]:
        used, limit = (
            GaugeMetricFamily(name, text, labels=["model_name", "resource"])
            for name, text in (
                ("octavo_limit_used", "use of a bounded resource"),
                ("octavo_limit", "bound of a resource"),
            )
        )
        for resource, (now, most) in self._limits().items():
            used.add_metric([self._model, resource], now)
            limit.add_metric([self._model, resource], most)
        yield used
        yield limit

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
            if name == _KV_POOL:
                # The sum of the states, so no state of its own.
                yield self._gauge("octavo_kv_pool_bytes", "bytes of the KV pool", value)
            elif name.startswith(_KV_BYTES):
                kv_bytes.add_metric([self._model, name.removeprefix(_KV_BYTES)], value)
            elif name == "kv_usage":
                yield self._gauge("vllm:kv_cache_usage_perc", "share of the pool in use", value)
            else:
                yield self._gauge(f"octavo_{name}", "engine gauge", value)
        yield kv_bytes

    def _totals(self) -> Iterator[Metric]:
        per_position = CounterMetricFamily(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "accepted drafts by their place in the draft",
            labels=["model_name", "position"],
        )
        for name, value in sorted(self._client.counters.totals().items()):
            if name.startswith(_ACCEPTED_AT):
                position = name.removeprefix(_ACCEPTED_AT)
                per_position.add_metric([self._model, position], value)
                continue
            yield self._counter(f"octavo_engine_{name}", "engine counter", value)
            if name in _ALIASES:
                yield self._counter(_ALIASES[name], "engine counter", value)
        yield per_position

    def _facts(self) -> Iterator[Metric]:
        welcome = self._client.welcome
        if welcome is not None:
            facts = {
                "model_name": self._model,
                "block_size": welcome.block_size,
                "num_gpu_blocks": welcome.num_blocks,
                "kv_bytes": welcome.kv_pool_bytes,
                "cache_dtype": welcome.kv_dtype,
                "kv_layout": welcome.kv_layout,
                "max_num_seqs": welcome.max_num_seqs,
                "max_num_batched_tokens": welcome.max_num_batched_tokens,
                "fingerprint": welcome.fingerprint,
            }
            info = GaugeMetricFamily(
                "vllm:cache_config_info", "the KV pool's shape", labels=list(facts)
            )
            info.add_metric([str(value) for value in facts.values()], 1)
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
        limits: Callable[[], Limits],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self._registry = CollectorRegistry()
        self._registry.register(
            EngineCollector(client, model=model, is_draining=is_draining, limits=limits)
        )
        self._labels = {"model_name": model}
        self.first_token = self._histogram("time_to_first_token_seconds", _SECONDS)
        self.inter_token = TokenHistogram(
            "vllm:inter_token_latency_seconds", model=model, bounds=_TOKEN_SECONDS
        )
        self._registry.register(self.inter_token)
        self.latency = self._histogram("e2e_request_latency_seconds", _SECONDS)
        self.prompt_tokens = self._tokens("prompt_tokens")
        self.generation_tokens = TokenCounter("vllm:generation_tokens", model=model)
        self._registry.register(self.generation_tokens)
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

    def finished(self, reason: str, count: int = 1) -> None:
        """Count ended choices."""
        self._finished.labels(**self._labels, finished_reason=reason).inc(count)

    def watch(self, request: Request) -> RequestWatch:
        """Begin to measure a request."""
        return RequestWatch(self, request)

    def render(self) -> bytes:
        """The exposition text."""
        return generate_latest(self._registry)


class Outcome(StrEnum):
    """What became of choices that did not finish: the client left, or they were dropped."""

    ABORT = "abort"
    ERROR = "error"


class RequestWatch:
    """Measures one request from its arrival."""

    def __init__(self, metrics: Metrics, request: Request) -> None:
        self._metrics = metrics
        self._request = request
        self._seen_at: dict[int, float] = {}
        self._unfinished = request.sampling.n

    def observe(self, output: RequestOutput) -> float:
        """An output is about to leave. Returns the time."""
        metrics, now = self._metrics, self._metrics.clock()
        if not self._seen_at:
            metrics.first_token.observe(now - self._request.arrival_time)
            metrics.prompt_tokens.inc(output.usage.prompt_tokens)
        for delta in output.branches:
            if count := len(delta.token_ids):
                self._observe_tokens(delta.branch, count, now)
            if delta.finish_reason is not None:
                self._unfinished -= 1
                metrics.finished(delta.finish_reason.value)
        if output.finished:
            metrics.latency.observe(now - self._request.arrival_time)
        return now

    def _observe_tokens(self, branch: int, count: int, now: float) -> None:
        """``count`` tokens of one branch; those that came together share the gap before them."""
        before = self._seen_at.get(branch)
        self._seen_at[branch] = now
        self._metrics.generation_tokens.value += count
        if before is not None:
            self._metrics.inter_token.observe((now - before) / count, count)

    def close(self, outcome: Outcome) -> None:
        """The request ended; what it still owed ended with ``outcome``."""
        if self._unfinished:
            self._metrics.finished(outcome.value, self._unfinished)
