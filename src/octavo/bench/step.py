"""``octavo bench step``: what the engine process spends between two forwards.

Measured is the time from a forward's return to the next forward's entry, by the native code's own
stamps: commit, encode and send outputs, receive, schedule, build the batch, hand it over. The
engine's own loop runs on its own socket; the frontend at the other end is a socket that nobody
reads, so that nothing else takes the CPU.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import zmq
from numpy.typing import NDArray

from octavo.backends.program import (
    Executor,
    OpTime,
    ProfilingExecutor,
    StepBatch,
    StepOutput,
)
from octavo.bench.drive import bench_config, check_context, make_request, random_prompts
from octavo.bench.figures import percentile
from octavo.bench.machine import machine_state
from octavo.bench.report import ABSENT, Report, engine_facts, memory_observed
from octavo.cluster.engine_host import EngineHost
from octavo.cluster.engine_loop import EngineLoop
from octavo.cluster.engine_process import welcome_of
from octavo.cluster.heap import settle_heap
from octavo.cluster.messages import Hello, Lease, SubmitMessage
from octavo.cluster.transport import RouterTransport
from octavo.cluster.wire import encode
from octavo.config import EngineConfig, SchedulerConfig
from octavo.core.request import Submit
from octavo.core.runner import RunnerInfo
from octavo.engine import EngineCore
from octavo.errors import EngineError
from octavo.worker import ModelRunner, load_runner

# Below the time after which the loop counts a frontend as silent; it looks once a turn.
LEASE_INTERVAL_S = 0.8
LEASE_ARRIVAL_S = 10.0
CLIENT_EPOCH = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWorkload:
    """Each number of streams decodes ``steps`` tokens after ``prompt_tokens`` of context.

    ``profile`` runs each once more with the executor's ops timed.
    """

    streams: tuple[int, ...] = (1, 16, 64)
    prompt_tokens: int = 32
    steps: int = 256
    profile: bool = False
    seed: int = 0


class ForwardMark(NamedTuple):
    """One forward: entry and return on the performance counter, its rows and tokens.

    The backend's own stamps where it has any, so that what Python does on the way in and out counts
    as spent between forwards.
    """

    entered_s: float
    returned_s: float
    rows: int
    tokens: int


class MarkingExecutor:
    """An ``Executor`` that notes when each forward was entered and left."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._timed = executor if isinstance(executor, ProfilingExecutor) else None
        # Each is to become a ForwardMark; making it would be measured.
        self.marks: list[tuple[float, float, int, int]] = []

    @property
    def fingerprint(self) -> str:
        """The wrapped executor's."""
        return self._executor.fingerprint

    @property
    def progress(self) -> int:
        """The wrapped executor's."""
        return self._executor.progress

    def forward(self, batch: StepBatch) -> StepOutput:
        """Pass on, with stamps around it."""
        entered = time.perf_counter()
        output = self._executor.forward(batch)
        span = (entered, time.perf_counter()) if self._timed is None else self._timed.span
        self.marks.append((*span, len(batch.slots), len(batch.token_ids)))
        return output

    def read_block(
        self, group: int, layer: int, block: int
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """The wrapped executor's."""
        return self._executor.read_block(group, layer, block)

    def poison_blocks(self, blocks: NDArray[np.int32]) -> None:
        """The wrapped executor's."""
        self._executor.poison_blocks(blocks)

    def close(self) -> None:
        """The wrapped executor's."""
        self._executor.close()


class PatientTransport:
    """The engine's transport, which can be told to wait for a frame before it is asked for it."""

    def __init__(self, address: str) -> None:
        self._inner = RouterTransport(address)
        self._early: list[tuple[bytes, bytes]] = []

    def wait(self, frame: bytes, timeout_s: float) -> None:
        """Read until ``frame`` is there; what was read is received with the next call."""
        deadline = time.monotonic() + timeout_s
        while all(arrived != frame for _, arrived in self._early):
            left = deadline - time.monotonic()
            if left <= 0:
                raise EngineError("this machine is too busy for the benchmark; repeat it later")
            self._early += self._inner.receive(left)

    def receive(self, timeout_s: float | None) -> list[tuple[bytes, bytes]]:
        """See ``EngineTransport.receive``."""
        early, self._early = self._early, []
        return early + self._inner.receive(0 if early else timeout_s)

    def send(self, peer: bytes, frame: bytes) -> bool:
        """See ``EngineTransport.send``."""
        return self._inner.send(peer, frame)

    def close(self) -> None:
        """See ``EngineTransport.close``."""
        self._inner.close()


def run_step(config: EngineConfig, workload: StepWorkload) -> Report:
    """Load the model and measure every number of streams."""
    config = bench_config(config, streams=max(workload.streams), prefix_cache=False)
    loaded = load_runner(config)
    settle_heap()
    state = machine_state()
    executor = loaded.runner.executor
    marking = MarkingExecutor(executor)
    runner = ModelRunner(marking, loaded.runner.info, max_slots=config.scheduler.max_num_seqs)
    observed: dict[str, object] = {}
    rows = []
    try:
        for width in workload.streams:
            gaps, marks = measure_gaps(runner, marking, config, width=width, workload=workload)
            rows.append(gap_row(width, gaps, marks))
        if workload.profile and isinstance(executor, ProfilingExecutor):
            observed["profile"] = [
                row
                for width in workload.streams
                for row in _profile(executor, runner, marking, config=config,
                                    width=width, workload=workload)
            ]  # fmt: skip
        elif workload.profile:
            observed["profile"] = f"{ABSENT} (this backend cannot time its ops)"
        observed |= unseen_gaps(rows) | {
            "internal_waste_percent": f"{ABSENT} (bench throughput measures it)",
            "prefix_hit_percent": 0.0,
            "goodput": f"{ABSENT} (no arrivals here; bench serve measures it)",
            **memory_observed(),
        }
    finally:
        loaded.runner.close()
    return Report(
        kind="step",
        facts={**engine_facts(config, loaded), **state},
        workload=asdict(workload),
        rows=rows,
        observed=observed,
    )


def _profile(
    executor: ProfilingExecutor,
    runner: ModelRunner,
    marking: MarkingExecutor,
    *,
    config: EngineConfig,
    width: int,
    workload: StepWorkload,
) -> list[dict[str, object]]:
    executor.start_profile()
    measure_gaps(runner, marking, config, width=width, workload=workload)
    return profile_rows(width, executor.op_times(), steps=len(marking.marks))


def profile_rows(width: int, times: Sequence[OpTime], *, steps: int) -> list[dict[str, object]]:
    """Per kind of op: time per step, its share, and the rates to hold against the machine's."""
    total = sum(spent.seconds for spent in times)
    return [
        {
            "streams": width,
            "op": spent.op,
            "us_per_step": round(1e6 * spent.seconds / steps, 1),
            "percent": round(100 * spent.seconds / total, 1),
            "mb_per_step": round(spent.read_bytes / steps / 1e6, 3),
            "gb_per_s": round(spent.read_bytes / spent.seconds / 1e9, 2),
            "gops": round(spent.operations / spent.seconds / 1e9, 1),
        }
        for spent in times
        if spent.seconds > 0
    ]


def measure_gaps(
    runner: ModelRunner,
    marking: MarkingExecutor,
    config: EngineConfig,
    *,
    width: int,
    workload: StepWorkload,
) -> tuple[list[float], list[ForwardMark]]:
    """Seconds between forwards, and the forwards, while all ``width`` streams decode."""
    check_context(runner.info, prompt_tokens=workload.prompt_tokens, steps=workload.steps, beyond=1)
    rng = random.Random(workload.seed)
    prompts = random_prompts(
        rng, runner.info.vocab_size, count=width, length=workload.prompt_tokens
    )
    marking.marks.clear()
    engine = EngineCore(runner, config.scheduler, config.cache, epoch=1)
    with _sockets() as (transport, frontend):
        loop = _engine_loop(engine, runner.info, transport, scheduler=config.scheduler)
        _submit(frontend, prompts, workload.steps + 1)
        lease_times = _run_to_the_end(
            engine, loop, frontend, transport=transport, num_requests=width
        )

    marks = [ForwardMark(*mark) for mark in marking.marks]

    def is_steady(mark: ForwardMark) -> bool:
        return mark.rows == mark.tokens == width

    gaps = [
        later.entered_s - earlier.returned_s
        for earlier, later in pairwise(marks)
        if is_steady(earlier)
        and is_steady(later)
        and not any(earlier.returned_s <= at <= later.entered_s for at in lease_times)
    ]
    return gaps, [mark for mark in marks if is_steady(mark)]


def gap_row(width: int, gaps: Sequence[float], marks: Sequence[ForwardMark]) -> dict[str, object]:
    """Quantiles of the gaps in µs, and the median forward beside them."""
    row: dict[str, object] = {"streams": width, "gaps": len(gaps)}
    if not gaps:
        return row | dict.fromkeys(("p50_us", "p99_us", "p99/p50", "forward_p50_us"), ABSENT)
    middle, high = percentile(gaps, 50), percentile(gaps, 99)
    forwards = [mark.returned_s - mark.entered_s for mark in marks]
    return row | {
        "p50_us": round(1e6 * middle, 1),
        "p99_us": round(1e6 * high, 1),
        "p99/p50": round(high / middle, 2),
        "forward_p50_us": round(1e6 * percentile(forwards, 50), 1),
    }


def unseen_gaps(rows: Sequence[dict[str, object]]) -> dict[str, object]:
    """Why a number of streams has no gaps, where one has none."""
    widths = ", ".join(str(row["streams"]) for row in rows if not row["gaps"])
    why = (
        "all never decoded in two steps on end; raise --steps or --max-num-batched-tokens, or "
        "lower --streams or --prompt-tokens"
    )
    return {"gaps": f"{ABSENT} (streams {widths}: {why})"} if widths else {}


@contextmanager
def _sockets() -> Iterator[tuple[PatientTransport, zmq.Socket[bytes]]]:
    """The engine's socket, and a connected one whose inbox grows without bound, unread."""
    with tempfile.TemporaryDirectory(prefix="octavo-step-") as folder:
        address = f"ipc://{Path(folder) / 'engine.sock'}"
        transport = PatientTransport(address)
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        frontend = context.socket(zmq.DEALER)
        frontend.setsockopt(zmq.LINGER, 0)
        frontend.setsockopt(zmq.RCVHWM, 0)
        frontend.connect(address)
        try:
            yield transport, frontend
        finally:
            context.destroy(linger=0)
            transport.close()


def _engine_loop(
    engine: EngineCore, info: RunnerInfo, transport: PatientTransport, *, scheduler: SchedulerConfig
) -> EngineLoop:
    return EngineLoop(
        engine,
        transport,
        welcome_of(engine, info, scheduler),
        host=EngineHost(engine, progress=lambda: engine.progress),
        clock=time.monotonic,
    )


def _submit(
    frontend: zmq.Socket[bytes], prompts: Sequence[tuple[int, ...]], num_output: int
) -> None:
    frontend.send(encode(Hello(client_epoch=CLIENT_EPOCH)))
    for index, prompt in enumerate(prompts):
        submit = Submit(request=make_request(str(index), prompt, num_output))
        frontend.send(encode(SubmitMessage(client_epoch=CLIENT_EPOCH, submit=submit)))


def _run_to_the_end(
    engine: EngineCore,
    loop: EngineLoop,
    frontend: zmq.Socket[bytes],
    *,
    transport: PatientTransport,
    num_requests: int,
) -> list[float]:
    """Run until every request ended; returns when this end sent a lease, which costs time too."""
    lease = encode(Lease(client_epoch=CLIENT_EPOCH))
    lease_times = [time.perf_counter()]
    counters = engine.counters
    while engine.has_work() or counters.requests + counters.requests_refused < num_requests:
        if time.perf_counter() - lease_times[-1] > LEASE_INTERVAL_S:
            frontend.send(lease)
            # It must be there before the loop looks who is silent, however long the step was.
            transport.wait(lease, LEASE_ARRIVAL_S)
            lease_times.append(time.perf_counter())
        loop.run_once()
    if counters.requests_refused:
        raise EngineError(
            f"{counters.requests_refused} of {num_requests} streams were refused; ask for fewer"
        )
    if counters.requests_aborted or counters.requests_failed:
        raise EngineError(
            "the engine dropped requests of the benchmark; repeat it on a quiet machine"
        )
    return lease_times
