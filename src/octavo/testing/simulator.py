"""A seeded simulation of the real engine, scheduler and KV under everything that can go wrong.

    python -m octavo.testing.simulator --seed 7 --steps 20000

A virtual clock, a fake runner that reads its answers back out of its KV, and a random stream of
arrivals, aborts, stopped branches, refused allocations, forced preemptions and evictions, reader
leases, runner faults, spoiled KV, drafts right and wrong, repeated messages and crashes with
resubmission. Every invariant is checked on every step and every ended branch is compared with the
request run alone. The same seed gives the same run; a step is counted only if it computed a token.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from math import log
from random import Random
from time import process_time

from octavo.core.request import Abort, BranchOutput, Request, StopBranch, Submit
from octavo.engine import EngineCore
from octavo.errors import OverloadedError
from octavo.kv.block_pool import BlockPool
from octavo.kv.prefix_index import Node
from octavo.testing.clairvoyant import clairvoyant, clairvoyant_tree
from octavo.testing.fake_runner import FakeRunner
from octavo.testing.journal import JournalEntry, SimulationError
from octavo.testing.recount import recount
from octavo.testing.simulator_requests import RequestMaker
from octavo.testing.simulator_scenario import Misjudging, draw_scenario
from octavo.testing.toy_grammar import ToyGrammars

EPISODE_STEPS = 500
RECOUNT_EVERY_N_STEPS = 128


class FlakyAllocation:
    """Lets allocations through except the n-th one from now, when armed."""

    def __init__(self, pool: BlockPool) -> None:
        self._allocate = pool.allocate
        self.refuse_in = 0
        self.num_refused = 0

    def __call__(self, owner: int, count: int) -> list[int] | None:
        """As ``BlockPool.allocate``."""
        if self.refuse_in:
            self.refuse_in -= 1
            if self.refuse_in == 0:
                self.num_refused += 1
                return None
        return self._allocate(owner, count)


class Episode:
    """One engine life story in one scenario; ``events`` counts what really happened."""

    def __init__(self, rng: Random, events: Counter[str]) -> None:
        self.rng = rng
        self.events = events
        self.scenario = draw_scenario(rng)
        self.requests = RequestMaker(rng, self.scenario, events)
        self.now = 0.0
        self.live: dict[str, JournalEntry] = {}
        self._failed: list[Request] = []
        self._digests: dict[tuple[str, str], bytes] = {}
        self.leases: list[tuple[int, ...]] = []
        self._num_requests = 0
        self._num_boots = 0
        self._arrives_at = 0
        self._num_forced = 0
        self._step_number = 0
        self._troubles = self._kinds_of_trouble()
        self._due: list[tuple[int, int]] = []
        for kind in range(len(self._troubles)):
            self._draw_due(kind)
        self._boot()

    def _boot(self) -> None:
        """A new engine process: empty pool, empty queues."""
        self.runner = FakeRunner(self.scenario.info)
        self.grammars = ToyGrammars(self.scenario.info.vocab_size)
        self._num_boots += 1
        self.core = EngineCore(
            self.runner,
            self.scenario.scheduler,
            self.scenario.cache,
            epoch=self._num_boots,
            grammars=self.grammars,
        )
        if self.scenario.misjudges:
            self.core.scheduler.policy = Misjudging()
        self.flaky = [FlakyAllocation(pool) for pool in self.core.kv.pools]
        for pool, flaky in zip(self.core.kv.pools, self.flaky, strict=True):
            pool.allocate = flaky  # type: ignore[method-assign]
        # What the fake runner says never repeats itself: these drafts are right for a while.
        self.runner.first_wrong = partial(self.rng.randrange, 6)
        speculation = self.core.scheduler.speculation
        if self.scenario.scheduler.speculate == "ngram":
            speculation.propose = clairvoyant(self.scenario.info, self.runner.first_wrong)
        if self.scenario.scheduler.speculate == "tree":
            speculation.propose = clairvoyant_tree(self.scenario.info, self.runner.first_wrong)
            speculation.step_cost = 1000
        self.leases.clear()

    # -- the run -----------------------------------------------------------------------------

    def run(self, num_steps: int) -> int:
        """Work under fire until ``num_steps`` counted steps, then drain; returns the count."""
        counted = 0
        while counted < num_steps:
            if self._step_number >= self._arrives_at:
                for _ in range(min(2, self.scenario.load - len(self.live))):
                    self._arrive()
            self._disturb()
            counted += self._step()
        self._end_leases()
        for _ in range(100_000):
            self._compile()
            if not self.core.has_work():
                break
            counted += self._step()
        self._check_idle()
        return counted

    def _step(self) -> int:
        """One engine step with all checks; 1 if it computed a token."""
        self.now += 0.01
        before, failed = self.runner.counts.steps, self.core.counters.failed_steps
        for output in self.core.step(self.now):
            self._deliver(output)
        stepped = self.runner.counts.steps - before
        self._check(may_idle=bool(stepped) or self.core.counters.failed_steps > failed)
        self._check_owners()
        self._check_failed()
        for group, pool in enumerate(self.core.kv.pools):
            self.runner.poison(group, pool.free_blocks())
        if stepped:
            self.events["steps"] += 1
            self.events["running"] += len(self.core.scheduler.running)
        return stepped

    def _deliver(self, output: BranchOutput) -> None:
        """Hold an output against the journal; a branch that ended is compared with itself alone."""
        entry = self.live.get(output.request_id)
        if entry is None:
            raise SimulationError(f"an output for {output.request_id}, which is not live")
        entry.take(output)
        if output.error is not None and "NaN" in output.error:
            self._failed.append(entry.request)
            self.events["failed rows"] += 1
        if output.finish_reason is None:
            return
        if output.error_code == OverloadedError.code:
            # A client that is turned away waits before it tries again.
            self._arrives_at = self._step_number + self.rng.randint(2, 12)
        self.events[f"ended {output.error_code or output.finish_reason}"] += 1
        entry.verify(output.branch, self.scenario.info)
        if entry.is_done:
            del self.live[output.request_id]

    def _check(self, *, may_idle: bool) -> None:
        core = self.core
        fault = core.last_fault
        if fault is not None and str(fault) != "injected fault":
            raise SimulationError(f"the runner was given a wrong plan: {fault}")
        violations = core.violations if may_idle else core.check_invariants()
        if violations:
            raise SimulationError("; ".join(violations))
        if self.events["steps"] % RECOUNT_EVERY_N_STEPS == 0 and core.ledger() != recount(core.kv):
            raise SimulationError("I10: the ledger differs from the recount block by block")
        for flaky in self.flaky:
            if flaky.num_refused:
                self.events["refused allocations"] += flaky.num_refused
                flaky.num_refused = 0

    def _check_owners(self) -> None:
        """P3: no block is held for two tenants, or under two salts."""
        for group, pool in enumerate(self.core.kv.pools):
            owned: dict[tuple[str, str], set[int]] = {}
            for seq in self.core.scheduler.running if 1 in pool.shared else ():
                assert seq.kv is not None, "I7: a running sequence has KV"
                owner = seq.state.request.tenant, seq.state.request.domain
                owned.setdefault(owner, set()).update(seq.kv.tables[group].blocks)
            if len(set().union(*owned.values())) != sum(map(len, owned.values())):
                raise SimulationError("P3: a block is held for two owners")

    def _check_failed(self) -> None:
        """Nothing that a request which failed may be part of stays in the cache alone."""
        if not self._failed:
            return
        kv = self.core.kv
        failed = {(r.prompt_token_ids[0], self._digests[r.tenant, r.domain]) for r in self._failed}
        self._failed.clear()
        for group, pool in enumerate(kv.pools):
            nodes = kv.index.blocks(group)
            spoiled = filter(partial(self.runner.holds_nan, group), pool.cached_blocks())
            if any(_origin(nodes[block]) in failed for block in spoiled):
                raise SimulationError("a block that is not a number can still be found")

    def _check_idle(self) -> None:
        if self.live:
            raise SimulationError(f"P1: no outcome for {sorted(self.live)}")
        if violations := self.core.check_invariants():
            raise SimulationError("; ".join(violations))
        self.core.reset_prefix_cache()
        for pool in self.core.kv.pools:
            if pool.num_free != pool.num_blocks:
                raise SimulationError("I10: blocks are missing at idle")
        counters = self.core.stats().counters
        broken = counters["preemptions"] > self._num_forced or counters["promises_shed"]
        if self.scenario.never_preempts and broken:
            raise SimulationError("a reserving policy preempted for want of blocks")
        for name in ("preemptions", "forks", "cow_copies", "partial_hits", "prefix_hit_tokens",
                     "evicted_blocks", "promises_shed", "twin_waits", "mixed_steps",
                     "draft_tokens", "draft_tokens_accepted", "draft_paths", "draft_paths_kept",
                     "beam_steps", "beam_splits"):  # fmt: skip
            self.events[name] += counters[name]

    # -- what happens to it ------------------------------------------------------------------

    def _arrive(self) -> None:
        self._num_requests += 1
        entry = JournalEntry(self.requests.draw(f"r{self._num_requests}", self.now))
        self.live[entry.request.request_id] = entry
        self._submit(entry)

    def _submit(self, entry: JournalEntry) -> None:
        """Hand a request to the engine, whatever of it was delivered already."""
        request = entry.request
        self.core.handle(entry.submit(), self.now)
        if (state := self.core.requests.states.get(request.request_id)) is not None:
            entry.limit = state.max_output
            self._digests[request.tenant, request.domain] = state.digest

    def _disturb(self) -> None:
        """Fire each kind of trouble with its own probability per step.

        The step at which a kind is due next is drawn, rather than a number for each at each step.
        """
        self._step_number += 1
        while self._due[0][0] <= self._step_number:
            _, kind = heappop(self._due)
            name, _, act = self._troubles[kind]
            if act():
                self.events[name] += 1
            self._draw_due(kind)

    def _draw_due(self, kind: int) -> None:
        probability = self._troubles[kind][1]
        gap = 1 + int(log(1.0 - self.rng.random()) / log(1.0 - probability))
        heappush(self._due, (self._step_number + gap, kind))

    def _kinds_of_trouble(self) -> list[tuple[str, float, Callable[[], bool]]]:
        return [
            ("aborts", 0.02, self._abort),
            ("stopped branches", 0.02, self._stop_branch),
            ("armed refusals", 0.02, self._refuse_allocation),
            ("forced preemptions", 0.03, self._preempt),
            ("forced evictions", 0.03, self._evict),
            ("leases", 0.02, self._lease),
            ("lease ends", 0.05, self._end_leases),
            ("cache resets", 0.003, self._reset_cache),
            ("runner faults", 0.004, self._fault),
            ("spoiled rows", 0.004, self._spoil),
            ("duplicate submits", 0.01, self._duplicate),
            ("resubmits", 0.01, self._resubmit),
            ("crashes", 0.003, self._crash),
            ("compiled grammars", 0.2, self._compile),
            ("token budgets", 0.01, self._narrow),
            ("token budget ends", 0.2, self._widen),
        ]

    def _any_live(self) -> JournalEntry | None:
        return self.rng.choice(list(self.live.values())) if self.live else None

    def _abort(self) -> bool:
        entry = self._any_live()
        if entry is not None:
            self.core.handle(Abort(request_id=entry.request.request_id), self.now)
            self.core.handle(Abort(request_id=entry.request.request_id), self.now)
        return entry is not None

    def _stop_branch(self) -> bool:
        entry = self._any_live()
        if entry is None:
            return False
        branch = self.rng.randrange(entry.request.sampling.num_branches)
        if entry.delivered[branch]:
            entry.stopped.add(branch)
        event = StopBranch(request_id=entry.request.request_id, branch=branch)
        self.core.handle(event, self.now)
        return bool(entry.delivered[branch])

    def _refuse_allocation(self) -> bool:
        self.rng.choice(self.flaky).refuse_in = self.rng.randint(1, 4)
        return True

    def _preempt(self) -> bool:
        running = self.core.scheduler.running
        if running:
            self.core.scheduler.preempt(self.rng.choice(running))
            self._num_forced += 1
            return True
        return False

    def _evict(self) -> bool:
        group = self.rng.randrange(len(self.flaky))
        return self.core.kv.evict(group, self.rng.randint(1, 4)) > 0

    def _lease(self) -> bool:
        running = self.core.scheduler.running
        seq = self.rng.choice(running) if running and self.scenario.shares else None
        # A leased block of a dropped beam drains: it is missing to those that take its place.
        promised = self.scenario.never_preempts and seq is not None and seq.state.beam is not None
        kv = seq.kv if seq is not None else None
        if kv is None or promised:
            return False
        self.leases.append(self.core.kv.lease(kv))
        return True

    def _end_leases(self) -> bool:
        ended = bool(self.leases)
        for tokens in self.leases:
            self.core.kv.end_lease(tokens)
            self.core.kv.end_lease(tokens)
        self.leases.clear()
        return ended

    def _reset_cache(self) -> bool:
        self.core.reset_prefix_cache()
        return True

    def _fault(self) -> bool:
        self.runner.fail_next = True
        return True

    def _spoil(self) -> bool:
        self.runner.spoil_next = True
        return True

    def _duplicate(self) -> bool:
        """The same message twice."""
        self._flush()
        entry = self._any_live()
        if entry is not None:
            self.core.handle(Submit(request=entry.request, epoch=entry.epoch), self.now)
        return entry is not None

    def _resubmit(self) -> bool:
        """The frontend lost its connection and submits again under a new epoch."""
        self._flush()
        entry = self._any_live()
        if entry is not None:
            entry.epoch += 1
            self._submit(entry)
        return entry is not None

    def _crash(self) -> bool:
        """The engine process dies; whatever it had not delivered is lost."""
        self._boot()
        for entry in self.live.values():
            entry.epoch += 1
            self._submit(entry)
        return True

    def _compile(self) -> bool:
        """What was asked to be compiled is ready, or refused."""
        asked, self.grammars.asked = dict.fromkeys(self.grammars.asked), []
        for grammar in asked:
            error = "too hard" if self.rng.random() < 0.1 else ""
            self.core.handle(self.grammars.finish(grammar, error), self.now)
        return bool(asked)

    def _narrow(self) -> bool:
        """Steps turn out to take longer than they may."""
        self.core.set_token_budget(self.rng.choice([1, 2, 5]))
        return True

    def _widen(self) -> bool:
        self.core.set_token_budget(self.scenario.scheduler.max_num_batched_tokens)
        return True

    def _flush(self) -> None:
        """Deliver what is in the outbox, so that no output of an old epoch is under way."""
        self._step()


def _origin(node: Node) -> tuple[int, bytes]:
    """The first token of a cached block's sequence, and the key that it is cached under."""
    parent = node.parent
    assert parent is not None, "I5: a root holds no block"
    while parent.parent is not None:
        node, parent = parent, parent.parent
    return node.tokens[0], parent.digest


def simulate(seed: int, num_steps: int) -> Counter[str]:
    """Episodes until ``num_steps`` counted steps; event counts by kind.

    Raises:
        SimulationError: naming the seed; ``simulate`` with it fails again.
    """
    rng = Random(seed)
    events: Counter[str] = Counter()
    counted = 0
    thresholds = gc.get_threshold()
    # Episodes leave few cycles behind: look for them rarely.
    gc.set_threshold(100_000, 20, 20)
    try:
        while counted < num_steps:
            counted += Episode(rng, events).run(min(EPISODE_STEPS, num_steps - counted))
    except SimulationError as error:
        raise SimulationError(f"seed {seed}, after {events['steps']} steps: {error}") from error
    finally:
        gc.set_threshold(*thresholds)
    return events


def main() -> None:
    """Run from the command line and print the count of each event kind."""
    parser = argparse.ArgumentParser(description="Simulate the control plane.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=20_000)
    options = parser.parse_args()
    started = process_time()
    events = simulate(options.seed, options.steps)
    spent_s = process_time() - started
    running = events.pop("running") / events["steps"]
    for name, number in sorted(events.items()):
        sys.stdout.write(f"{number:>10}  {name}\n")
    sys.stdout.write(f"{running:>10.1f}  mean running\n")
    sys.stdout.write(f"{events['steps'] / spent_s:>10,.0f}  steps per CPU second\n")


if __name__ == "__main__":
    main()
