"""``octavo bench memory``: where KV memory goes, page by page and beside contiguous reservation.

The accounting of the PagedAttention paper (Kwon et al., SOSP 2023), with this engine's scheduler
and KV in virtual time; the figures called "paper" are that paper's, measured with other models on
other machines.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from octavo.bench.contiguous import ALLOCATORS, RULES, Reservation, replay_contiguous
from octavo.bench.figures import Slo, totals
from octavo.bench.machine import machine_facts
from octavo.bench.report import Report
from octavo.bench.virtual import (
    FIRST_NATS,
    GAP_NATS,
    TOKEN_BUDGET,
    Replay,
    Setup,
    StepTime,
    VirtualEngine,
)
from octavo.bench.workload import PlannedRequest, ServeWorkload, plan_requests
from octavo.config import POLICIES
from octavo.errors import ConfigError
from octavo.kv import metadata_bytes

Row = dict[str, Any]

# Mean prompt and output tokens that the paper states; that they are exponential is our assumption.
LENGTHS = {
    "ShareGPT": ("exponential:161", "exponential:338"),
    "Alpaca": ("exponential:19", "exponential:58"),
}
BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
WIDTHS = (2, 4, 6)
PREFIXES = (80, 341)
# Each costs n branches, or n beams: fewer requests say enough.
MAX_SHARERS = 40
SLO = Slo(ttft_s=2.0, tpot_s=0.1)

# The paper's figures 2 and 15: percent of KV memory that holds tokens, percent of blocks saved.
PAPER_TOKENS = {"maximum": 20.4, "power of two": 26.8, "oracle": 38.2, "paged": 96.3}
PAPER_SAVED = {
    ("parallel", "Alpaca"): "6.1-9.8", ("parallel", "ShareGPT"): "16.2-30.5",
    ("beam", "Alpaca"): "37.6-55.2", ("beam", "ShareGPT"): "44.3-66.3",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryWorkload:
    """Requests per replay, how fast they come, and the pool and context they share.

    ``busy_rate_per_s`` keeps the pool short of room; ``rate_per_s`` is what policies are compared
    at. A ``trace`` takes the place of both length statistics and arrivals.
    """

    num_requests: int = 120
    rate_per_s: float = 2.0
    busy_rate_per_s: float = 100.0
    pool_tokens: int = 1 << 14
    context: int = 2048
    trace: Path | None = None
    time_scale: float = 1.0
    length_scale: float = 1.0
    seed: int = 0

    def named(self) -> list[str]:
        """The workloads by name."""
        return [self.trace.name] if self.trace is not None else list(LENGTHS)

    def plan(self, name: str, *, rate_per_s: float = 0.0, prefix: int = 0) -> list[PlannedRequest]:
        """The requests of one workload; prompt and output each fill at most half the context."""
        prompt, output = LENGTHS.get(name, ("1", "1"))
        half = self.context // 2
        return plan_requests(
            ServeWorkload(
                num_requests=self.num_requests,
                rate_per_s=0.0 if self.trace is not None and not rate_per_s else rate_per_s,
                prompt_tokens=prompt,
                output_tokens=output,
                shared_prefix_tokens=prefix,
                max_prompt_tokens=half - prefix,
                max_output_tokens=half,
                trace=self.trace,
                time_scale=self.time_scale,
                length_scale=self.length_scale,
                seed=self.seed,
            )
        )

    def pool_for(self, name: str) -> int:
        """Slots that are too few for the workload: short requests need less to be short of."""
        return max(self.pool_tokens // 4, self.context) if name == "Alpaca" else self.pool_tokens

    def setup(self, **changes: Any) -> Setup:  # noqa: ANN401 - fields of Setup
        """The engine of a replay."""
        return replace(Setup(pool_tokens=self.pool_tokens, context=self.context), **changes)

    def roomy(self, **changes: Any) -> Setup:  # noqa: ANN401 - fields of Setup
        """An engine with room for all: the preempted come back alone and hide what is shared."""
        return self.setup(pool_tokens=16 * self.pool_tokens, **changes)


def run_memory(workload: MemoryWorkload) -> Report:
    """Every experiment.

    Raises:
        ConfigError: the pool is too small for a request.
    """
    if workload.pool_tokens < workload.context:
        raise ConfigError(
            f"--pool-tokens is {workload.pool_tokens}; it must hold one request of --context "
            f"{workload.context}"
        )
    step_time = StepTime()
    experiments: dict[str, Callable[[MemoryWorkload, StepTime], list[Row]]] = {
        "sharing by branches": _sharing,
        "block size": _block_sizes,
        "shared prefix": _prefixes,
        "admission policy": _policies,
    }
    described = asdict(workload) | {"trace": workload.named()[0] if workload.trace else "none"}
    return Report(
        kind="memory",
        facts=machine_facts() | {"clock": "virtual", "step_time_s": asdict(step_time)},
        workload=described
        | {"lengths": LENGTHS if workload.trace is None else "trace",
           "beam_nats": {"first": FIRST_NATS, "gap": GAP_NATS}, "slo": asdict(SLO)},
        rows=_breakdown(workload, step_time),
        tables={name: measure(workload, step_time) for name, measure in experiments.items()},
    )  # fmt: skip


def _breakdown(workload: MemoryWorkload, step_time: StepTime) -> list[Row]:
    """Percent of the pool by what it holds, while requests wait for room."""
    rows = []
    for name in workload.named():
        requests = workload.plan(name, rate_per_s=workload.busy_rate_per_s)
        pool = workload.pool_for(name)
        usages = {}
        for (rule, reserve), (allocator, make) in product(RULES.items(), ALLOCATORS.items()):
            how = Reservation(
                rule=reserve,
                allocator=make,
                capacity=pool,
                context=workload.context,
                token_budget=TOKEN_BUDGET,
            )
            usage = replay_contiguous(requests, how, step_time)
            usages[f"{rule}, {allocator}"] = (usage, PAPER_TOKENS[rule])
        for policy in POLICIES:
            setup = workload.setup(policy=policy, pool_tokens=pool)
            usage = _replay(setup, requests, step_time).usage
            usages[f"paged, {policy}"] = (usage, PAPER_TOKENS["paged"])
        rows += [
            {"workload": name, "pool_tokens": pool, "system": system, **usage.percent(),
             "requests_per_s": round(len(requests) / usage.seconds, 2), "paper_tokens": paper}
            for system, (usage, paper) in usages.items()
        ]  # fmt: skip
    return rows


def _sharing(workload: MemoryWorkload, step_time: StepTime) -> list[Row]:
    """Percent of blocks that n branches, or a beam of n, save by sharing."""
    rows = []
    for name in workload.named():
        requests = workload.plan(name, rate_per_s=workload.rate_per_s)[:MAX_SHARERS]
        for n, kind in product(WIDTHS, ("parallel", "beam")):
            replay = _replay(workload.roomy(n=n, beam=kind == "beam"), requests, step_time)
            rows.append(
                {"workload": name, "kind": kind, "n": n, "saved_percent": replay.saved_percent,
                 "forks": replay.counters["forks"], "cow_copies": replay.counters["cow_copies"],
                 "paper_n_2_to_6": PAPER_SAVED.get((kind, name), "absent")}
            )  # fmt: skip
    return rows


def _replay(setup: Setup, requests: Sequence[PlannedRequest], step_time: StepTime) -> Replay:
    return VirtualEngine(setup, step_time).run(requests)


def _block_sizes(workload: MemoryWorkload, step_time: StepTime) -> list[Row]:
    """Small blocks waste less and share more, large ones need fewer entries."""
    rows = []
    name = workload.named()[0]
    requests = workload.plan(name, rate_per_s=workload.rate_per_s)
    for size in BLOCK_SIZES:
        engine = VirtualEngine(workload.roomy(n=2, block_size=size), step_time)
        started = time.process_time()
        replay = engine.run(requests)
        spent = time.process_time() - started
        counters, books = replay.counters, metadata_bytes(engine.engine.kv)
        rows.append(
            {
                "block_size": size,
                "tail_waste_percent": round(100 * replay.tail_waste / replay.held, 2),
                "saved_percent": replay.saved_percent,
                "mean_table_entries": round(replay.entries / replay.usage.seconds, 1),
                "metadata_bytes_per_slot": round(books / replay.usage.capacity, 3),
                "cow_copies": counters["cow_copies"],
                "control_us_per_step": round(1e6 * spent / counters["steps"], 1),
            }
        )
    return rows


def _prefixes(workload: MemoryWorkload, step_time: StepTime) -> list[Row]:
    """A prefix that all prompts have in common, with and without the prefix cache."""
    rows = []
    name = workload.named()[0]
    for prefix in (tokens for tokens in PREFIXES if 2 * tokens < workload.context):
        requests = workload.plan(name, rate_per_s=workload.busy_rate_per_s, prefix=prefix)
        for cache in (False, True):
            replay = _replay(workload.setup(prefix_cache=cache), requests, step_time)
            counters = replay.counters
            hits = counters["prefix_hit_tokens"] / counters["prompt_tokens"]
            rows.append(
                {
                    "prefix_tokens": prefix,
                    "prefix_cache": "on" if cache else "off",
                    "prompt_tokens_cached_percent": round(100 * hits, 1),
                    "saved_percent": replay.saved_percent,
                    "running": replay.usage.percent()["running"],
                    "requests_per_s": round(len(requests) / replay.usage.seconds, 2),
                    "preemptions": counters["preemptions"],
                }
            )
    return rows


def _policies(workload: MemoryWorkload, step_time: StepTime) -> list[Row]:
    """The admission policies on one stream of requests, in a pool that is too small for it."""
    rows = []
    name = workload.named()[0]
    rate = 0.0 if workload.trace is not None else workload.rate_per_s
    requests = workload.plan(name, rate_per_s=rate)
    pool = max(workload.pool_tokens // 4, workload.context)
    for policy in POLICIES:
        replay = _replay(workload.setup(policy=policy, pool_tokens=pool), requests, step_time)
        counters, seen = replay.counters, totals(replay.records, SLO)
        recomputed = counters["recomputed_tokens"] / counters["computed_tokens"]
        rows.append(
            {
                "policy": policy,
                "pool_tokens": pool,
                "goodput_per_s": seen["goodput_per_s"],
                "on_time_percent": seen["on_time_percent"],
                "requests_per_s": seen["requests_per_s"],
                "preemptions": counters["preemptions"],
                "recompute_tax_percent": round(100 * recomputed, 2),
            }
        )
    return rows
