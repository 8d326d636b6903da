"""The KV cache as owned state: the one door through which scheduler and engine reach blocks.

    lookup (pins) ─ begin ─ grow/admit … ─ seal ─► the step runs ─► commit … ─ end_step
                                              fork · release · lease · reset_prefix_cache

A block becomes findable only in ``commit``, after the step that computed it.
"""

from __future__ import annotations

from collections.abc import Sequence

from octavo.kv.block_pool import OwnerKind
from octavo.kv.block_table import NOBODY, Account, BlockTable, SequenceKV
from octavo.kv.kv_state import KVState, PrefixHit
from octavo.kv.prefix_index import ABSENT, Match, Node
from octavo.kv.reservation import StepReservation


class KVCacheManager(KVState):
    """What may be done with the pools, tables, prefix index and promises of every KV group."""

    # -- sequences ---------------------------------------------------------------------------

    def new_sequence(self, digest: bytes, account: Account = NOBODY) -> SequenceKV:
        """A sequence that holds nothing. ``digest`` names its root in the prefix index.

        A root is one tenant's: what is evicted next is chosen by tenant, tails before heads.
        """
        tables = [BlockTable(pool.open(OwnerKind.TABLE, account.tenant)) for pool in self.pools]
        seq = SequenceKV(digest, tables, account=account, publishing=self._prefix_cache)
        self.sequences[seq] = None
        return seq

    def fork(self, parent: SequenceKV) -> SequenceKV:
        """A branch that shares every block of ``parent``; the first to append copies the tail.

        It takes over one of the parent's spare branches, if any were promised.
        """
        assert parent.num_reserved == parent.num_computed, "I8: forking provisional tokens"
        child = self.new_sequence(parent.digest, parent.account)
        for pool, mine, theirs in zip(self.pools, child.tables, parent.tables, strict=True):
            pool.share(mine.owner, theirs.blocks)
            mine.blocks = list(theirs.blocks)
            mine.first_block = theirs.first_block
        child.num_computed = child.num_reserved = parent.num_computed
        child.num_published = parent.num_published
        child.node = parent.node
        child.publishing = parent.publishing
        parent.writable_until = 0
        if parent.spare_branches:
            parent.spare_branches -= 1
            self.promises.refresh(parent)
            child.target_tokens = parent.target_tokens
            child.cow_due = child.num_computed % self.block_size != 0
            self.promises.refresh(child)
        return child

    def promise(self, seq: SequenceKV, target_tokens: int, *, branches: int, fork_at: int) -> None:
        """Promise growth to ``target_tokens``, for ``branches`` that fork at ``fork_at`` tokens."""
        seq.target_tokens = target_tokens
        seq.spare_branches = branches - 1
        seq.spare_from = fork_at
        self.promises.refresh(seq)

    def forget_spares(self, seq: SequenceKV) -> None:
        """No more branches will be forked from ``seq``: what was promised for them is free."""
        seq.spare_branches = 0
        self.promises.refresh(seq)

    def release(self, seq: SequenceKV) -> None:
        """Let go of everything, tail first so that tails are evicted first. Idempotent."""
        if seq not in self.sequences:
            return
        self.promises.clear(seq)
        for group, table in enumerate(seq.tables):
            blocks, table.blocks = table.blocks[::-1], []
            self.pools[group].close(table.owner, blocks)
        del self.sequences[seq]

    def adopt(self, seq: SequenceKV, path: SequenceKV) -> None:
        """``path``, forked from ``seq`` for a step that both are in, takes its place.

        What ``seq`` had reserved by itself goes back; what it is promised and has published stays.
        """
        assert path.num_computed == seq.num_computed, "I4: a path that was forked elsewhere"
        seq.tables, path.tables = path.tables, seq.tables
        seq.num_reserved = path.num_reserved
        seq.writable_until = path.writable_until
        self.release(path)
        # No promise need be shed: the path took at least the one block that may now drain.
        self.promises.refresh(seq)

    def private_part(self, seq: SequenceKV) -> tuple[int, int]:
        """What releasing ``seq`` gives and costs: (blocks only it holds, tokens from there on).

        What stands before its first private block stays in the tables of others.
        """
        num_blocks, kept = 0, seq.num_computed
        for pool, table in zip(self.pools, seq.tables, strict=True):
            private = [at for at, block in enumerate(table.blocks) if not pool.is_shared(block)]
            num_blocks += len(private)
            if private:
                first = table.first_block + private[0] if private[0] else 0
                kept = min(kept, first * self.block_size)
        return num_blocks, seq.num_computed - kept

    # -- one step ----------------------------------------------------------------------------

    def begin(self) -> StepReservation:
        """A new reservation; nothing is taken until it is sealed."""
        return StepReservation(self)

    def commit(self, seq: SequenceKV, token_ids: Sequence[int], num_accepted: int) -> None:
        """Keep the first ``num_accepted`` provisional tokens and return the rest's blocks.

        ``token_ids`` are the sequence's tokens from position 0; blocks that became full are
        published to the prefix index. ``num_accepted`` 0 is a full rollback.
        """
        end = seq.num_computed + num_accepted
        assert end <= seq.num_reserved, "I4: committing more than was reserved"
        trim = end < seq.num_reserved
        seq.num_computed = seq.num_reserved = end
        if trim:
            self._truncate(seq)
        if seq.publishing and end // self.block_size > seq.num_published:
            self._publish(seq, token_ids)
        if self.has_windows:
            self._slide_windows(seq)

    def _truncate(self, seq: SequenceKV) -> None:
        end_block = -(-seq.num_computed // self.block_size)
        seq.writable_until = min(seq.writable_until, end_block * self.block_size)
        for group, table in enumerate(seq.tables):
            self.pools[group].release(table.owner, table.truncate(end_block))
        self.promises.refresh(seq)
        self.shed_promises()

    def _slide_windows(self, seq: SequenceKV) -> None:
        """Release blocks that no later query can see."""
        for group, spec in enumerate(self.groups):
            if spec.window is None:
                continue
            table = seq.tables[group]
            first_block = max(0, seq.num_computed - spec.window + 1) // self.block_size
            if first_block > table.first_block and table.blocks:
                self.pools[group].release(table.owner, table.drop_front(first_block))
                self.promises.refresh(seq)
                self.shed_promises()

    # -- prefix cache ------------------------------------------------------------------------

    def lookup(self, digest: bytes, token_ids: Sequence[int]) -> PrefixHit | None:
        """The longest cached prefix, pinned; at most all tokens but the last. None: no hit.

        The caller admits the hit in a reservation or gives it back with ``unpin``.
        """
        if not self._prefix_cache:
            return None
        match = self.index.match(digest, token_ids, len(token_ids) - 1)
        return None if match is None else self._pin(match)

    def shorten(self, hit: PrefixHit, digest: bytes, token_ids: Sequence[int]) -> PrefixHit | None:
        """The same hit without its partly used last block (unpins ``hit``)."""
        self.unpin(hit)
        whole = hit.length - hit.length % self.block_size
        match = self.index.match(digest, token_ids, whole)
        return None if match is None else self._pin(match)

    def _pin(self, match: Match) -> PrefixHit:
        size = self.block_size
        pins, first_blocks, held = [], [], []
        for group, spec in enumerate(self.groups):
            seen = 0 if spec.window is None else max(0, match.length - spec.window + 1)
            first = seen // size
            blocks = tuple(node.blocks[group] for node in match.nodes[first:])
            pin = self.pools[group].open(OwnerKind.PIN)
            self.pools[group].share(pin, blocks)
            pins.append(pin)
            first_blocks.append(first)
            held.append(blocks)
        self._pins[pins[0]] = None
        whole = match.length // size
        return PrefixHit(
            match.length,
            tuple(pins),
            tuple(first_blocks),
            tuple(held),
            match.nodes[whole - 1] if whole else None,
        )

    def _publish(self, seq: SequenceKV, token_ids: Sequence[int]) -> None:
        """Make newly full blocks findable, unless another sequence published the same first."""
        size = self.block_size
        for index in range(seq.num_published, seq.num_computed // size):
            tokens = tuple(token_ids[index * size : (index + 1) * size])
            node = self.index.insert(seq.digest, seq.node, tokens)
            if node is None or not self._offer(seq, node, index):
                seq.publishing = False
                return
            seq.node = node
            seq.num_published = index + 1

    def _offer(self, seq: SequenceKV, node: Node, index: int) -> bool:
        """Fill the node's absent blocks with ours; False if a full-attention one is another's.

        A sequence stops publishing there: a child is only ever held with its parent, which keeps
        eviction from cutting a path in the middle.
        """
        for group, table in enumerate(seq.tables):
            # A block that just became full is never behind the window: windows slide afterwards.
            block = table.blocks[index - table.first_block]
            if node.blocks[group] == ABSENT:
                self.index.attach_block(node, group, block)
                self.pools[group].mark_indexed(block, seq.account.tenant)
            elif node.blocks[group] != block and self.groups[group].window is None:
                return False
        return True

    def evict(self, group: int, count: int) -> int:
        """Evict up to ``count`` cached blocks, oldest first; returns how many there were."""
        count = min(count, self.pools[group].num_cached)
        for _ in range(count):
            self.pools[group].evict_one()
        return count

    def reset_prefix_cache(self) -> None:
        """Forget everything that is findable. Running sequences keep their blocks."""
        for group in range(len(self.pools)):
            for block in list(self.index.blocks(group)):
                self.forget(group, block)

    def distrust(self, digest: bytes, token_ids: Sequence[int]) -> None:
        """What a sequence computed is not to be trusted: forget all that it may be part of.

        A position depends on the tokens before it alone, so what shares no first token with the
        sequence was neither read by it nor computed from it. Everything else under its key goes:
        its own blocks, those that it read (the fault may be in them) and those that others
        computed from them. Running sequences keep their blocks and stop publishing behind them.
        """
        for node in self.index.starting_with(digest, token_ids[0]):
            for group, block in enumerate(list(node.blocks)):
                if block != ABSENT:
                    self.forget(group, block)

    # -- leases ------------------------------------------------------------------------------

    def lease(self, seq: SequenceKV) -> tuple[int, ...]:
        """A reader (a transfer, a device event) of all that ``seq`` holds now: one token per group.

        Until ``end_lease`` none of these blocks is reused, whoever lets go of them.
        """
        size, tokens = self.block_size, []
        for group, table in enumerate(seq.tables):
            token = self.open_lease(group)
            self.pools[group].share(token, table.blocks)
            self.lease_fills[group][token] = {
                block: min(size, seq.num_computed - index * size)
                for index, block in enumerate(table.blocks, table.first_block)
            }
            tokens.append(token)
        return tuple(tokens)

    def end_lease(self, tokens: tuple[int, ...]) -> None:
        """The reader is done. Idempotent."""
        for group, token in enumerate(tokens):
            self.close_lease(group, token)
