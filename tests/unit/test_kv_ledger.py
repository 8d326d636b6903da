"""The ledger: each term by itself, against its twin, and what it must not miss."""

from __future__ import annotations

from random import Random

import pytest

from kv_rig import ROOT, extend, manager
from octavo.config import CacheConfig, SchedulerConfig
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.engine import EngineCore
from octavo.kv import Account, check_kv, metadata_bytes, take_ledger
from octavo.kv.charges import Charges
from octavo.testing import make_info
from octavo.testing.fake_runner import FakeRunner
from octavo.testing.journal import JournalEntry
from octavo.testing.recount import recount

SLOT = 8  # bytes of one slot in every group of ``manager``


def test_provisional_tokens_are_on_the_ledger() -> None:
    kv = manager()
    seq = kv.new_sequence(ROOT)
    extend(kv, seq, [0, 1, 2])
    step = kv.begin()
    assert step.grow(seq, 3)
    assert step.seal() == []
    ledger = take_ledger(kv)
    assert (ledger.used, ledger.provisional, ledger.tail_waste) == (3 * 8, 3 * 8, 2 * 8)
    assert ledger.accounted == ledger.pool


def test_a_leaked_or_hidden_block_breaks_the_ledger() -> None:
    for hide in (lambda pool: pool._free.pop(), lambda pool: pool._free.append(pool._free[0])):
        kv = manager()
        extend(kv, kv.new_sequence(ROOT), [0])
        hide(kv.pools[0])
        ledger = take_ledger(kv)
        assert ledger.orphan_blocks == 1
        assert ledger.accounted != ledger.pool
        words = " ".join(check_kv(kv))
        assert "I1:" in words
        assert "I10:" in words


def test_bytes_that_do_not_divide_still_sum() -> None:
    kv = manager(block_size=3)
    extend(kv, kv.new_sequence(ROOT), [0])
    kv.groups = (type(kv.groups[0])(block_bytes=100),)
    assert take_ledger(kv).accounted == take_ledger(kv).pool == 1600
    kv.groups = (type(kv.groups[0])(block_bytes=0),)
    assert take_ledger(kv).pool == 16 * 3


def leak_block(kv, seq):
    """Nobody knows it any more."""
    kv.pools[0]._free.pop()


def free_twice(kv, seq):
    kv.pools[0]._free.append(kv.pools[0]._free[0])


def free_held(kv, seq):
    kv.pools[0]._free.append(seq.tables[0].blocks[0])


def hide_in_owner(kv, seq):
    """An owner token holds a block that no table shows."""
    kv.pools[0].allocate(seq.tables[0].owner, 1)


def hide_from_table(kv, seq):
    seq.tables[0].blocks.pop()


def hoard(kv, seq):
    """A table holds a block that none of its positions needs."""
    seq.tables[0].blocks += kv.pools[0].allocate(seq.tables[0].owner, 1)


def lose_computed(kv, seq):
    seq.num_computed -= 5
    seq.num_reserved -= 5


def overpromise(kv, seq):
    seq.promised[0] += 100


def hide_a_sharer(kv, seq):
    """A branch that shares every block with its parent is on no books."""
    del kv.sequences[kv.fork(seq)]


def share_in_secret(kv, seq):
    """A block of two tables looks like one of each."""
    kv.fork(seq)
    kv.pools[0].shared[seq.tables[0].blocks[0]] = 0


def forget_a_cached(kv, seq):
    kv.release(seq)
    kv.pools[0]._cached.remove(kv.pools[0].cached_blocks()[0])


def shrink_draining(kv, seq):
    lease = kv.lease(seq)
    kv.release(seq)
    kv.pools[0].release(lease[0], [])
    del kv.pools[0]._owners[lease[0]]


@pytest.mark.parametrize(
    "damage",
    [leak_block, free_twice, free_held, hide_in_owner, hide_from_table, hoard, lose_computed,
     overpromise, hide_a_sharer, share_in_secret, forget_a_cached,
     shrink_draining],
)  # fmt: skip
def test_a_miscounted_term_breaks_the_ledger(damage) -> None:
    kv = manager()
    seq = kv.new_sequence(ROOT)
    extend(kv, seq, list(range(10)))
    assert check_kv(kv) == []
    damage(kv, seq)
    assert take_ledger(kv).violations()
    assert check_kv(kv)


def test_promises_past_the_free_blocks_rest_on_cached_ones() -> None:
    kv = manager(num_blocks=4)
    gone, seq = kv.new_sequence(ROOT), kv.new_sequence(ROOT)
    extend(kv, gone, list(range(12)))
    kv.release(gone)
    kv.promise(seq, 12, branches=1, fork_at=0)
    ledger = take_ledger(kv)
    assert (ledger.promised, ledger.free, ledger.cached_cold) == (3 * 32, 0, 32)
    assert ledger.accounted == ledger.pool
    assert check_kv(kv) == []


# -- per request and tenant ----------------------------------------------------------------------


def account(tenant: str, request: str) -> Account:
    return Account(tenant, request)


def test_each_request_and_tenant_is_charged_for_what_it_holds() -> None:
    """Five tokens of A, forked; nine of B's; four to a block."""
    kv = manager()
    one, two = account("a", "1"), account("b", "2")
    parent = kv.new_sequence(ROOT, one)
    extend(kv, parent, list(range(5)))
    child = kv.fork(parent)
    other = kv.new_sequence(b"other root", two)
    extend(kv, other, list(range(9)))
    kv.promise(other, 16, branches=1, fork_at=0)
    ledger = take_ledger(kv)
    assert ledger == recount(kv)
    mine = ledger.requests[one]
    assert (mine.used, mine.shared, mine.tail_waste) == (0, 5 * SLOT, 3 * SLOT)
    assert ledger.tenants["a"] == mine
    theirs = ledger.requests[two]
    assert theirs.as_dict() == {
        "used": 9 * SLOT, "shared": 0, "provisional": 0, "tail_waste": 3 * SLOT,
        "promised": 4 * SLOT, "cached_cold": 0,
    }  # fmt: skip
    assert (ledger.used, ledger.shared, ledger.tail_waste) == (9 * SLOT, 5 * SLOT, 6 * SLOT)
    # The child copies the tail to write behind it: the first block stays shared.
    extend(kv, child, [5])
    mine = take_ledger(kv).requests[one]
    assert (mine.used, mine.shared, mine.tail_waste) == (3 * SLOT, 4 * SLOT, 5 * SLOT)
    kv.release(parent)
    kv.release(child)
    ledger = take_ledger(kv)
    assert list(ledger.requests) == [two]
    # Its one full block stays in the cache, and is still the tenant's.
    assert ledger.tenants["a"].cached_cold == ledger.cached_cold == 4 * SLOT
    assert ledger == recount(kv)


def test_behind_a_window_a_request_is_charged_with_what_it_still_holds() -> None:
    kv = manager(windows=(None, 5))
    seq = kv.new_sequence(ROOT, Account("t", "r"))
    for at in range(0, 20, 4):
        extend(kv, seq, list(range(at, at + 4)))
    extend(kv, seq, [20])
    assert [table.first_block for table in seq.tables] == [0, 4]
    ledger = take_ledger(kv)
    assert ledger.requests[seq.account].used == (21 + 5) * SLOT
    assert ledger == recount(kv)


def test_what_two_requests_share_counts_once_for_their_tenant() -> None:
    kv = manager()
    first = kv.new_sequence(ROOT, account("a", "1"))
    extend(kv, first, list(range(9)))
    second = kv.new_sequence(ROOT, account("a", "2"))
    tokens = [*range(8), 90, 91]
    hit = kv.lookup(ROOT, tokens)
    assert hit is not None
    pinned = take_ledger(kv)
    assert pinned == recount(kv)
    assert pinned.tenants[""].shared == 8 * SLOT
    step = kv.begin()
    assert step.admit(second, 2, hit=hit, demand=[3])
    assert step.seal() == []
    flying = take_ledger(kv)
    assert flying == recount(kv)
    assert flying.requests[account("a", "2")].provisional == 2 * SLOT
    kv.commit(second, tokens, 2)
    kv.end_step()
    ledger = take_ledger(kv)
    assert [holding.shared for holding in ledger.requests.values()] == [8 * SLOT, 8 * SLOT]
    assert ledger.tenants["a"].shared == ledger.shared == 8 * SLOT
    assert ledger.tenants["a"].used == ledger.used == 3 * SLOT
    assert ledger == recount(kv)


@pytest.mark.parametrize("length", [2, 5, 14])
@pytest.mark.parametrize("windows", [(None,), (5,)])
def test_a_shared_tail_counts_as_far_as_it_is_filled(length: int, windows) -> None:
    kv = manager(windows=windows)
    seq = kv.new_sequence(ROOT)
    for at in range(length):
        extend(kv, seq, [at])
    kv.fork(seq)
    first = seq.tables[0].first_block * 4
    assert kv.sharing(0).total == (-(-(length - first) // 4), length - first)
    assert take_ledger(kv) == recount(kv)


def test_sharing_is_counted_again_only_when_it_has_changed() -> None:
    kv = manager()
    seq = kv.new_sequence(ROOT)
    extend(kv, seq, [0, 1, 2, 3, 4])
    alone = kv.sharing(0)
    assert alone.total == (0, 0)
    extend(kv, seq, [5])
    assert kv.sharing(0) is alone
    kv.fork(seq)
    shared = kv.sharing(0)
    assert (alone.total.blocks, shared.total.blocks) == (0, 2)
    assert kv.sharing(0) is shared


def test_a_pin_alone_is_nobodys() -> None:
    kv = manager()
    gone = kv.new_sequence(ROOT, account("a", "1"))
    extend(kv, gone, list(range(8)))
    kv.release(gone)
    hit = kv.lookup(ROOT, [*range(8), 9])
    assert hit is not None
    ledger = take_ledger(kv)
    assert ledger == recount(kv)
    assert ledger.requests == {account("", ""): ledger.tenants[""]}
    assert (ledger.used, ledger.cached_cold) == (8 * SLOT, 0)
    assert not ledger.violations()


def test_the_books_grow_with_tables_and_blocks() -> None:
    small, large = manager(num_blocks=16), manager(num_blocks=1600)
    assert metadata_bytes(large) > 10 * metadata_bytes(small) > 0
    before = metadata_bytes(small)
    seq = small.new_sequence(ROOT)
    extend(small, seq, list(range(40)))
    assert metadata_bytes(small) > before
    before = metadata_bytes(small)
    seq.tables[0].blocks += range(1000)
    assert metadata_bytes(small) >= before + 4000
    seq.tables[0].blocks[:] = ()
    before = metadata_bytes(small)
    small.index.blocks(0).update(dict.fromkeys(range(10_000)))
    assert metadata_bytes(small) >= before + 40_000


def test_rows_are_not_equal_to_what_is_none() -> None:
    assert (Charges() == object()) is False
    assert Charges() == Charges()


# -- in flight, under load -----------------------------------------------------------------------


class AuditedRunner(FakeRunner):
    """Holds the engine's ledger against the twin while each step is in flight, and counts."""

    core: EngineCore

    def execute(self, plan):
        ledger = take_ledger(self.core.kv)
        assert ledger == recount(self.core.kv)
        assert not ledger.violations()
        for name, count in ledger.as_dict().items():
            seen[name] = max(seen.get(name, 0), count)
        seen["tenants"] = max(seen.get("tenants", 0), len(ledger.tenants))
        return super().execute(plan)


seen: dict[str, int] = {}


@pytest.mark.parametrize(
    ("block_size", "windows", "policy"),
    [(1, (None,), "estimate"), (3, (None, 5), "optimistic"), (8, (None,), "reserve")],
)
def test_every_step_of_a_busy_engine_sums(block_size: int, windows, policy: str) -> None:
    seen.clear()
    rng = Random(block_size)
    info = make_info(block_size=block_size, num_blocks=200 // block_size, windows=windows)
    runner = AuditedRunner(info)
    scheduler = SchedulerConfig(
        max_num_batched_tokens=16, max_num_seqs=6, policy=policy, check_every_n_steps=0
    )
    core = runner.core = EngineCore(runner, scheduler, CacheConfig(), epoch=1)
    topic = tuple(rng.randrange(40) for _ in range(30))
    for index in range(24):
        request = Request(
            request_id=f"r{index}",
            prompt_token_ids=(*topic[: rng.randint(1, 30)], rng.randrange(40)),
            sampling=SamplingParams(n=rng.choice([1, 1, 3]), max_tokens=rng.randint(1, 20), seed=1),
            tenant=rng.choice("ab"),
        )
        core.handle(JournalEntry(request).submit(), 0.0)
    lease: tuple[int, ...] = ()
    while core.has_work():
        core.step(0.0)
        assert core.ledger() == recount(core.kv)
        core.kv.end_lease(lease)
        lease = (
            core.kv.lease(rng.choice(core.scheduler.running).kv) if core.scheduler.running else ()
        )
    assert core.counters.invariant_violations == 0
    assert seen["tenants"] == 2
    assert [
        name for name in ("used", "shared", "provisional", "cached_cold") if not seen[name]
    ] == []
    assert (block_size == 1) == (seen["tail_waste"] == 0)


def test_a_leak_in_production_is_reported_at_the_next_step() -> None:
    """With no other check on: the ledger is always on."""
    info = make_info(num_blocks=16)
    core = EngineCore(
        FakeRunner(info), SchedulerConfig(check_every_n_steps=0), CacheConfig(), epoch=1
    )
    core.kv.pools[0]._free.pop(0)
    request = Request(
        request_id="r", prompt_token_ids=(1, 2), sampling=SamplingParams(max_tokens=3, seed=1)
    )
    core.handle(JournalEntry(request).submit(), 0.0)
    core.step(0.0)
    assert core.counters.invariant_violations == 2
    assert [text[:3] for text in core.violations] == ["I10", "I10"]
