"""``octavo bench serve``: any OpenAI-compatible server under a dynamic workload.

An open loop sends when its arrival process says so, however the server fares; a closed loop keeps
a number of requests in flight. Beside what its client sees the report has what ``/metrics`` tells:
all of it from Octavo, a part from vLLM, nothing ("absent") from others.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import uvloop

from octavo.bench.client import LoadClient, RunResult, Target
from octavo.bench.exposition import Exposition, grown, histogram_quantiles
from octavo.bench.figures import QUANTILES, Outcome, Slo, latency_rows, totals
from octavo.bench.machine import (
    cpu_seconds,
    machine_facts,
    machine_state,
    peak_memory_mib,
    process_name,
    process_tree,
    shared_memory_mib,
)
from octavo.bench.report import ABSENT, Report
from octavo.bench.waste import WasteMeter
from octavo.bench.workload import PlannedRequest, ServeWorkload, check_trace_use, plan_requests
from octavo.errors import ConfigError

SCRAPE_INTERVAL_S = 1.0
ITL = "vllm:inter_token_latency_seconds"
CACHE_CONFIG = "vllm:cache_config_info"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """``server_pid`` is the root of the server's processes, when they run on this machine."""

    target: Target
    workload: ServeWorkload
    slo: Slo | None = None
    server_pid: int | None = None


@dataclass(slots=True)
class _Watch:
    """What is seen of the server while the load runs."""

    waste: WasteMeter = field(default_factory=WasteMeter)
    peak_pss_mib: float | None = None

    def take(self, page: str | None, server_pid: int | None) -> None:
        if page is not None:
            self.waste.add(Exposition(page).by_label("octavo_kv_bytes", "state"))
        if server_pid is not None:
            pss = shared_memory_mib(process_tree(server_pid))
            self.peak_pss_mib = max(pss or 0.0, self.peak_pss_mib or 0.0) or None


def run_serve(options: ServeOptions) -> Report:
    """Plan, run, report.

    Raises:
        ConfigError: an option is impossible.
        UnavailableError: the server does not answer a plain request.
    """
    check_trace_use(options.workload)
    planned = plan_requests(options.workload)
    if options.server_pid is not None and not process_tree(options.server_pid):
        raise ConfigError(f"--server-pid {options.server_pid} is no process of this machine")
    state = machine_state()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(options, planned, state))


async def _run(
    options: ServeOptions, planned: list[PlannedRequest], state: Mapping[str, object]
) -> Report:
    client = LoadClient(options.target, n=options.workload.n, seed=options.workload.seed)
    line = await client.calibrate()
    before = Exposition(await client.fetch_text("/metrics") or "")
    cpu_before = _cpu_by_process(options.server_pid)
    watch = _Watch()
    watching = asyncio.create_task(_watch(client, watch, options.server_pid))
    try:
        result = await client.run(planned, concurrency=options.workload.concurrency)
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
    cpu_after = _cpu_by_process(options.server_pid)
    after = Exposition(await client.fetch_text("/metrics") or "")
    observed = {
        **totals(result.records, options.slo, offered_s=_offered_s(options.workload, planned)),
        **_told(before, after, result),
        **watch.waste.observed(),
        **_memory(watch, options.server_pid),
        "cpu_us_per_token": _cpu_per_token(cpu_before, cpu_after, result),
    }
    if result.num_uncounted:
        observed["counted"] = (
            f"{result.num_uncounted} requests came without usage: their chunks were counted"
        )
    return Report(
        kind="serve",
        facts={**machine_facts(), **state, **_server_facts(options.target, after)},
        workload={
            **options.workload.described(),
            "planned_prompt_tokens": sum(request.prompt_tokens for request in planned),
            "planned_output_tokens": sum(request.output_tokens for request in planned),
            "tokens_per_word": round(line.slope, 3),
            "ignore_eos": options.target.ignore_eos,
            "temperature": options.target.temperature,
            "slo": None if options.slo is None else
            {"ttft_s": options.slo.ttft_s, "tpot_s": options.slo.tpot_s},
        },
        rows=[*latency_rows(result.records), _itl_row(before, after)],
        observed=observed,
    )  # fmt: skip


def _offered_s(workload: ServeWorkload, planned: list[PlannedRequest]) -> float:
    """How long an open loop sends, 0 for a closed loop, whose sends the server itself paces."""
    return 0.0 if workload.concurrency else planned[-1].at_s


async def _watch(client: LoadClient, watch: _Watch, server_pid: int | None) -> None:
    has_metrics = True
    while True:
        page = await client.fetch_text("/metrics") if has_metrics else None
        has_metrics = page is not None
        watch.take(page, server_pid)
        await asyncio.sleep(SCRAPE_INTERVAL_S)


def _server_facts(target: Target, page: Exposition) -> dict[str, object]:
    shape = page.labels(CACHE_CONFIG)
    names = {
        "block_size": "block_size",
        "num_blocks": "num_gpu_blocks",
        "kv_dtype": "cache_dtype",
        "fingerprint": "fingerprint",
        "heads": "heads",
        "token_budget": "max_num_batched_tokens",
    }
    told = {fact: shape.get(label, ABSENT) for fact, label in names.items()}
    return {"model": target.model, "api": target.api, **told}


def _told(before: Exposition, after: Exposition, result: RunResult) -> dict[str, object]:
    """Prefix hits and preemptions: from the server's counters, else from the responses' usage."""
    queried = grown(before, after, "vllm:prefix_cache_queries_total")
    hits = grown(before, after, "vllm:prefix_cache_hits_total")
    preemptions = grown(before, after, "vllm:num_preemptions_total")
    prompt = sum(record.prompt_tokens for record in result.records)
    cached = sum(record.cached_tokens for record in result.records)
    if queried:
        hit_percent: object = round(100 * (hits or 0.0) / queried, 2)
    else:
        hit_percent = round(100 * cached / prompt, 2) if cached else ABSENT
    recomputed = grown(before, after, "octavo_engine_recomputed_tokens_total")
    computed = grown(before, after, "octavo_engine_computed_tokens_total")
    return {
        "client_max_lag_ms": round(1e3 * result.max_lag_s, 2),
        "prefix_hit_percent": hit_percent,
        "recompute_tax_percent": (
            round(100 * recomputed / computed, 2) if computed and recomputed is not None else ABSENT
        ),
        "preemptions": ABSENT if preemptions is None else int(preemptions),
    }


def _itl_row(before: Exposition, after: Exposition) -> dict[str, object]:
    """Gaps between tokens by the server's stamps, interpolated from its histogram."""
    found = histogram_quantiles(before, after, ITL, percents=QUANTILES)
    row: dict[str, object] = {"name": "ITL ms (server's histogram)"}
    if found is None:
        return row | dict.fromkeys(("count", "mean", *(f"p{q}" for q in QUANTILES)), ABSENT)
    count = grown(before, after, f"{ITL}_count") or 0.0
    total = grown(before, after, f"{ITL}_sum") or 0.0
    row |= {"count": int(count), "mean": round(1e3 * total / count, 3) if count else ABSENT}
    return row | {f"p{q}": round(1e3 * found[q], 3) for q in QUANTILES}


def _memory(watch: _Watch, server_pid: int | None) -> dict[str, object]:
    if server_pid is None:
        return {"peak_memory_mib": f"{ABSENT} (give --server-pid)"}
    peaks = [peak_memory_mib(pid) or 0.0 for pid in process_tree(server_pid)]
    return {
        "peak_memory_mib": round(sum(peaks), 1) or ABSENT,
        "peak_pss_mib": ABSENT if watch.peak_pss_mib is None else watch.peak_pss_mib,
    }


def _cpu_by_process(server_pid: int | None) -> dict[int, float]:
    return {} if server_pid is None else {p: cpu_seconds(p) for p in process_tree(server_pid)}


def _cpu_per_token(
    before: Mapping[int, float], after: Mapping[int, float], result: RunResult
) -> dict[str, float] | str:
    """Processor time of each server process over the run, per output token, prompts included."""
    tokens = sum(record.output_tokens for record in result.records)
    if not before or not tokens:
        return f"{ABSENT} (give --server-pid)"
    return {
        f"{process_name(pid)} {pid}": round(1e6 * (used - before[pid]) / tokens, 1)
        for pid, used in after.items()
        if pid in before
    }


def num_failed(report: Report) -> int:
    """Requests that were refused, failed or timed out."""
    outcomes: Mapping[str, int] = report.observed["outcomes"]
    bad = (Outcome.REFUSED, Outcome.FAILED, Outcome.TIMED_OUT)
    return sum(outcomes.get(outcome.value, 0) for outcome in bad)
