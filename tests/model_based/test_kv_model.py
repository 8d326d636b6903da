"""The KV manager against the seed's own model, under arbitrary sequences of operations."""

from __future__ import annotations

from copy import deepcopy

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from model_based.kv_world import TENANTS, KVWorld
from octavo.kv import check_kv, common_prefix_length, take_ledger
from octavo.testing.recount import recount

BLOCK_SIZES = (1, 2, 3, 8, 16, 32)
tokens_of = st.lists(st.integers(1, 2), min_size=1, max_size=40)


class KVMachine(KVWorld, RuleBasedStateMachine):
    """What may happen to the branches of a world."""

    branches = Bundle("branches")
    leases = Bundle("leases")
    groups = Bundle("groups")

    @initialize(
        target=branches,
        tokens=tokens_of,
        block_size=st.sampled_from(BLOCK_SIZES),
        num_blocks=st.integers(3, 24),
        prefix_cache=st.booleans(),
    )
    def start(self, tokens: list[int], block_size: int, num_blocks: int, prefix_cache: bool) -> str:
        self.build(block_size, num_blocks, prefix_cache=prefix_cache)
        name = self.add_branch()
        self.extend_together([(name, tokens)])
        return name

    # -- rules -------------------------------------------------------------------------------

    @rule(target=branches)
    def add(self) -> str:
        return self.add_branch()

    @rule(name=branches, tokens=tokens_of, accepted=st.integers(0, 40))
    def append(self, name: str, tokens: list[int], accepted: int) -> None:
        step = self.kv.begin()
        fits = step.grow(self.sequences[name], len(tokens))
        saved = deepcopy((self.oracle.data, self.oracle.tables))
        expected = self.oracle.append(name, tokens)
        if self.num_leases == 0:
            assert fits == expected or (self.prefix_cache and fits)
        if not fits:
            self.oracle.data, self.oracle.tables = saved
            return
        if not expected:
            self.expect(name, tokens)
        copies = step.seal()
        assert copies is not None
        self.execute(copies, [(name, tokens, min(accepted, len(tokens)))])

    @rule(name=branches, target_tokens=st.integers(1, 60))
    def promise(self, name: str, target_tokens: int) -> None:
        self.kv.promise(self.sequences[name], target_tokens, branches=1, fork_at=0)
        self.kv.shed_promises()

    @rule(
        names=st.lists(branches, min_size=1, max_size=3, unique=True),
        num_drafts=st.integers(1, 40),
        accepted=st.integers(0, 40),
    )
    def verify(self, names: list[str], num_drafts: int, accepted: int) -> None:
        """One token each, and drafts behind it as far as nobody else was promised the blocks."""
        step, size = self.kv.begin(), self.kv.block_size
        names = [name for name in names if step.grow(self.sequences[name], 1)]
        lacking = max(0, -step.slack()[0])
        work = []
        for name in names:
            end = self.sequences[name].num_computed + 1
            count = step.extend(self.sequences[name], end, num_drafts)
            assert count == num_drafts or (end + count) % size == 0
            work.append((name, [1] * (1 + count), 1 + min(accepted, count)))
        assert -step.slack()[0] <= lacking, "drafts took what was promised to others"
        copies = step.seal()
        assert copies is not None
        for name, tokens, _ in work:
            assert self.sequences[name].num_reserved == self.sequences[name].num_computed + len(
                tokens
            )
            self.expect(name, tokens)
        self.execute(copies, work)

    def fork_paths(self, step, trunk: str, paths: list[list[int]]) -> list[tuple[str, list[int]]]:
        """A fork per path, as far as nobody else was promised the blocks."""
        lacking, work = max(0, -step.slack()[0]), []
        for tokens in paths:
            name, fork = self.name(), self.kv.fork(self.sequences[trunk])
            if step.grow_path(fork, len(tokens)):
                self.sequences[name] = fork
                self.oracle.fork(trunk, name)
                work.append((name, tokens))
            else:
                self.kv.release(fork)
        assert -step.slack()[0] <= lacking, "paths took what was promised to others"
        return work

    @rule(
        trunk=branches,
        paths=st.lists(tokens_of, min_size=1, max_size=3),
        best=st.integers(0, 3),
        num_drafts=st.integers(0, 9),
        accepted=st.integers(0, 40),
        is_refused=st.booleans(),
    )
    def grow_tree(
        self,
        trunk: str,
        paths: list[list[int]],
        *,
        best: int,
        num_drafts: int,
        accepted: int,
        is_refused: bool,
    ) -> None:
        """One token, and other continuations of it in forks that end with the step."""
        step, pool = self.kv.begin(), self.kv.pools[0]
        before = [list(pool.refs), list(self.kv.promises.totals)]
        if not step.grow(self.sequences[trunk], 1):
            return
        end = self.sequences[trunk].num_computed + 1
        own = [1] * (1 + step.extend(self.sequences[trunk], end, num_drafts))
        work = [(trunk, own), *self.fork_paths(step, trunk, paths)]
        allocate = pool.allocate
        if is_refused:
            pool.allocate = lambda owner, count: None
        copies = step.seal()
        pool.allocate = allocate
        if copies is None:
            for name, _ in work[1:]:
                self.kv.release(self.sequences.pop(name))
                self.oracle.release(name)
            assert [list(pool.refs), list(self.kv.promises.totals)] == before
            return
        for name, tokens in work[1:] + work[:1]:
            self.expect(name, tokens)
        self.copy(copies)
        for name, tokens in work:
            self.write(self.sequences[name], tokens)
        ledger = take_ledger(self.kv)
        assert ledger == recount(self.kv)
        name, tokens = work[best % len(work)]
        seq = self.sequences[trunk]
        if name != trunk:
            self.kv.adopt(seq, self.sequences[name])
            self.oracle.tables[trunk], self.oracle.tables[name] = (
                self.oracle.tables[name],
                self.oracle.tables[trunk],
            )
        for other, _ in work[1:]:
            self.kv.release(self.sequences.pop(other))
            self.oracle.release(other)
        history = self.read(seq, seq.num_computed) + tokens
        self.kv.end_step()
        self.kv.commit(seq, history, min(accepted, len(tokens)))
        self.oracle.truncate(trunk, seq.num_computed)

    @rule(names=st.lists(branches, min_size=2, max_size=4, unique=True), fail_at=st.integers(1, 4))
    def refuse(self, names: list[str], fail_at: int) -> None:
        """The n-th allocation of a step is refused: nothing may have changed."""
        before = {name: list(seq.tables[0].blocks) for name, seq in self.sequences.items()}
        pool, calls = self.kv.pools[0], 0
        real = pool.allocate

        def allocate(owner: int, count: int) -> list[int] | None:
            nonlocal calls
            calls += 1
            return None if calls == fail_at else real(owner, count)

        step = self.kv.begin()
        added = [name for name in names if step.grow(self.sequences[name], self.kv.block_size)]
        pool.allocate = allocate
        copies = step.seal()
        pool.allocate = real
        if calls >= fail_at:
            assert copies is None
            after = {name: list(seq.tables[0].blocks) for name, seq in self.sequences.items()}
            assert after == before
            return
        assert copies is not None
        work = [(name, [1] * self.kv.block_size, 0) for name in added]
        for name, tokens, _ in work:
            self.expect(name, tokens)
        self.execute(copies, work)

    @rule(target=branches, parent=branches)
    def fork(self, parent: str) -> str:
        return self.fork_of(parent)

    @rule(name=consumes(branches))
    def release(self, name: str) -> None:
        seq = self.sequences.pop(name)
        self.kv.release(seq)
        self.kv.release(seq)
        self.oracle.release(name)

    @rule(target=branches, like=branches, extra=tokens_of)
    def admit(self, like: str, extra: list[int]):
        """A new request that repeats a branch's tokens and goes on: read what is cached."""
        name = self.name()
        return name if self.enter(name, self.oracle.read(like) + extra) else multiple()

    # -- groups: what a beam search does -----------------------------------------------------

    @rule(target=groups, root=branches, width=st.integers(2, 4), target_tokens=st.integers(1, 60))
    def fork_group(self, root: str, width: int, target_tokens: int) -> str:
        """Branches that were promised fork from one that goes on by itself."""
        seq = self.sequences[root]
        self.kv.promise(seq, target_tokens, branches=1 + width, fork_at=seq.num_computed)
        self.kv.shed_promises()
        group = self.name()
        self.members[group] = [self.fork_of(root) for _ in range(width)]
        assert seq.spare_branches == 0, "each branch takes over one that was promised"
        self.kv.forget_spares(seq)
        return group

    @rule(
        group=groups,
        picks=st.lists(st.integers(0, 3), min_size=1, max_size=4),
        tokens=st.lists(st.integers(1, 2), min_size=4, max_size=4),
        rounds=st.integers(1, 4),
    )
    def beam_steps(self, group: str, picks: list[int], *, tokens: list[int], rounds: int) -> None:
        for _ in range(rounds):
            if self.members[group]:
                self.beam_step(group, picks, tokens)

    def beam_step(self, group: str, picks: list[int], tokens: list[int]) -> None:
        """Every beam goes on from one of the last: W tokens are computed, and W slots taken."""
        last = self.members[group]
        parents = [last[pick % len(last)] for pick in picks]
        for name in set(last) - set(parents):
            self.drop(name)
        kept = list(dict.fromkeys(parents))
        # A parent writes last, in place, as the copies were promised.
        forks = [self.fork_of(name) for name in kept for _ in range(parents.count(name) - 1)]
        self.members[group] = names = [*forks, *kept]
        self.extend_together([(name, [token]) for name, token in zip(names, tokens, strict=False)])

    @rule(group=groups, which=st.integers(0, 3))
    def abort_one(self, group: str, which: int) -> None:
        if names := self.members[group]:
            self.drop(names.pop(which % len(names)))

    @rule(group=groups, at_once=st.booleans())
    def preempt_group(self, group: str, at_once: bool) -> None:
        if names := self.members[group]:
            self.preempted[group] = [self.oracle.read(name) for name in names]
            self.members[group] = []
            for name in names:
                self.drop(name)
            if at_once:
                self.resume(group)

    @rule(group=groups)
    def resume_group(self, group: str) -> None:
        self.resume(group)

    def resume(self, group: str) -> None:
        """What all share comes in once, is forked, and each computes what is its own."""
        branches = self.preempted.get(group, [])
        shared = min((common_prefix_length(branches[0], tokens) for tokens in branches), default=0)
        if not shared:
            return
        stem = self.name()
        if not self.enter(stem, branches[0][:shared]):
            return
        names = [self.fork_of(stem) for _ in branches[1:]] + [stem]
        work = [
            (name, tokens[shared:])
            for name, tokens in zip(names, branches, strict=True)
            if tokens[shared:]
        ]
        if work and not self.extend_together(work):
            for name in names:
                self.drop(name)
            return
        del self.preempted[group]
        self.members[group] = names
        assert [self.oracle.read(name) for name in names] == branches

    @rule(target=leases, name=branches)
    def lease(self, name: str) -> tuple[int, ...]:
        self.num_leases += 1
        return self.kv.lease(self.sequences[name])

    @rule(lease=consumes(leases))
    def end_lease(self, lease: tuple[int, ...]) -> None:
        self.num_leases -= 1
        self.kv.end_lease(lease)
        self.kv.end_lease(lease)

    @rule(count=st.integers(1, 5))
    def evict(self, count: int) -> None:
        self.kv.evict(0, count)

    @rule()
    def reset_prefix_cache(self) -> None:
        self.kv.reset_prefix_cache()

    @rule(token=st.integers(1, 2))
    def distrust(self, token: int) -> None:
        for tenant in TENANTS:
            self.kv.distrust(tenant.encode(), [token])
            assert self.kv.index.starting_with(tenant.encode(), token) == []

    # -- what always holds -------------------------------------------------------------------

    @invariant()
    def owned(self) -> None:
        if not hasattr(self, "kv"):
            return
        assert check_kv(self.kv) == []
        free = self.kv.pools[0].free_blocks()
        self.store.update({block: [0] * self.kv.block_size for block in free})
        for name, seq in self.sequences.items():
            assert self.read(seq, seq.num_computed) == self.oracle.read(name)
        held = {block for seq in self.sequences.values() for block in seq.tables[0].blocks}
        if self.prefix_cache:
            assert len(held) <= len(self.oracle.used())
        else:
            assert len(held) == len(self.oracle.used())
            for name, seq in self.sequences.items():
                pool = self.kv.pools[0]
                refs = [pool.refs[b] - pool.leases[b] for b in seq.tables[0].blocks]
                assert refs == [self.oracle.refs(b) for b in self.oracle.tables[name]]
        ledger = take_ledger(self.kv)
        assert ledger.violations() == []
        assert ledger == recount(self.kv)


TestKVMachine = KVMachine.TestCase
TestKVMachine.settings = settings(max_examples=150, stateful_step_count=50)


@pytest.mark.slow
class TestKVMachineLong(KVMachine.TestCase):
    """The same, longer."""

    settings = settings(max_examples=600, stateful_step_count=80)


@pytest.mark.parametrize("prefix_cache", [False, True])
def test_beams_of_one_parent_copy_its_tail_but_for_the_last(prefix_cache: bool) -> None:
    """The rules of a group on one known path, which the machine may or may not take."""
    machine = KVMachine()
    root = machine.start(tokens=[1, 2, 1], block_size=4, num_blocks=40, prefix_cache=prefix_cache)
    group = machine.fork_group(root=root, width=2, target_tokens=12)
    for _ in range(6):
        machine.beam_step(group, [0, 0, 0], [1, 2, 1, 2])
        machine.owned()
    assert machine.kv.num_cow_copies > 6
    machine.abort_one(group=group, which=1)
    machine.preempt_group(group=group, at_once=True)
    machine.owned()
    assert len(machine.members[group]) == 2
