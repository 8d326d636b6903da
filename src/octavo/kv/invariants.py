"""Proof that every block is accounted for: I1 to I6 and I10 of the ownership contract.

Each check recounts from the owners themselves; nothing here trusts an incremental counter. The
result is a list of sentences, empty when all holds, so that production can report and go on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, compress
from operator import attrgetter

from octavo.core.step import BlockCopy
from octavo.kv.block_pool import OwnerKind
from octavo.kv.block_table import SequenceKV
from octavo.kv.kv_state import KVState
from octavo.kv.ledger import take_ledger
from octavo.kv.prefix_index import ABSENT, Node

_is_attached = attrgetter("attached")


def check_kv(kv: KVState) -> list[str]:
    """Every violated invariant, in words."""
    found: list[str] = []
    nodes, parents = kv.index.walk()
    found += _trie(nodes, parents)
    for group in range(len(kv.pools)):
        found += _blocks(kv, group)
        found += _tables(kv, group)
        found += _index(kv, group, nodes)
        found += _promises(kv, group)
    return found + take_ledger(kv).violations()


def check_sums(kv: KVState) -> list[str]:
    """I1, I2 and I5 in sums, I6 in full: a few sums per group, which ``check_kv`` takes apart."""
    found: list[str] = []
    for group, pool in enumerate(kv.pools):
        owners = list(pool.owners())
        held = sum([len(blocks) for _, blocks in owners])
        leased = sum([len(blocks) for kind, blocks in owners if kind is OwnerKind.LEASE])
        if sum(pool.refs) != held or sum(pool.leases) != leased:
            found.append(f"I2: group {group}: the counts do not sum to what is held and leased")
        if pool.num_draining != pool.count_draining():
            found.append(f"I1: group {group}: the number of draining blocks is wrong")
        if pool.indexed_marks().count(1) != len(kv.index.blocks(group)):
            found.append(f"I5: group {group}: index and pool know different numbers of blocks")
        found += _promises(kv, group)
    return found


def _blocks(kv: KVState, group: int) -> Iterator[str]:
    pool = kv.pools[group]
    owners = list(pool.owners())
    held = Counter(chain.from_iterable(blocks for _, blocks in owners))
    leased = Counter(chain.from_iterable(b for kind, b in owners if kind is OwnerKind.LEASE))
    free, cached = pool.free_blocks(), pool.cached_blocks()
    if len(free) + len(cached) + len(held) != pool.num_blocks or (
        len(set(free).union(cached, held)) != pool.num_blocks
    ):
        yield f"I1: group {group}: free, cached and held do not partition the pool"
    if not _matches(pool.refs, held):
        yield f"I2: group {group}: a ref_count differs from its owners"
    if not _matches(pool.leases, leased):
        yield f"I2: group {group}: a lease count differs from its owners"
    owned = held - leased if leased else held
    shared = {block for block, count in owned.items() if count > 1}
    if set(compress(range(pool.num_blocks), pool.shared)) != shared:
        yield f"I2: group {group}: a block's mark of being shared differs from its owners"
    if sum(held[block] == count for block, count in leased.items()) != pool.num_draining:
        yield f"I1: group {group}: the number of draining blocks is wrong"


def _matches(counts: list[int], recount: Counter[int]) -> bool:
    """Whether ``counts``, by block, is what was recounted, and 0 everywhere else."""
    return (
        list(map(counts.__getitem__, recount)) == list(recount.values())
        and sum(counts) == recount.total()
        and min(counts) >= 0
    )


def _tables(kv: KVState, group: int) -> Iterator[str]:
    size, window = kv.block_size, kv.groups[group].window
    for seq in kv.sequences:
        table = seq.tables[group]
        if set(table.blocks) != set(kv.pools[group].held_by(table.owner)):
            yield f"I2: group {group}: a table and its owner token differ"
        seen = 0 if window is None else max(0, seq.num_computed - window + 1)
        if table.first_block * size > seen:
            yield f"I4: group {group}: a table starts after a position still in its span"
        if table.blocks and table.end_block != -(-seq.num_reserved // size):
            yield f"I4: group {group}: a table does not end where its reservation ends"


def check_writes(kv: KVState, seq: SequenceKV) -> list[str]:
    """I3: between ``seal`` and ``commit``, no slot to be written is another's or under a lease."""
    found = []
    size = kv.block_size
    for group, table in enumerate(seq.tables):
        pool = kv.pools[group]
        first = max(0, seq.num_computed // size - table.first_block)
        for index, block in enumerate(table.blocks[first:], table.first_block + first):
            if pool.refs[block] == 1:
                continue
            if pool.is_shared(block):
                found.append(f"I3: group {group}: a step would write a shared block")
            elif seq.num_computed - index * size < _leased_fill(kv, group, block):
                found.append(f"I3: group {group}: a step would write a slot under a read lease")
    return found


def check_fits(kv: KVState) -> list[str]:
    """Physically, once a step is reserved: what all tables hold, drains or is left is one pool."""
    found = []
    for group, pool in enumerate(kv.pools):
        held = len(set().union(*[seq.tables[group].blocks for seq in kv.sequences]))
        total = held + pool.num_draining + pool.num_available
        if total > pool.num_blocks:
            found.append(
                f"I1: group {group}: tables hold {held} blocks, {pool.num_draining} drain and "
                f"{pool.num_available} are available, of {pool.num_blocks}"
            )
    return found


def check_copies(kv: KVState, copies: Iterable[BlockCopy]) -> list[str]:
    """I3: a step's copies go to blocks that one table holds and nobody reads."""
    return [
        f"I3: group {copy.group}: a copy goes to a block that others hold or read"
        for copy in copies
        if kv.pools[copy.group].refs[copy.dst] != 1
    ]


def _leased_fill(kv: KVState, group: int, block: int) -> int:
    """How many leading slots of a block some reader may read."""
    return max((fills.get(block, 0) for fills in kv.lease_fills[group].values()), default=0)


def _trie(found: list[Node], parents: list[Node]) -> Iterator[str]:
    if [node.parent for node in found] != parents or not all(map(_is_attached, found)):
        yield "I5: a node of the index does not know where it is found"


def _index(kv: KVState, group: int, found: list[Node]) -> Iterator[str]:
    pool, nodes = kv.pools[group], kv.index.blocks(group)
    blocks = [node.blocks[group] for node in found]
    findable = dict(zip(blocks, found, strict=True))
    has_gaps = findable.pop(ABSENT, None) is not None
    if findable != nodes or len(nodes) != len(blocks) - blocks.count(ABSENT):
        yield f"I5: group {group}: the index and its blocks disagree"
    if list(compress(range(pool.num_blocks), pool.indexed_marks())) != sorted(nodes):
        yield f"I5: group {group}: index and pool disagree on which blocks are findable"
    if has_gaps and kv.groups[group].window is None:
        for node in findable.values():
            parent = node.parent
            if parent and parent.parent and parent.blocks[group] == ABSENT:
                yield f"I5: group {group}: block {node.blocks[group]} is cached without its parent"


def _promises(kv: KVState, group: int) -> Iterator[str]:
    promised, owed = [seq.promised[group] for seq in kv.sequences], kv.promises.owed
    total = sum(promised)
    if total != kv.promises.totals[group]:
        yield f"I6: group {group}: promises sum to {total}, not {kv.promises.totals[group]}"
    if promised != [owed(seq, group) for seq in kv.sequences]:
        yield f"I6: group {group}: a sequence's promise is not what it may still take"
    if total > kv.pools[group].num_available:
        yield f"I6: group {group}: {total} blocks are promised, fewer are available"
