"""``octavo bench latency``: TTFT, TPOT and ITL of one stream at a time, engine in this process."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass

from octavo.bench.drive import NO_SAMPLE, bench_config, check_context, drive, random_prompts
from octavo.bench.figures import RequestRecord, latency_rows
from octavo.bench.machine import machine_state
from octavo.bench.report import ABSENT, Report, engine_facts, memory_observed
from octavo.bench.waste import WasteMeter
from octavo.config import EngineConfig
from octavo.core.runner import Runner
from octavo.worker import load_runner


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyWorkload:
    """``num_requests`` requests, each alone in the engine."""

    num_requests: int = 20
    prompt_tokens: int = 128
    output_tokens: int = 64
    seed: int = 0


def run_latency(config: EngineConfig, workload: LatencyWorkload) -> Report:
    """Load the model and measure."""
    config = bench_config(config, streams=1, prefix_cache=False)
    loaded = load_runner(config)
    state = machine_state()
    waste = WasteMeter()
    try:
        records = measure_latency(loaded.runner, config, workload, waste=waste)
        memory = memory_observed()
    finally:
        loaded.runner.close()
    return Report(
        kind="latency",
        facts={**engine_facts(config, loaded), **state},
        workload={**asdict(workload), "concurrency": 1},
        rows=latency_rows(records, gap="ITL ms"),
        observed={
            **waste.observed(NO_SAMPLE),
            "prefix_hit_percent": 0.0,
            "goodput": f"{ABSENT} (no arrivals here; bench serve measures it)",
            **memory,
        },
    )


def measure_latency(
    runner: Runner, config: EngineConfig, workload: LatencyWorkload, *, waste: WasteMeter
) -> list[RequestRecord]:
    """One record per request; one more request before them is not counted."""
    check_context(
        runner.info,
        prompt_tokens=workload.prompt_tokens,
        output_tokens=workload.output_tokens,
    )
    rng = random.Random(workload.seed)
    records: list[RequestRecord] = []
    for index in range(workload.num_requests + 1):
        prompts = random_prompts(
            rng, runner.info.vocab_size, count=1, length=workload.prompt_tokens
        )
        result = drive(runner, config, prompts, num_output=workload.output_tokens, waste=waste)
        records += result.records() if index else []
    return records
