"""The engine: a pure step function over requests, scheduler, KV and a runner.

    events ─► plan ─► execute ─► commit ─► emit

It reads no clock, starts no thread and does no I/O: time comes in with each call, and whoever
owns the engine calls it from one thread.
"""

from __future__ import annotations

from octavo.config import CacheConfig, SchedulerConfig
from octavo.core.grammar import NOT_ALLOWED, GrammarReady, GrammarSource
from octavo.core.request import (
    Abort,
    BranchOutput,
    Event,
    FinishReason,
    StopBranch,
    Submit,
    TokenRun,
)
from octavo.core.runner import Runner
from octavo.core.step import StepResult
from octavo.engine.dump import KVSnapshot, describe_requests, snapshot_kv
from octavo.engine.grammar_gate import GrammarGate, dead_end
from octavo.engine.invariants import (
    check_engine,
    check_gate,
    check_outputs,
    check_progress,
    check_step,
)
from octavo.engine.request_table import RequestTable, final_outputs, refusal
from octavo.engine.stats import EngineCounters, EngineStats
from octavo.engine.token_commit import TokenCommitter, finish_reason, validate_result
from octavo.errors import (
    DeadlineExceededError,
    EngineError,
    InvalidRequestError,
    OctavoError,
    OverloadedError,
)
from octavo.kv import KVCacheManager, Ledger, metadata_bytes, take_ledger
from octavo.scheduler import RequestState, ScheduledStep, Scheduler, Sequence, Status

THOROUGH_EVERY_N_STEPS = 8


class EngineCore:
    """One engine core. ``epoch`` identifies this life of it to its frontends."""

    def __init__(
        self,
        runner: Runner,
        scheduler_config: SchedulerConfig,
        cache_config: CacheConfig,
        *,
        epoch: int,
        grammars: GrammarSource | None = None,
    ) -> None:
        self.epoch = epoch
        self.progress = 0
        self.last_fault: BaseException | None = None
        self.violations: list[str] = []
        self._runner = runner
        self._info = runner.info
        self._config = scheduler_config
        self.kv = KVCacheManager(
            self._info,
            prefix_cache=cache_config.prefix_cache,
            max_chunk=scheduler_config.max_num_batched_tokens,
        )
        self.scheduler = Scheduler(scheduler_config, self.kv)
        self.requests = RequestTable(
            self._info, self.kv, max_num_seqs=scheduler_config.max_num_seqs
        )
        self.counters = EngineCounters()
        self.gate = GrammarGate(grammars)
        self._committer = TokenCommitter(self.kv, self.scheduler)
        self._outbox: list[BranchOutput] = []
        self._step_id = 0
        # Whether the checks of this step are due.
        self._is_due = scheduler_config.check_every_n_steps > 0
        self._num_counted_changes = -1

    # -- the step ----------------------------------------------------------------------------

    def step(self, now: float) -> list[BranchOutput]:
        """Run one step and return what it gave to whom (outcomes of events included)."""
        outputs, run = self.advance(now)
        return outputs if run is None else outputs + run.outputs()

    def advance(self, now: float) -> tuple[list[BranchOutput], TokenRun | None]:
        """As ``step``, but the tokens of rows that go on as they were come in one piece."""
        for state in self.requests.expired(now):
            self._expire(state)
        run = None
        step = self._plan()
        if step is not None:
            result = self._execute(step)
            if result is not None:
                run = self._commit(step, result)
        return self._emit(run), run

    def has_work(self) -> bool:
        """Whether ``step`` has anything to do or to say."""
        return bool(self._outbox or len(self.requests.states) > self.gate.num_held)

    def _plan(self) -> ScheduledStep | None:
        refused = self.scheduler.counters.refused_reservations
        step = self.scheduler.plan(self._step_id + 1)
        was_refused = self.scheduler.counters.refused_reservations > refused
        if step is None and not was_refused and self._config.check_every_n_steps:
            self._report(check_progress(self.kv, self.scheduler))
        return step

    def _execute(self, step: ScheduledStep) -> StepResult | None:
        """Run the plan; None when the runner failed and the step's requests were dropped."""
        self._step_id = step.plan.step_id
        every = self._config.check_every_n_steps
        self._is_due = every > 0 and self._step_id % every == 0
        if self._is_due:
            self._report(check_step(self.kv, step))
        self._check_ledger()
        try:
            result = self._runner.execute(step.plan)
            validate_result(step, result, self._info.vocab_size)
        except BaseException as fault:
            self._drop_step(step, fault)
            if isinstance(fault, Exception):
                return None
            raise
        self.progress = result.progress
        return result

    def _check_ledger(self) -> None:
        """I10, at every step before which a block changed hands, and whenever a check is due.

        Tokens written to a block that was there before move bytes between the terms of one owner
        and leave the sum alone.
        """
        num_changes = self.kv.num_changes
        if num_changes != self._num_counted_changes or self._is_due:
            self._num_counted_changes = num_changes
            self._report(take_ledger(self.kv).violations())

    def _commit(self, step: ScheduledStep, result: StepResult) -> TokenRun | None:
        """Count computed tokens, append samples, end what ended."""
        # First of all: a source that is read must not be let go of after what comes before it.
        if step.plan.copies:
            self.kv.end_step()
        run = self._committer.go_on(step, result.token_ids)
        if run is None:
            self._commit_rows(step, result)
        else:
            self.counters.computed_tokens += len(run.token_ids)
            self.counters.generation_tokens += len(run.token_ids)
        self.counters.steps += 1
        if self._is_due:
            every = max(self._config.check_every_n_steps, THOROUGH_EVERY_N_STEPS)
            self._report(self.check_invariants(thorough=self._step_id % every == 0))
        return run

    def _commit_rows(self, step: ScheduledStep, result: StepResult) -> None:
        """Row by row.

        Requests whose row failed go first: nothing that they computed becomes findable.
        """
        failed: dict[RequestState, list[str]] = {}
        for row in result.rows:
            if row.failed:
                seq = step.rows[row.row][0]
                failed.setdefault(seq.state, []).append(dead_end(seq, row))
        for state, causes in failed.items():
            self._drop_failed(state, causes)
        self._committer.commit_kv(step)
        num_tokens = step.plan.num_tokens
        self.counters.computed_tokens += num_tokens
        if num_tokens > len(step.rows):
            counts = [count for _, count in step.rows]
            self.counters.mixed_steps += 0 < counts.count(1) < len(counts)
        outputs = self._committer.accept(step, result)
        self.counters.generation_tokens += sum([len(output.token_ids) for output in outputs])
        self._outbox += outputs
        for output in outputs:
            if output.finish_reason is not None:
                self._end_output(output)

    def _drop_failed(self, state: RequestState, causes: list[str]) -> None:
        """One request could not be sampled; its neighbours in the step are none the worse.

        ``causes`` are what its rows' grammars say, "" where there is none. A limit that a grammar
        met is the client's error. Else its KV may be full of NaN, so whatever is cached of it goes
        too: an identical request computes its prompt anew.
        """
        asked = state.request.sampling.grammar
        error: OctavoError
        if asked is not None and not {"", NOT_ALLOWED} & set(causes):
            self.counters.requests_refused += 1
            error = InvalidRequestError(causes[0], param=asked.field)
        else:
            self.kv.distrust(state.digest, state.request.prompt_token_ids)
            self.counters.requests_failed += 1
            unsampled = "no token could be sampled: every allowed logit is NaN or -inf"
            error = EngineError(max(causes) or unsampled)
        code = error.code or error.error_type
        self._outbox += final_outputs(
            state, FinishReason.ERROR, error=error.message, code=code, param=error.param
        )
        self._discard(state)

    def _emit(self, run: TokenRun | None) -> list[BranchOutput]:
        outputs, self._outbox = self._outbox, []
        if self._is_due:
            said = outputs if run is None else outputs + run.outputs()
            self._report(check_outputs(said, self.requests))
        return outputs

    def _drop_step(self, step: ScheduledStep, fault: BaseException) -> None:
        """A step failed: end its requests by name and void the runner's slots.

        Nothing that the step wrote was published, so the other sequences' blocks stay good.
        """
        self.last_fault = fault
        self.counters.failed_steps += 1
        self.kv.end_step()
        self.scheduler.paths.drop(step.paths)
        for state in dict.fromkeys(seq.state for seq, _ in step.rows):
            self.counters.requests_failed += 1
            error = EngineError("a step of the engine failed; the request was dropped")
            self._drop(state, FinishReason.ERROR, error=error.message, code=EngineError.code)
        self.scheduler.resync()

    # -- events ------------------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> None:
        """Take one event; what it causes is emitted by the next step."""
        if isinstance(event, Submit):
            self._submit(event, now)
        elif isinstance(event, Abort):
            self._abort(event)
        elif isinstance(event, GrammarReady):
            self._grammar_ready(event)
        else:
            self._stop_branch(event)

    def _submit(self, submit: Submit, now: float) -> None:
        request = submit.request
        known = self.requests.states.get(request.request_id)
        if known is not None:
            if submit.epoch <= known.epoch:
                self.counters.duplicate_submits += 1
                return
            self._discard(known)
        try:
            if not submit.resumes and self.scheduler.waiting.is_full(
                request.tenant, self._config.max_waiting, held=self.gate.tenants()
            ):
                raise OverloadedError(
                    f"{self._config.max_waiting} requests are waiting, the limit (max_waiting); "
                    "retry later"
                )
            if request.deadline is not None and request.deadline <= now:
                raise DeadlineExceededError("the deadline had passed when the request arrived")
            max_output = self.requests.check(request)
        except OctavoError as error:
            self.counters.requests_refused += 1
            self._outbox += refusal(submit, error)
            return
        num_cached = known.num_cached_tokens if known is not None else 0
        state = self.requests.enter(submit, max_output, num_cached=num_cached)
        self.counters.requests += 1
        self.counters.prompt_tokens += state.num_prompt_tokens
        self._enter(state)

    def _grammar_ready(self, event: GrammarReady) -> None:
        """Let in, or refuse, whoever waited for a grammar."""
        for state in self.gate.take(event):
            if event.error:
                self._refuse(state, InvalidRequestError(event.error, param=event.grammar.field))
            else:
                self._enter(state)

    def _refuse(self, state: RequestState, error: OctavoError) -> None:
        """End a booked request that turned out to be impossible."""
        self.counters.requests_refused += 1
        self._outbox += refusal(state.submit, error)
        self._discard(state)

    def _enter(self, state: RequestState) -> None:
        """Queue a request's sequences; a resumed branch may turn out to have ended already."""
        try:
            if not self.gate.admits(state):
                return
        except OctavoError as error:
            self._refuse(state, error)
            return
        for seq in list(state.branches.values()):
            reason = finish_reason(seq) if seq.num_output else None
            if reason is None:
                self.scheduler.add(seq)
            else:
                seq.status = Status.FINISHED
                self._conclude(seq, reason)
        if not state.branches and state.request.request_id in self.requests.states:
            self.requests.leave(state.request.request_id)

    def _abort(self, event: Abort) -> None:
        state = self.requests.states.get(event.request_id)
        if state is not None:
            self.counters.requests_aborted += 1
            self._drop(state, FinishReason.ABORT, error=event.reason, code="cancelled")

    def _stop_branch(self, event: StopBranch) -> None:
        """End one branch. One without tokens, or ended already, has nothing to stop.

        Nor has a beam search, which says nothing before its end.
        """
        state = self.requests.states.get(event.request_id)
        if state is None or state.beam is not None:
            return
        seq = state.branches.get(event.branch)
        if seq is not None and seq.num_output:
            self.counters.branches_stopped += 1
            self._conclude(seq, FinishReason.STOP)

    def _expire(self, state: RequestState) -> None:
        """End a request whose deadline has passed, in whatever state it is."""
        self.counters.requests_expired += 1
        message = (
            "the deadline (timeout, at most --request-timeout) passed before the request finished; "
            "ask for fewer tokens or send a longer timeout"
        )
        code = DeadlineExceededError.code or ""
        self._drop(state, FinishReason.ABORT, error=message, code=code)

    # -- endings -----------------------------------------------------------------------------

    def _conclude(self, seq: Sequence, reason: FinishReason) -> None:
        """End a branch without a new token."""
        state = seq.state
        stopped = reason is FinishReason.STOP and seq.token_ids[-1] in state.stop_ids
        self._outbox.append(
            BranchOutput(
                request_id=state.request.request_id,
                branch=seq.branch,
                epoch=state.epoch,
                position=seq.num_output,
                finish_reason=reason,
                stop_token_id=seq.token_ids[-1] if stopped else None,
                num_cached_tokens=state.num_cached_tokens,
            )
        )
        self._end_branch(state, seq)

    def _end_output(self, output: BranchOutput) -> None:
        """A branch ended with ``output``; a beam search ends with the first of its own."""
        state = self.requests.states.get(output.request_id)
        if state is None:
            return
        if state.beam is None:
            self._end_branch(state, state.branches[output.branch])
            return
        self.counters.requests_finished += 1
        for found in state.beam.hypotheses:
            num_output = len(found.token_ids)
            self.scheduler.policy.observe(state.request.tenant, state.max_output, num_output)
        self._discard(state)

    def _end_branch(self, state: RequestState, seq: Sequence) -> None:
        """Release one branch; the request leaves with its last."""
        self.scheduler.finish(seq)
        self.scheduler.policy.observe(state.request.tenant, state.max_output, seq.num_output)
        del state.branches[seq.branch]
        if not state.branches:
            self.counters.requests_finished += 1
            self.gate.forget(state)
            self.requests.leave(state.request.request_id)

    def _drop(self, state: RequestState, reason: FinishReason, *, error: str, code: str) -> None:
        """End every branch of a request with an outcome that says why."""
        self._outbox += final_outputs(state, reason, error=error, code=code)
        self._discard(state)

    def _discard(self, state: RequestState) -> None:
        """Release all of a request, silently."""
        for seq in state.branches.values():
            self.scheduler.finish(seq)
        state.branches.clear()
        self.gate.forget(state)
        self.requests.leave(state.request.request_id)

    # -- what can be seen --------------------------------------------------------------------

    def stats(self) -> EngineStats:
        """A snapshot for metrics."""
        kv, scheduler = self.kv, self.scheduler
        ledger = take_ledger(kv)
        counters = self.counters.as_dict() | self._committer.drafts.as_dict()
        counters |= {
            "preemptions": scheduler.counters.preemptions,
            "recomputed_tokens": scheduler.counters.recomputed_tokens,
            "refused_reservations": scheduler.counters.refused_reservations,
            "twin_waits": scheduler.counters.twin_waits,
            "forks": self._committer.num_forks + self._committer.beams.num_forks,
            "beam_steps": self._committer.beams.num_advances,
            "beam_splits": self._committer.beams.num_splits,
            "cow_copies": kv.num_cow_copies,
            "partial_hits": kv.num_partial_hits,
            "prefix_query_tokens": kv.num_query_tokens,
            "prefix_hit_tokens": kv.num_hit_tokens,
            "evicted_blocks": sum(pool.num_evicted for pool in kv.pools),
            "promises_shed": kv.promises.num_shed,
        }
        gauges = {f"kv_bytes_{name}": float(value) for name, value in ledger.as_dict().items()}
        gauges["orphan_blocks"] = gauges.pop("kv_bytes_orphan_blocks")
        recomputed = scheduler.counters.recomputed_tokens
        gauges["recompute_tax"] = recomputed / max(1, self.counters.computed_tokens)
        gauges["kv_metadata_bytes"] = float(metadata_bytes(kv))
        gauges["kv_usage"] = (ledger.held + ledger.draining) / ledger.pool
        return EngineStats(
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting) + self.gate.num_held,
            counters=counters,
            gauges=gauges,
        )

    def ledger(self) -> Ledger:
        """Where every byte of the pool is."""
        return take_ledger(self.kv)

    def debug_kv(self) -> KVSnapshot:
        """Every block's state and holders, copied between two steps."""
        return snapshot_kv(self.kv, self.requests.states)

    def debug_requests(self) -> dict[str, object]:
        """Every live request and its branches, as plain values (no token ids)."""
        return describe_requests(self.requests.states)

    def set_token_budget(self, num_tokens: int) -> None:
        """Bound the tokens of later steps, within the configured maximum; no answer changes."""
        limit = self._config.max_num_batched_tokens
        self.scheduler.token_budget = max(1, min(num_tokens, limit))

    def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes; running requests are not disturbed."""
        self.kv.reset_prefix_cache()

    def check_invariants(self, *, thorough: bool = True) -> list[str]:
        """I1…I10 (see ``check_engine``); every violation as a sentence."""
        found = check_engine(self.kv, self.scheduler, self.requests, thorough=thorough)
        if thorough:
            found += check_gate(self.gate, self.requests)
        return found

    def _report(self, violations: list[str]) -> None:
        """Count and keep violations: in production they are reported, not fatal."""
        if violations:
            self.counters.invariant_violations += len(violations)
            self.violations = (self.violations + violations)[-100:]
