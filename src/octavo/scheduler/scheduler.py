"""What runs in the next step: one token budget over running and waiting sequences.

    1. running sequences with one token to compute (decodes), oldest first
    2. running sequences with more (prompt chunks, recomputation), oldest first, chunked
    3. waiting sequences, in their turn (``fair_queue``), while budget, seats and blocks last
    4. draft tokens behind decodes, out of what budget and blocks are left; then other paths of
       the same drafts, out of what seats are left too

If a running sequence does not get its blocks, another that would lose least work is preempted
and the plan starts over; a plan that preempted admits nobody. All arithmetic is done first, then
every block is taken in one transaction.

It never thrashes: whoever has run longest stands first in every plan and is never preempted, so
each step computes a token of it, if not a new token of somebody else. The steps between two that
compute something new are fewer than the tokens that one sequence can have.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from operator import ge, le

from octavo.config import SchedulerConfig
from octavo.core.step import BlockCopy, GrammarMask, RowPlan, SlotState, StepPlan
from octavo.kv import KVCacheManager, PrefixHit
from octavo.scheduler.admission import admission_policy
from octavo.scheduler.beam_search import BeamSearch, shared_tokens
from octavo.scheduler.draft_paths import DraftPaths
from octavo.scheduler.fair_queue import HELD_STEPS, FairQueue
from octavo.scheduler.masks import grammar_masks
from octavo.scheduler.scheduled_step import ScheduledStep, SteadyRows, StepDraft
from octavo.scheduler.sequence import Order, RequestState, Sequence, Status
from octavo.scheduler.slots import SlotTable
from octavo.scheduler.speculation import Speculation


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Who was refused at the head of the queue, what it needed and what was to be had."""

    order: Order
    demand: list[int]
    slack: list[int]


@dataclass(slots=True)
class SchedulerCounters:
    """What the scheduler has done since the start."""

    preemptions: int = 0
    recomputed_tokens: int = 0
    refused_reservations: int = 0
    twin_waits: int = 0


class Scheduler:
    """Queues, seats, slots and the token budget. Blocks are asked of ``kv``, never reached into."""

    def __init__(self, config: SchedulerConfig, kv: KVCacheManager) -> None:
        self.config = config
        self.waiting = FairQueue()
        self.running: list[Sequence] = []
        self.policy = admission_policy(config.policy)
        self.counters = SchedulerCounters()
        self.generation = 0
        self.token_budget = config.max_num_batched_tokens
        self._kv = kv
        self._slots = SlotTable(config.max_num_seqs)
        self._refusal: _Refusal | None = None
        self.speculation = Speculation(config.speculate, config.num_draft_tokens)
        self.paths = DraftPaths(kv, self._slots)
        self._last: ScheduledStep | None = None

    # -- membership --------------------------------------------------------------------------

    def add(self, seq: Sequence) -> None:
        """Queue a sequence."""
        self._refusal = None
        seq.status = Status.WAITING
        self.waiting.add(seq)

    def add_fork(self, parent: Sequence, children: list[Sequence]) -> None:
        """Let branches that share ``parent``'s blocks run beside it.

        They go before the parent: each copies the shared tail when it appends, and the parent,
        last, writes in place, so the copies that were promised are the copies that are made.
        """
        at = self.running.index(parent)
        for child in children:
            child.status = Status.RUNNING
        self.running[at:at] = children

    def finish(self, seq: Sequence) -> None:
        """Remove a sequence from wherever it is and let go of all it holds. Idempotent."""
        if seq.status is Status.FINISHED:
            return
        self._refusal = None
        if seq.status is Status.WAITING:
            self.waiting.remove(seq)
        elif seq.status is Status.RUNNING:
            self._stop_running(seq)
        seq.status = Status.FINISHED
        if not self.running and not self.waiting:
            self.waiting.close_accounts()
            self._last = None

    def preempt(self, seq: Sequence) -> None:
        """Take a running sequence's blocks; it keeps its tokens and will be recomputed.

        The sequences of a beam search go together and come back as one that is forked again.
        """
        if seq.state.beam is not None:
            self._preempt_group(seq.state, seq.state.beam)
            return
        seq.num_lost = max(seq.num_lost, seq.num_computed)
        self._stop_running(seq)
        seq.preempted = True
        self.add(seq)
        self.counters.preemptions += 1

    def _preempt_group(self, state: RequestState, search: BeamSearch) -> None:
        lost = max(max(seq.num_lost, seq.num_computed) for seq in state.branches.values())
        for seq in state.branches.values():
            self._stop_running(seq)
            seq.status = Status.FINISHED
        search.withdraw()
        tokens = [*state.request.prompt_token_ids, *shared_tokens(search.beams)]
        root = state.leader
        root.branch = search.beams[0].branch
        root.token_ids = tokens
        root.num_spare = search.width - 1
        root.is_stem = len(search.beams) > 1
        root.num_lost = lost
        root.preempted = True
        state.branches = {root.branch: root}
        self.add(root)
        self.counters.preemptions += 1

    def _stop_running(self, seq: Sequence) -> None:
        self.running.remove(seq)
        self._slots.give_back(seq)
        assert seq.kv is not None
        self._kv.release(seq.kv)
        seq.kv = None

    def resync(self) -> None:
        """Start a new generation: the runner's slots are void and all are sent again."""
        self.generation += 1
        self._slots.reset()
        for seq in self.running:
            seq.slot = -1
            assert seq.kv is not None
            for table in seq.kv.tables:
                table.num_synced = 0

    # -- the plan ----------------------------------------------------------------------------

    def plan(self, step_id: int) -> ScheduledStep | None:
        """The next step with every block reserved, or None if nothing can run now."""
        self.waiting.step = step_id
        last, self._last = self._last, None
        if last is not None and (steady := self._steady(last)) is not None:
            reservation = self._kv.begin() if steady.due else None
            if reservation is None or steady.grow(reservation):
                self._last = last
                copies = reservation.seal() if reservation is not None else []
                if copies is None:
                    self.counters.refused_reservations += 1
                    return None
                last.go_on(step_id, copies, block_size=self._kv.block_size)
                self.waiting.charge_running(steady.service)
                return last
        draft = self._draft()
        if not draft.rows:
            return None
        if self.speculation.propose is not None:
            self._speculate(draft)
        copies = draft.reservation.seal()
        if copies is None:
            self.counters.refused_reservations += 1
            self._withdraw(draft)
            return None
        if draft.admitted:
            self._enter(draft)
        self._last = self._build(step_id, draft, copies)
        return self._last

    def _steady(self, last: ScheduledStep) -> SteadyRows | None:
        """The rows of the last step, if a plan from scratch would be of the same and no others."""
        count = len(self.running)
        if (
            not last.is_plain
            or self.speculation.propose is not None
            or last.plan.generation != self.generation
            or self._slots.freed
            or count > self.token_budget
            or (self.waiting and count not in (self.token_budget, self.config.max_num_seqs))
        ):
            return None
        if last.steady is None:
            last.settle(self.running, turns=1 if self._kv.has_windows else self._kv.block_size)
        steady = last.steady
        return steady if steady is not None and steady.seqs == self.running else None

    def _speculate(self, draft: StepDraft) -> None:
        """Put drafts behind decodes; whatever is verified beside them gets rows of its own."""
        decodes = [seq for seq, _ in draft.rows[: draft.num_decodes] if seq.may_guess]
        if not decodes:
            return
        draft.drafts, detours = self.speculation.drafts(
            decodes,
            draft.reservation,
            num_tokens=self.token_budget - draft.budget,
            budget=draft.budget,
            seats=self.config.max_num_seqs - len(self.running) - len(draft.admitted),
        )
        if detours:
            paths = self.paths.fork(detours, draft.reservation)
            draft.paths += paths
            draft.rows += [(path, 1) for path in paths]
            draft.drafts |= paths

    def _draft(self) -> StepDraft:
        may_admit = True
        while True:
            draft = StepDraft(self._kv.begin(), self.token_budget)
            if self._grow_running(draft):
                break
            may_admit = False
        if may_admit and self.waiting and draft.budget and not self._is_head_blocked(draft):
            self._admit_waiting(draft)
        return draft

    def _grow_running(self, draft: StepDraft) -> bool:
        """Add rows for running sequences; False if one was preempted, so that we start over."""
        # Hot: once per sequence and step.
        grow, rows, budget = draft.reservation.grow, draft.rows, draft.budget
        for seq in self.running:
            kv = seq.kv
            assert kv is not None, "I7: a running sequence has KV"
            wanted = len(seq.token_ids) - kv.num_computed
            if wanted > 1:
                draft.prefilling.append(seq)
            elif wanted and len(rows) < budget:
                if grow(kv, 1):
                    rows.append((seq, 1))
                elif self._preempt_one():
                    return False
        draft.budget = budget - len(rows)
        draft.num_decodes = len(rows)
        return all(self._grow_chunk(draft, seq) for seq in draft.prefilling)

    def _grow_chunk(self, draft: StepDraft, seq: Sequence) -> bool:
        """Add as much of ``seq`` as budget and blocks allow; False if one was preempted."""
        kv = seq.kv
        assert kv is not None
        wanted = count = min(len(seq.token_ids) - kv.num_computed, draft.budget, seq.max_chunk)
        while count and not draft.reservation.grow(kv, count):
            count //= 2
        if count:
            draft.rows.append((seq, count))
            draft.budget -= count
        return count > 0 or wanted == 0 or not self._preempt_one()

    def _preempt_one(self) -> bool:
        """Preempt whoever loses least, the youngest of equals, but never who has run longest."""
        first = self.running[0].state
        others = [
            seq for seq in self.running[:0:-1] if first.beam is None or seq.state is not first
        ]
        if not others:
            return False
        victim = min(others, key=self._cost)
        self.preempt(victim)
        return True

    def _cost(self, seq: Sequence) -> tuple[bool, int]:
        """(it frees no block, tokens that it would have to compute again)."""
        assert seq.kv is not None, "I7: a running sequence has KV"
        if seq.state.beam is not None:
            return False, self._group_cost(seq.state)
        num_freed, num_lost = self._kv.private_part(seq.kv)
        return num_freed == 0, num_lost

    def _group_cost(self, state: RequestState) -> int:
        """Tokens of the longest of a group, and what the others hold for themselves."""
        group = state.branches.values()
        lost = [self._kv.private_part(seq.kv)[1] for seq in group if seq.kv is not None]
        return max(seq.num_computed for seq in group) + sum(lost) - max(lost)

    # -- admission ---------------------------------------------------------------------------

    def _is_head_blocked(self, draft: StepDraft) -> bool:
        """Whether the head was refused when it needed no more, and had no less, than now.

        This saves a look-up per step while the pool is full. Whatever ends or arrives voids it,
        and with nothing running the head is always tried again (I9).
        """
        refusal = self._refusal
        if refusal is None or not self.running:
            return False
        head = self.waiting.head()
        if refusal.order != head.order:
            return False
        demand = self._kv.promises.demand(*self._promise(head))
        return all(map(ge, demand, refusal.demand)) and all(
            map(le, draft.reservation.slack(), refusal.slack)
        )

    def _admit_waiting(self, draft: StepDraft) -> None:
        self._admit_in_turn(draft)
        self.waiting.put_back()

    def _admit_in_turn(self, draft: StepDraft) -> None:
        seats = self.config.max_num_seqs - sum(seq.num_seats for seq in self.running)
        passed = 0
        while (seq := self.waiting.take()) is not None:
            if seq.num_seats > seats or not draft.budget or passed > self.config.max_num_seqs:
                return
            # Whoever wants the prompt's logprobs computes all of it.
            scores = seq.state.scores is not None
            hit = None if scores else self._kv.lookup(seq.state.digest, seq.token_ids)
            if not scores and self._twin_is_computing(draft, seq, hit.length if hit else 0):
                self.counters.twin_waits += 1
                passed += 1
                if hit is not None:
                    self._kv.unpin(hit)
                continue
            if not self._admit(draft, seq, hit):
                demand = self._kv.promises.demand(*self._promise(seq))
                self._refusal = _Refusal(seq.order, demand, draft.reservation.slack())
                return
            seats -= seq.num_seats

    def _twin_is_computing(self, draft: StepDraft, seq: Sequence, num_cached: int) -> bool:
        """Whether the next block of ``seq`` is being computed by a running sequence now.

        Waiting for its commit computes the shared part once.
        """
        size = self._kv.block_size
        end = (num_cached // size + 1) * size
        if end > len(seq.token_ids):
            return False
        return any(
            twin.state.digest == seq.state.digest
            and twin.kv is not None
            and twin.kv.publishing
            and twin.kv.num_computed < end <= len(twin.token_ids)
            and twin.token_ids[:end] == seq.token_ids[:end]
            for twin in draft.prefilling
        )

    def _admit(self, draft: StepDraft, seq: Sequence, hit: PrefixHit | None) -> bool:
        """Reserve a chunk and promise growth, or leave ``seq`` waiting."""
        kv = self._kv.new_sequence(seq.state.digest, seq.state.account)
        demand = self._kv.promises.demand(*self._promise(seq))
        while True:
            num_cached = hit.length if hit else 0
            count = min(len(seq.token_ids) - num_cached, draft.budget, seq.max_chunk)
            if draft.reservation.admit(kv, count, hit=hit, demand=demand):
                break
            if hit is None or hit.length % self._kv.block_size == 0:
                if hit is not None:
                    self._kv.unpin(hit)
                self._kv.release(kv)
                return False
            # The block that a partial hit copies from costs one more block: do without it.
            hit = self._kv.shorten(hit, seq.state.digest, seq.token_ids)
        seq.kv = kv
        draft.rows.append((seq, count))
        draft.budget -= count
        draft.admitted.append((seq, hit))
        draft.prefilling.append(seq)
        self.waiting.admitted(seq, _unpaid_tokens(seq, hit))
        return True

    def _promise(self, seq: Sequence) -> tuple[int, int, int]:
        """(target tokens, spare branches, fork position) that the policy promises ``seq``.

        Spare branches are forked where its known tokens end. The last token's KV is never written,
        hence "- 1".
        """
        state = seq.state
        output = self.policy.output_tokens(state.request.tenant, state.max_output)
        target = max(len(seq.token_ids), seq.num_prompt + output - 1)
        spare = seq.num_spare if self.policy.promises_branches and output > 1 else 0
        return target, spare, len(seq.token_ids)

    def _withdraw(self, draft: StepDraft) -> None:
        """The reservation was refused: whoever was to be admitted keeps waiting."""
        self.paths.drop(draft.paths)
        for seq, hit in draft.admitted:
            if hit is not None:
                self._kv.unpin(hit)
            self.waiting.refund(seq, _unpaid_tokens(seq, hit))
            assert seq.kv is not None
            self._kv.release(seq.kv)
            seq.kv = None

    def _enter(self, draft: StepDraft) -> None:
        """Move admitted sequences from the queue to the running."""
        for seq, hit in draft.admitted:
            self.waiting.remove(seq)
            seq.status = Status.RUNNING
            self.running.append(seq)
            num_cached = hit.length if hit else 0
            kv = seq.kv
            assert kv is not None, "I7: a running sequence has KV"
            target, spare, fork_at = self._promise(seq)
            self._kv.promise(kv, target, branches=1 + spare, fork_at=fork_at)
            if seq.is_fresh:
                seq.state.num_cached_tokens = num_cached
                self._kv.num_query_tokens += len(seq.token_ids)
                self._kv.num_hit_tokens += num_cached
        self._kv.shed_promises()

    # -- from rows to a plan -----------------------------------------------------------------

    def _build(self, step_id: int, draft: StepDraft, copies: list[BlockCopy]) -> ScheduledStep:
        new_slots: list[SlotState] = []
        row_plans: list[RowPlan] = []
        masks: list[GrammarMask] = []
        service: dict[str, int] = defaultdict(int)
        all_drafts = draft.drafts
        answering, is_plain = [], not all_drafts
        # Hot: once per row and step.
        for index, (seq, count) in enumerate(draft.rows):
            kv, tokens, state = seq.kv, seq.token_ids, seq.state
            assert kv is not None, "I7: a running sequence has KV"
            if seq.slot < 0:
                self._slots.take(seq)
                new_slots.append(seq.slot_state())
            start = kv.num_computed
            end = start + count
            drafts = all_drafts.get(seq, ()) if all_drafts else ()
            num_samples = seq.num_samples if end == len(tokens) else 0
            if seq.grammar is not None and end == len(tokens):
                masks += grammar_masks(seq.grammar, drafts, row=index, offset=count - 1)
            if start < seq.num_lost:
                self.counters.recomputed_tokens += min(end, seq.num_lost) - start
            service[state.request.tenant] += (num_samples + len(drafts)) * HELD_STEPS + end
            fresh = (tokens[start],) if count == 1 else tuple(tokens[start:end])
            row = RowPlan(seq.slot, start, fresh, (), num_samples)
            for table in kv.tables:
                if table.num_synced != len(table.blocks):
                    row.tables = kv.take_updates(self._kv.block_size)
                    break
            if state.scores is not None:
                row.num_scored = seq.num_scored(start, end)
            if drafts:
                self.speculation.put(row, drafts)
            if num_samples or row.num_scored:
                answering.append(index)
                is_plain &= num_samples == 1 and not row.num_scored and state.beam is None
            row_plans.append(row)
        self.waiting.charge_running(service)
        plan = StepPlan(
            step_id=step_id,
            generation=self.generation,
            rows=tuple(row_plans),
            new_slots=tuple(new_slots),
            freed_slots=self._slots.take_freed(),
            copies=tuple(copies),
            grammar_masks=tuple(masks),
        )
        return ScheduledStep(plan, draft.rows, answering, is_plain, draft.paths)

    @property
    def num_refusals(self) -> int:
        """Remembered refusals (0 when idle)."""
        return int(self._refusal is not None)

    @property
    def num_steps(self) -> int:
        """Remembered steps (0 when idle)."""
        return int(self._last is not None)

    @property
    def num_slots_taken(self) -> int:
        """Row slots in use (0 when idle)."""
        return self._slots.num_taken


def _unpaid_tokens(seq: Sequence, hit: PrefixHit | None) -> int:
    """What admitting ``seq`` costs its tenant: to be preempted, and computed again, is not paid."""
    return 0 if seq.preempted else len(seq.token_ids) - (hit.length if hit else 0)
