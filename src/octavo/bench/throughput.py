"""``octavo bench throughput``: prefill and decode tokens per second of the engine in this process.

A decode figure counts only the steps in which all streams decode and none prefills; a prefill
figure counts only steps that compute prompt tokens. Prompts are random tokens, so nothing is
shared between them unless a shared prefix is asked for.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

from octavo.bench.drive import (
    NO_SAMPLE,
    DriveResult,
    bench_config,
    check_context,
    drive,
    random_prompts,
)
from octavo.bench.machine import machine_state
from octavo.bench.report import ABSENT, Report, engine_facts, memory_observed
from octavo.bench.waste import WasteMeter
from octavo.config import EngineConfig
from octavo.core.runner import Runner
from octavo.worker import load_runner


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputWorkload:
    """``concurrency`` streams of ``prompt_tokens`` in and ``output_tokens`` out, run in turn.

    With ``shared_prefix_tokens`` each width runs twice more on prompts longer by that much: once
    with the prefix in common, once with every stream's own.
    """

    concurrency: tuple[int, ...] = (1, 4, 16, 32)
    prompt_tokens: int = 128
    output_tokens: int = 128
    prefill_tokens: int = 512
    prefill_prompts: int = 8
    shared_prefix_tokens: int = 0
    repeat: int = 3
    seed: int = 0


@dataclass(slots=True)
class ThroughputSamples:
    """Figures by row name, one entry per round, and what was seen on the way."""

    rates: dict[str, list[float]] = field(default_factory=dict)
    ttft_ms: dict[str, list[float]] = field(default_factory=dict)
    tpot_ms: dict[str, list[float]] = field(default_factory=dict)
    waste: WasteMeter = field(default_factory=WasteMeter)
    prompt_tokens: int = 0
    prefix_hit_tokens: int = 0

    def add(self, name: str, rate: float, result: DriveResult) -> None:
        """Take one run's figure and its latencies."""
        records = result.records()
        self.rates.setdefault(name, []).append(rate)
        self.ttft_ms.setdefault(name, []).extend(1e3 * (r.ttft_s or 0.0) for r in records)
        self.tpot_ms.setdefault(name, []).extend(
            1e3 * tpot for r in records if (tpot := r.tpot_s) is not None
        )
        self.prompt_tokens += result.prompt_tokens
        self.prefix_hit_tokens += result.prefix_hit_tokens

    def unseen(self) -> dict[str, str]:
        """Why a rate is absent, where one is."""
        names = ", ".join(name for name, values in self.rates.items() if not all(values))
        why = "no step was of that kind alone; raise its tokens or --max-num-batched-tokens"
        return {"rates": f"{ABSENT} ({names}: {why})"} if names else {}

    def rows(self) -> list[dict[str, object]]:
        """Medians over the rounds, with the extremes; absent where no step was of the kind."""
        return [
            {
                "name": name,
                **{
                    key: round(of(values), 1) if all(values) else ABSENT
                    for key, of in (("tokens_per_s", statistics.median), ("min", min), ("max", max))
                },
                "ttft_ms": round(statistics.median(self.ttft_ms[name]), 2),
                "tpot_ms": (
                    round(statistics.median(self.tpot_ms[name]), 3)
                    if self.tpot_ms[name]
                    else ABSENT
                ),
            }
            for name, values in self.rates.items()
        ]


def run_throughput(config: EngineConfig, workload: ThroughputWorkload) -> Report:
    """Load the model and measure; rows are medians over ``workload.repeat`` interleaved rounds."""
    config = bench_config(config, streams=max(workload.concurrency), prefix_cache=False)
    loaded = load_runner(config)
    before = machine_state()
    try:
        samples = measure_throughput(loaded.runner, config, workload)
        memory = memory_observed()
    finally:
        loaded.runner.close()
    observed = {
        "machine_before": before,
        "machine_after": machine_state(),
        **samples.unseen(),
        **samples.waste.observed(NO_SAMPLE),
        "prefix_hit_percent": round(100 * samples.prefix_hit_tokens / samples.prompt_tokens, 2),
        "goodput": f"{ABSENT} (no arrivals here; bench serve measures it)",
        **memory,
    }
    return Report(
        kind="throughput",
        facts=engine_facts(config, loaded),
        workload=asdict(workload),
        rows=samples.rows(),
        observed=observed,
    )


def measure_throughput(
    runner: Runner, config: EngineConfig, workload: ThroughputWorkload
) -> ThroughputSamples:
    """The rounds, on a runner that is loaded already, behind a batch that is not counted.

    That batch is as wide and long as the widest row: the system gives the pool's memory when it is
    first written to, which a process pays once and would pay here in its first round.
    """
    check_context(
        runner.info,
        shared_prefix_tokens=workload.shared_prefix_tokens,
        prompt_tokens=workload.prompt_tokens,
        output_tokens=workload.output_tokens,
    )
    if workload.prefill_prompts:
        check_context(runner.info, prefill_tokens=workload.prefill_tokens, beyond=1)
    samples = ThroughputSamples()
    warm_up = random_prompts(
        random.Random(0),
        runner.info.vocab_size,
        count=max(workload.concurrency),
        length=workload.shared_prefix_tokens + workload.prompt_tokens,
    )
    drive(runner, config, warm_up, num_output=workload.output_tokens, waste=WasteMeter())
    for round_index in range(workload.repeat):
        rng = random.Random(workload.seed * 1_000_003 + round_index)
        for name, rate, result in _round(runner, config, workload, rng=rng, waste=samples.waste):
            samples.add(name, rate, result)
    return samples


def _round(
    runner: Runner,
    config: EngineConfig,
    workload: ThroughputWorkload,
    *,
    rng: random.Random,
    waste: WasteMeter,
) -> Iterator[tuple[str, float, DriveResult]]:
    vocab_size = runner.info.vocab_size
    if workload.prefill_prompts:
        prompts = random_prompts(
            rng, vocab_size, count=workload.prefill_prompts, length=workload.prefill_tokens
        )
        result = drive(runner, config, prompts, num_output=1, waste=waste)
        yield f"prefill {workload.prefill_tokens}", result.prefill.rate, result
    for width in workload.concurrency:
        prompts = random_prompts(rng, vocab_size, count=width, length=workload.prompt_tokens)
        result = drive(runner, config, prompts, num_output=workload.output_tokens, waste=waste)
        yield f"decode x{width}", result.decode.rate, result
        yield f"end to end x{width}", result.total.rate, result
        prefix = workload.shared_prefix_tokens
        for kind, shared in (("shared", prefix), ("own", 0)) if prefix else ():
            prompts = random_prompts(
                rng, vocab_size, count=width, length=prefix + workload.prompt_tokens, shared=shared
            )
            sharing = bench_config(config, streams=width, prefix_cache=bool(shared))
            result = drive(runner, sharing, prompts, num_output=workload.output_tokens, waste=waste)
            yield f"decode x{width}, prefix {prefix} {kind}", result.decode.rate, result
