"""The real engine, scheduler and KV under planned requests, in virtual time and without a model.

The runner returns tokens that mean nothing, and likelihoods of stated statistics where a beam
search asks for them; how long a step takes is a straight line through the step times of a real
model. So minutes of serving are replayed in seconds, and what is measured is what the ledger says:
where the bytes of the pool are.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from octavo.bench.figures import Outcome, RequestRecord
from octavo.bench.report import ABSENT
from octavo.bench.workload import PlannedRequest
from octavo.config import CacheConfig, SchedulerConfig
from octavo.core.request import BranchOutput, Request, Submit
from octavo.core.runner import KVGroupSpec, RunnerInfo
from octavo.core.sampling_params import SamplingParams
from octavo.core.step import RowResult, StepPlan, StepResult
from octavo.engine import EngineCore
from octavo.errors import ConfigError
from octavo.kv import Ledger, take_ledger

VOCAB_SIZE = 1 << 20
BLOCK_SIZE = 16
TOKEN_BUDGET = 512
# What the likeliest next token costs in nats, and each further one more: means of exponential laws.
FIRST_NATS = 0.5
GAP_NATS = 1.0
SHARES = ("tokens", "later", "internal", "external", "tokens_of_reserved", "running")


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of a step: ``base_s`` plus ``token_s`` for each token that it computes."""

    base_s: float = 0.0029
    token_s: float = 0.00076

    def __call__(self, num_tokens: int) -> float:
        """Seconds of a step of ``num_tokens``."""
        return self.base_s + self.token_s * num_tokens


class KVUsage:
    """Slots of a pool by what they hold, weighted by time, while somebody is refused for room."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.seconds = 0.0
        self._measured_s = 0.0
        self._sums = dict.fromkeys(("tokens", "later", "internal", "running"), 0.0)

    def add(self, seconds: float, **slots: float) -> None:
        """Slots with ``tokens``, for ``later``, lost ``internal``ly; requests ``running``."""
        self._measured_s += seconds
        for name, count in slots.items():
            self._sums[name] += seconds * count

    def percent(self) -> dict[str, object]:
        """Shares of the pool; "external" is what is free and yet of no use to who was refused.

        All are "absent" where nobody ever was: the pool was never the limit.
        """
        if not self._measured_s:
            return dict.fromkeys(SHARES, ABSENT)
        full = self._measured_s * self.capacity / 100
        shares = {name: self._sums[name] / full for name in ("tokens", "later", "internal")}
        held = sum(shares.values())
        shares |= {
            "external": max(0.0, 100 - held),
            "tokens_of_reserved": 100 * shares["tokens"] / held,
            "running": self._sums["running"] / self._measured_s,
        }
        return {name: round(shares[name], 1) for name in SHARES}


class LengthRunner:
    """A ``Runner`` whose answers are numbers of no meaning: only their count matters."""

    def __init__(self, info: RunnerInfo, look: Callable[[], None]) -> None:
        self._look = look
        self._info = info
        # Slot → how many candidates its beam asks for.
        self._num_candidates: dict[int, int] = {}

    @property
    def info(self) -> RunnerInfo:
        """Facts of a model that does not exist."""
        return self._info

    def execute(self, plan: StepPlan) -> StepResult:
        """A token for each sample; another one in each step and row."""
        self._look()
        for state in plan.new_slots:
            self._num_candidates[state.slot] = state.num_candidates
        rows = tuple(
            RowResult(
                row=index,
                token_ids=tuple(
                    (plan.step_id * 8191 + index * 127 + sample) % VOCAB_SIZE
                    for sample in range(row.num_samples)
                ),
                candidates=candidates(
                    self._num_candidates[row.slot], key=f"{plan.step_id}/{index}"
                ),
            )
            for index, row in enumerate(plan.rows)
            if row.num_samples
        )
        return StepResult(step_id=plan.step_id, rows=rows, progress=plan.step_id)


def candidates(count: int, *, key: str) -> tuple[tuple[int, float], ...]:
    """The ``count`` likeliest next tokens and their logprobs, drawn anew for each ``key``."""
    if not count:
        return ()
    rng = random.Random(key)
    first = rng.expovariate(1 / FIRST_NATS)
    gaps = [rng.expovariate(1 / GAP_NATS) for _ in range(count - 1)]
    return tuple((token, -cost) for token, cost in enumerate(accumulate(gaps, initial=first)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One engine and its pool. ``n`` are branches, or with ``beam`` the width of a search."""

    block_size: int = BLOCK_SIZE
    pool_tokens: int
    context: int
    policy: str = "optimistic"
    prefix_cache: bool = False
    max_num_seqs: int = 512
    token_budget: int = TOKEN_BUDGET
    n: int = 1
    beam: bool = False


@dataclass(slots=True)
class Replay:
    """What a replay showed. ``entries`` and ``owned`` are block·seconds, shared counted or once."""

    usage: KVUsage
    entries: float = 0.0
    owned: float = 0.0
    tail_waste: float = 0.0
    held: float = 0.0
    records: list[RequestRecord] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)

    @property
    def saved_percent(self) -> float:
        """Blocks that sharing saves: 1 − blocks held / blocks held without sharing."""
        return round(100 * (1 - self.owned / self.entries), 1)


class VirtualEngine:
    """Replays planned requests in one engine; time passes only as ``StepTime`` says."""

    def __init__(self, setup: Setup, step_time: StepTime) -> None:
        self._setup = setup
        self._step_time = step_time
        info = RunnerInfo(
            vocab_size=VOCAB_SIZE,
            max_model_len=setup.context + 1,
            block_size=setup.block_size,
            num_blocks=setup.pool_tokens // setup.block_size,
            # One byte a slot: the ledger's bytes are slots.
            groups=(KVGroupSpec(block_bytes=setup.block_size),),
        )
        self.engine = EngineCore(
            LengthRunner(info, self._look),
            SchedulerConfig(
                max_num_seqs=setup.max_num_seqs,
                max_num_batched_tokens=setup.token_budget,
                policy=setup.policy,
                max_waiting=1 << 20,
                check_every_n_steps=0,
            ),
            CacheConfig(block_size=setup.block_size, prefix_cache=setup.prefix_cache),
            epoch=1,
        )
        self.replay = Replay(KVUsage(setup.pool_tokens // setup.block_size * setup.block_size))
        self._now = 0.0
        self._arrived: dict[str, float] = {}
        self._stamps: dict[str, list[float]] = {}
        self._open: dict[str, int] = {}
        # As the step in flight, or else the last one, holds the pool.
        self._ledger = Ledger()

    def _look(self) -> None:
        self._ledger = take_ledger(self.engine.kv)

    def run(self, requests: Sequence[PlannedRequest]) -> Replay:
        """All of them to their end.

        Raises:
            ConfigError: the engine refused one, so the pool is too small for the workload.
        """
        waiting, engine = deque(requests), self.engine
        while waiting or engine.has_work():
            if not engine.has_work():
                self._now = max(self._now, waiting[0].at_s)
            while waiting and waiting[0].at_s <= self._now:
                self._submit(waiting.popleft())
            computed = engine.counters.computed_tokens
            refused, preempted = self._shortages()
            outputs = engine.step(self._now)
            seconds = self._step_time(engine.counters.computed_tokens - computed)
            self._now += seconds
            # A refusal is forgotten when somebody ends, so it counts if it stood before or after.
            is_short = refused > 0 or self._shortages() != (refused, preempted)
            self._measure(self._ledger, seconds, is_short=is_short)
            for output in outputs:
                self._take(output)
        self.replay.counters = engine.stats().counters
        self.replay.usage.seconds = self._now
        return self.replay

    def _shortages(self) -> tuple[int, int]:
        """Whether the head of the queue stands refused (1 or 0), and preemptions so far."""
        scheduler = self.engine.scheduler
        return scheduler.num_refusals, scheduler.counters.preemptions

    def _submit(self, planned: PlannedRequest) -> None:
        request_id = str(planned.index)
        self._arrived[request_id] = planned.at_s
        self._stamps[request_id] = []
        self._open[request_id] = self._setup.n
        sampling = SamplingParams(
            n=self._setup.n,
            use_beam_search=self._setup.beam,
            temperature=0.0,
            max_tokens=planned.output_tokens,
            ignore_eos=True,
            seed=0,
        )
        request = Request(
            request_id=request_id,
            prompt_token_ids=prompt_ids(planned),
            sampling=sampling,
            arrival_time=planned.at_s,
        )
        self.engine.handle(Submit(request=request), self._now)

    def _measure(self, ledger: Ledger, seconds: float, *, is_short: bool) -> None:
        kv, replay = self.engine.kv, self.replay
        pool = kv.pools[0]
        replay.entries += seconds * sum(len(seq.tables[0].blocks) for seq in kv.sequences)
        owned = pool.num_blocks - pool.num_available - pool.num_draining
        replay.owned += seconds * owned
        replay.tail_waste += seconds * ledger.tail_waste
        replay.held += seconds * ledger.held
        if is_short:
            replay.usage.add(
                seconds,
                # What the step in flight writes is there when it ends.
                tokens=ledger.used + ledger.shared + ledger.provisional,
                later=ledger.promised,
                internal=ledger.tail_waste,
                running=len(ledger.requests),
            )

    def _take(self, output: BranchOutput) -> None:
        if output.error is not None:
            raise ConfigError(f"request {output.request_id}: {output.error}")
        stamps = self._stamps[output.request_id]
        stamps += [self._now] * len(output.token_ids)
        self._open[output.request_id] -= output.finish_reason is not None
        if not self._open[output.request_id]:
            self.replay.records.append(
                RequestRecord(
                    scheduled_s=self._arrived[output.request_id],
                    end_s=self._now,
                    outcome=Outcome.DONE,
                    content_s=tuple(stamps),
                    output_tokens=len(stamps),
                    n=self._setup.n,
                )
            )


def prompt_ids(planned: PlannedRequest) -> tuple[int, ...]:
    """Token ids of a planned prompt; segments with equal keys begin with equal tokens."""
    ids: list[int] = []
    for segment in planned.segments:
        ids += random.Random(segment.key).choices(range(VOCAB_SIZE), k=segment.tokens)
    return tuple(ids)
