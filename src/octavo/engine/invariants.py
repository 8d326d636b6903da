"""I1…I10 over the whole engine; those of blocks alone are in ``kv.invariants``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from octavo.core.request import BranchOutput
from octavo.engine.grammar_gate import GrammarGate
from octavo.engine.request_table import RequestTable
from octavo.kv import KVCacheManager, check_copies, check_fits, check_kv, check_sums, check_writes
from octavo.scheduler import ScheduledStep, Scheduler, Sequence, Status


def check_step(kv: KVCacheManager, step: ScheduledStep) -> list[str]:
    """What must hold between reservation and execution: I3, and that it fits (I1)."""
    found: list[str] = []
    for seq, _ in step.rows:
        assert seq.kv is not None
        found += check_writes(kv, seq.kv)
    return found + check_copies(kv, step.plan.copies) + check_fits(kv)


def check_progress(kv: KVCacheManager, scheduler: Scheduler) -> list[str]:
    """I9, after a plan that runs nothing: somebody waits only for what will come by itself."""
    draining = any(pool.num_draining for pool in kv.pools)
    if scheduler.waiting and not scheduler.running and not draining:
        return [f"I9: {len(scheduler.waiting)} wait, nothing runs or drains, nobody was admitted"]
    return []


def check_outputs(outputs: Iterable[BranchOutput], requests: RequestTable) -> list[str]:
    """I7, I8: what leaves is what was accepted, all of it and in order, under its owner's epoch.

    An output of an earlier epoch is the last word of an attempt that was taken back.
    """
    found: list[str] = []
    said: dict[Sequence, int] = {}
    for output in outputs:
        state = requests.states.get(output.request_id)
        seq = state.branches.get(output.branch) if state is not None else None
        if state is None or seq is None or output.epoch < state.epoch:
            continue
        where = f"branch {output.branch} of {output.request_id}"
        if output.epoch > state.epoch:
            found.append(f"I7: an output of {where} says epoch {output.epoch}")
        if said.get(seq, output.position) != output.position:
            found.append(f"I8: the outputs of {where} do not follow each other")
        start = seq.num_prompt + output.position
        said[seq] = output.position + len(output.token_ids)
        if output.token_ids != tuple(seq.token_ids[start : start + len(output.token_ids)]):
            found.append(f"I8: an output of {where} is not what was accepted")
    for seq, end in said.items():
        if end != seq.num_output:
            found.append(f"I8: {seq.num_output} tokens were accepted, the last said is {end}")
    return found


def check_engine(
    kv: KVCacheManager, scheduler: Scheduler, requests: RequestTable, *, thorough: bool
) -> list[str]:
    """Every violated invariant between two steps, in words.

    If not ``thorough``, blocks are not counted again one by one (I1, I2, I5): their sums are. What
    does not agree there never comes to agree again by itself, so whoever checks every step may
    count every few steps and still finds out, a few steps later. At every step, ledger (I10),
    tables against the pool (``check_fits``) and writes (I3) are checked before it runs.
    """
    found = check_kv(kv) if thorough else check_sums(kv)
    found += _states(scheduler, requests)
    found += _coverage(scheduler, kv)
    found += _idle(kv, scheduler, requests)
    return found


def _states(scheduler: Scheduler, requests: RequestTable) -> Iterator[str]:
    """I7: each branch is in exactly the place that its state says."""
    running, waiting = set(scheduler.running), set(scheduler.waiting)
    num_booked, is_running, is_waiting = 0, Status.RUNNING, Status.WAITING
    for request_id, state in requests.states.items():
        if not state.branches:
            yield f"I7: request {request_id} has no branch left but is still booked"
        if state.request.request_id != request_id:
            yield f"I7: {request_id} names the request {state.request.request_id}"
        for branch, seq in state.branches.items():
            if seq.state is not state or seq.branch != branch:
                yield f"I7: a branch of {request_id} has another owner"
            num_booked += seq.status is not Status.COMPILING
            runs, waits = seq.status is is_running, seq.status is is_waiting
            if (seq in running) != runs or (seq in waiting) != waits:
                yield f"I7: a branch of {request_id} is not where its state says"
            if (seq.kv is not None) != runs:
                yield f"I7: a branch of {request_id} holds KV in the wrong state"
    # Each of those booked is in one place: if there are as many in both, nobody else is.
    if len(running) + len(waiting) != num_booked:
        yield "I7: a queue holds a sequence that no request owns"


def _coverage(scheduler: Scheduler, kv: KVCacheManager) -> Iterator[str]:
    """I4, I8: KV is computed for a proper prefix of the tokens; nothing else is on the books."""
    for seq in scheduler.running:
        computed = seq.num_computed
        if not computed < len(seq.token_ids) and not (
            computed == len(seq.token_ids) and seq.has_offer
        ):
            yield f"I8: {computed} tokens are computed of {len(seq.token_ids)}"
        if seq.kv is not None and seq.kv.num_reserved != computed:
            yield "I4: provisional tokens outlived their step"
    if set(map(id, kv.sequences)) != {id(seq.kv) for seq in scheduler.running}:
        yield "I10: a block table is held for no running sequence"
    if kv.num_step_leases:
        yield "I10: the read leases of a step outlived it"
    if kv.num_pins:
        yield f"I10: {kv.num_pins} prefix pins outlived their step"


def check_gate(gate: GrammarGate, requests: RequestTable) -> list[str]:
    """I7, I10: whoever waits for a grammar is booked, and says so."""
    held = sum(
        any(seq.status is Status.COMPILING for seq in state.branches.values())
        for state in requests.states.values()
    )
    if held == gate.num_held:
        return []
    return [f"I7: {gate.num_held} requests are held for their grammar, {held} say so"]


def _idle(kv: KVCacheManager, scheduler: Scheduler, requests: RequestTable) -> Iterator[str]:
    """I10: with no request, every side table is empty."""
    if requests.states:
        return
    tables = {
        "running": len(scheduler.running),
        "waiting": len(scheduler.waiting),
        "fresh": scheduler.waiting.num_fresh,
        "tenants": scheduler.waiting.num_accounts,
        "slots": scheduler.num_slots_taken,
        "tables": len(kv.sequences),
        "deadlines": requests.num_deadlines,
        "promises": sum(kv.promises.totals),
        "refusals": scheduler.num_refusals,
        "steps": scheduler.num_steps,
    }
    for name, size in tables.items():
        if size:
            yield f"I10: {size} {name} are left at idle"
