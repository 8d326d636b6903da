"""Every invariant of the engine is named when it is broken."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

import pytest

from octavo.config import CacheConfig, SchedulerConfig
from octavo.core.request import BranchOutput, Submit, TokenLogprobs, TokenRun
from octavo.core.sampling_params import SamplingParams
from octavo.engine import EngineCore
from octavo.kv import check_fits
from octavo.kv.block_pool import OwnerKind
from octavo.scheduler import Status
from octavo.testing import (
    EngineDriver,
    FakeRunner,
    FakeRunnerError,
    SimulationError,
    make_info,
    make_request,
)


def driver() -> EngineDriver:
    out = EngineDriver(make_info(block_size=8))
    for name in "ab":
        out.submit(make_request(name, [ord(name)] * 9))
    out.step()
    return out


def empty_request(d: EngineDriver) -> None:
    d.core.requests.states["a"].branches.clear()


def wrong_place(d: EngineDriver) -> None:
    d.core.requests.states["a"].branches[0].status = Status.WAITING


def lost_kv(d: EngineDriver) -> None:
    d.core.requests.states["a"].branches[0].kv = None


def stranger(d: EngineDriver) -> None:
    del d.core.requests.states["a"]


def all_computed(d: EngineDriver) -> None:
    d.core.requests.states["a"].branches[0].token_ids.pop()


def provisional(d: EngineDriver) -> None:
    d.core.scheduler.running[0].kv.num_reserved += 1


def orphan_table(d: EngineDriver) -> None:
    d.core.kv.new_sequence(b"")


def forgotten_lease(d: EngineDriver) -> None:
    d.core.kv.lease_for_step(0, d.core.scheduler.running[0].kv.tables[0].blocks[0], 8)


def foreign_branch(d: EngineDriver) -> None:
    d.core.requests.states["a"].branches[0].branch = 3


def foreign_owner(d: EngineDriver) -> None:
    states = d.core.requests.states
    states["a"].branches[0].state = states["b"]


def wrong_name(d: EngineDriver) -> None:
    states = d.core.requests.states
    states["a"].request = states["b"].request


def forgotten_pin(d: EngineDriver) -> None:
    assert d.core.kv.lookup(d.core.requests.states["a"].digest, [ord("a")] * 9)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (empty_request, "I7: request a has no branch"),
        (wrong_place, "I7: a branch of a is not where"),
        (lost_kv, "I7: a branch of a holds KV"),
        (stranger, "I7: a queue holds a sequence"),
        (foreign_branch, "I7: a branch of a has another owner"),
        (foreign_owner, "I7: a branch of a has another owner"),
        (wrong_name, "I7: a names the request b"),
        (all_computed, "I8: 9 tokens are computed of 9"),
        (provisional, "I4: provisional"),
        (orphan_table, "I10: a block table"),
        (forgotten_lease, "I10: the read leases"),
        (forgotten_pin, "I10: 1 prefix pins"),
    ],
)
def test_damage_is_named(damage: Callable[[EngineDriver], None], words: str) -> None:
    d = driver()
    assert d.core.check_invariants() == []
    damage(d)
    assert any(found.startswith(words) for found in d.core.check_invariants())


def test_leftovers_at_idle_are_named() -> None:
    d = driver()
    d.run()
    d.core.kv.promises.totals[0] += 1
    d.core.scheduler._refusal = "kept"
    found = d.core.check_invariants()
    assert "I10: 1 promises are left at idle" in found
    assert "I10: 1 refusals are left at idle" in found


def test_violations_are_reported_not_fatal() -> None:
    d = driver()
    d.core.kv.promises.totals[0] += 1
    with pytest.raises(SimulationError, match="I6"):
        d.step()
    for _ in range(7):
        d.core.step(d.now)
    assert d.counters["invariant_violations"] > 0
    assert len(d.entries["a"].delivered[0]) == 2


def test_a_write_to_a_shared_block_is_reported_before_it_happens() -> None:
    d = EngineDriver(make_info(block_size=8))
    d.submit(make_request("a", [1] * 9, sampling=SamplingParams(n=1, max_tokens=8)))
    d.step()
    reservation = type(d.core.kv.begin())
    shared = reservation._is_shared
    d.core.kv.fork(d.core.scheduler.running[0].kv)
    reservation._is_shared = lambda self, group, block: False
    try:
        d.core.step(0.0)
    finally:
        reservation._is_shared = shared
    assert any(found.startswith("I3") for found in d.core.violations)


def emitted(change: Callable[[list[BranchOutput], EngineDriver], None]) -> list[str]:
    """What is found when a step's outputs are tampered with before they leave."""
    d = driver()
    emit = d.core._emit

    def tampered(run: TokenRun | None) -> list[BranchOutput]:
        change(d.core._outbox, d)
        return emit(run)

    d.core._emit = tampered
    d.core.step(0.0)
    return d.core.violations


def test_outputs_that_leave_are_held_against_their_branches() -> None:
    def wrong_token(outbox: list[BranchOutput], _: EngineDriver) -> None:
        outbox[0] = replace(outbox[0], token_ids=(outbox[0].token_ids[0] ^ 1,))

    def wrong_epoch(outbox: list[BranchOutput], _: EngineDriver) -> None:
        outbox[0] = replace(outbox[0], epoch=7)

    def repeated(outbox: list[BranchOutput], _: EngineDriver) -> None:
        outbox.append(outbox[0])

    def swallowed(outbox: list[BranchOutput], _: EngineDriver) -> None:
        outbox[0] = replace(outbox[0], token_ids=())

    def stale(outbox: list[BranchOutput], d: EngineDriver) -> None:
        d.core.requests.states["a"].epoch = 1
        outbox[0] = replace(outbox[0], position=9)

    assert emitted(lambda outbox, d: None) == []
    assert emitted(stale) == []
    assert "is not what was accepted" in emitted(wrong_token)[0]
    assert emitted(wrong_epoch) == ["I7: an output of branch 0 of a says epoch 7"]
    assert "do not follow each other" in emitted(repeated)[0]
    assert emitted(swallowed) == ["I8: 2 tokens were accepted, the last said is 1"]


def test_waiting_for_nothing_is_named() -> None:
    """Nothing runs, nothing drains, and yet nobody is admitted."""
    d = EngineDriver(make_info(block_size=8, num_blocks=4))
    hidden = d.core.kv.pools[0].open(OwnerKind.TABLE)
    d.core.kv.pools[0].allocate(hidden, 4)
    d.submit(make_request("a", [1] * 9))
    d.core.step(0.0)
    assert d.core.violations == ["I9: 1 wait, nothing runs or drains, nobody was admitted"]
    lease = d.core.kv.pools[0].open(OwnerKind.LEASE)
    d.core.kv.pools[0].share(lease, d.core.kv.pools[0].held_by(hidden))
    d.core.kv.pools[0].close(hidden)
    d.core.violations.clear()
    d.core.step(0.0)
    assert d.core.violations == []


def test_a_step_that_holds_more_than_there_is_is_found_before_it_runs() -> None:
    d = driver()
    assert check_fits(d.core.kv) == []
    d.core.scheduler.running[0].kv.tables[0].blocks += d.core.kv.pools[0].free_blocks()[:1]
    [found] = check_fits(d.core.kv)
    assert found.startswith("I1: group 0: tables hold 5 blocks, 0 drain and 60 are available")


def test_an_index_that_is_broken_is_found_a_few_steps_later() -> None:
    d = EngineDriver(make_info(block_size=2))
    d.submit(make_request("a", [1] * 9, sampling=SamplingParams(max_tokens=40)))
    for _ in range(3):
        d.step()
    node = next(iter(d.core.kv.index.blocks(0).values()))
    node.attached = False
    for _ in range(8):
        d.core.step(d.now)
    assert any(text.startswith("I5") for text in d.core.violations)


def one_reference_more(d: EngineDriver) -> None:
    d.core.kv.pools[0].refs[held(d)] += 1


def one_lease_more(d: EngineDriver) -> None:
    d.core.kv.pools[0].leases[held(d)] += 1


def one_draining_more(d: EngineDriver) -> None:
    d.core.kv.pools[0].num_draining += 1


def one_free_less(d: EngineDriver) -> None:
    d.core.kv.pools[0]._free.pop(0)


def one_findable_less(d: EngineDriver) -> None:
    d.core.kv.pools[0]._indexed[next(iter(d.core.kv.index.blocks(0)))] = 0


def one_promise_more(d: EngineDriver) -> None:
    d.core.scheduler.running[0].kv.promised[0] += 1


def one_entry_less(d: EngineDriver) -> None:
    d.core.scheduler.running[0].kv.tables[0].blocks.pop(0)


def held(d: EngineDriver) -> int:
    return d.core.scheduler.running[0].kv.tables[0].blocks[0]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (one_reference_more, "I2: group 0: the counts"),
        (one_lease_more, "I2: group 0: the counts"),
        (one_draining_more, "I1: group 0: the number of draining"),
        (one_free_less, "I10: "),
        (one_findable_less, "I5: group 0: index and pool"),
        (one_promise_more, "I6: group 0: promises sum"),
        (one_entry_less, "I10: "),
    ],
)
def test_a_wrong_sum_is_found_in_the_step_itself(
    damage: Callable[[EngineDriver], None], words: str
) -> None:
    """Also in a step that does not count every block again."""
    d = EngineDriver(make_info(block_size=4))
    d.submit(make_request("a", [1] * 9, sampling=SamplingParams(max_tokens=40)))
    for _ in range(9):
        d.step()
    check, thorough = d.core.check_invariants, []

    def spied(**how: bool) -> list[str]:
        thorough.append(how["thorough"])
        return check(**how)

    d.core.check_invariants = spied  # type: ignore[method-assign]
    damage(d)
    with contextlib.suppress(FakeRunnerError):
        d.core.step(d.now)
    assert thorough in ([False], [])
    assert any(found.startswith(words) for found in d.core.violations)


def test_a_request_that_waits_for_no_grammar_must_not_say_so() -> None:
    d = driver()
    assert d.core.check_invariants() == []
    d.core.requests.states["a"].branches[0].status = Status.COMPILING
    assert "I7: 0 requests are held for their grammar, 1 say so" in d.core.check_invariants()


def test_scores_that_nobody_asked_for_are_not_kept() -> None:
    state = driver().core.requests.states["a"]
    state.take_scores(0, (TokenLogprobs(1, -1.0),))
    assert state.scores is None


def test_in_production_the_ledger_is_held_before_a_step_with_other_blocks() -> None:
    """A block is hidden between two steps; the next step that takes one finds out, none before."""
    runner = FakeRunner(make_info(block_size=4))
    core = EngineCore(runner, SchedulerConfig(check_every_n_steps=0), CacheConfig(), epoch=1)
    sampling = SamplingParams(max_tokens=12, seed=1, ignore_eos=True)
    core.handle(Submit(request=make_request("r", (1, 2, 3, 4, 5), sampling=sampling)), 0.0)
    core.step(0.0)
    core.step(0.0)
    core.kv.pools[0]._free.pop(0)
    (seq,) = core.kv.sequences
    while seq.num_computed % 4:
        core.step(0.0)
        assert core.violations == []
    core.step(0.0)
    assert any(text.startswith("I10") for text in core.violations)
