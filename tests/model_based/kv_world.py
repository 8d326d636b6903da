"""A KV manager and the seed's oracle side by side, and the data plane between them."""

from __future__ import annotations

from octavo.kv import Account, KVCacheManager, SequenceKV, check_writes
from octavo.testing.fake_runner import make_info
from octavo.testing.oracle import PagedOracle

TENANTS = ("t0", "t1")


class KVWorld:
    """Every branch exists twice: in the manager, its content in ``store``, and in the oracle."""

    def build(self, block_size: int, num_blocks: int, *, prefix_cache: bool) -> None:
        info = make_info(block_size=block_size, num_blocks=num_blocks)
        self.kv = KVCacheManager(info, prefix_cache=prefix_cache, max_chunk=64)
        self.prefix_cache = prefix_cache
        self.oracle = PagedOracle(num_blocks, block_size)
        self.store = {block: [0] * block_size for block in range(num_blocks)}
        self.sequences: dict[str, SequenceKV] = {}
        self.num_leases = 0
        self.count = 0
        # Branches that fork, run and are preempted together; of the preempted ones, the tokens.
        self.members: dict[str, list[str]] = {}
        self.preempted: dict[str, list[list[int]]] = {}

    def name(self) -> str:
        self.count += 1
        return f"b{self.count}"

    def account(self) -> Account:
        """Three requests of two tenants take turns."""
        return Account(TENANTS[self.count % 2], f"r{self.count % 3}")

    def new_sequence(self) -> SequenceKV:
        """As in the engine, a prefix is one tenant's: eviction keeps it whole only within one."""
        account = self.account()
        return self.kv.new_sequence(account.tenant.encode(), account)

    # -- what the data plane would do --------------------------------------------------------

    def read(self, seq: SequenceKV, length: int) -> list[int]:
        size = self.kv.block_size
        blocks = seq.tables[0].blocks
        return [self.store[blocks[at // size]][at % size] for at in range(length)]

    def write(self, seq: SequenceKV, tokens: list[int]) -> None:
        size = self.kv.block_size
        assert check_writes(self.kv, seq) == []
        for at, token in enumerate(tokens, seq.num_computed):
            self.store[seq.tables[0].blocks[at // size]][at % size] = token

    def copy(self, copies) -> None:
        for copy in copies:
            source = self.store[copy.src]
            self.store[copy.dst] = source[: copy.num_tokens] + [0] * (
                self.kv.block_size - copy.num_tokens
            )

    def execute(self, copies, work: list[tuple[str, list[int], int]]) -> None:
        self.copy(copies)
        for name, tokens, _ in work:
            self.write(self.sequences[name], tokens)
        for name, tokens, accepted in work:
            seq = self.sequences[name]
            history = self.read(seq, seq.num_computed) + tokens
            self.kv.commit(seq, history, accepted)
            self.oracle.truncate(name, seq.num_computed)
        self.kv.end_step()

    def expect(self, name: str, tokens: list[int]) -> None:
        """The oracle appends too. It may take more blocks: it shares nothing through a cache."""
        self.oracle.num_blocks += 1000
        assert self.oracle.append(name, tokens)
        self.oracle.num_blocks -= 1000

    # -- branches ----------------------------------------------------------------------------

    def add_branch(self) -> str:
        name = self.name()
        self.sequences[name] = self.new_sequence()
        self.oracle.add(name)
        return name

    def fork_of(self, parent: str) -> str:
        name = self.name()
        self.sequences[name] = self.kv.fork(self.sequences[parent])
        self.oracle.fork(parent, name)
        return name

    def drop(self, name: str) -> None:
        self.kv.release(self.sequences.pop(name))
        self.oracle.release(name)

    def enter(self, name: str, tokens: list[int]) -> bool:
        """A sequence of ``tokens`` comes in, if there is room."""
        seq = self.new_sequence()
        hit = self.kv.lookup(seq.digest, tokens)
        assert hit is None or hit.length < len(tokens)
        demand = self.kv.promises.demand(len(tokens), 0, 0)
        while True:
            step = self.kv.begin()
            cached = hit.length if hit else 0
            if step.admit(seq, len(tokens) - cached, hit=hit, demand=demand):
                break
            if hit is None or hit.length % self.kv.block_size == 0:
                if hit is not None:
                    self.kv.unpin(hit)
                self.kv.release(seq)
                return False
            hit = self.kv.shorten(hit, seq.digest, tokens)
        copies = step.seal()
        assert copies is not None
        self.sequences[name] = seq
        self.oracle.add(name)
        self.expect(name, tokens)
        self.execute(copies, [(name, tokens[cached:], len(tokens) - cached)])
        return True

    def extend_together(self, work: list[tuple[str, list[int]]]) -> bool:
        """One step for all, with exactly the copies that the oracle makes, or none."""
        step = self.kv.begin()
        if not all(step.grow(self.sequences[name], len(tokens)) for name, tokens in work):
            return False
        num_copied = self.kv.num_cow_copies
        copies = step.seal()
        assert copies is not None
        expected = 0
        for name, tokens in work:
            table, size = self.oracle.tables[name], self.kv.block_size
            expected += self.oracle.length(name) % size > 0 and self.oracle.refs(table[-1]) > 1
            self.expect(name, tokens)
        assert len(copies) == self.kv.num_cow_copies - num_copied == expected
        self.execute(copies, [(name, tokens, len(tokens)) for name, tokens in work])
        return True
