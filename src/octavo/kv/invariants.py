"""Proof that every block is accounted for: I1 to I6 and I10 of the ownership contract.

Each check recounts from the owners themselves; nothing here trusts an incremental counter. The
result is a list of sentences, empty when all holds, so that production can report and go on.
"""

from __future__ import annotations

from collections.abc import Iterator

from octavo.kv.block_pool import OwnerKind
from octavo.kv.block_table import SequenceKV
from octavo.kv.kv_state import KVState
from octavo.kv.ledger import take_ledger
from octavo.kv.prefix_index import ABSENT


def check_kv(kv: KVState) -> list[str]:
    """Every violated invariant, in words."""
    found: list[str] = []
    for group in range(len(kv.pools)):
        found += _blocks(kv, group)
        found += _tables(kv, group)
        found += _index(kv, group)
        found += _promises(kv, group)
    ledger = take_ledger(kv)
    if ledger.orphan_blocks or ledger.accounted != ledger.pool:
        found.append(f"I10: the ledger sums to {ledger.accounted} of {ledger.pool} bytes")
    return found


def _blocks(kv: KVState, group: int) -> Iterator[str]:
    pool = kv.pools[group]
    refs = [0] * pool.num_blocks
    leases = [0] * pool.num_blocks
    for kind, blocks in pool.owners():
        for block in blocks:
            refs[block] += 1
            leases[block] += kind is OwnerKind.LEASE
    free, cached = pool.free_blocks(), pool.cached_blocks()
    held = [block for block, count in enumerate(refs) if count]
    if len(free) + len(cached) + len(held) != pool.num_blocks or (
        len(set(free).union(cached, held)) != pool.num_blocks
    ):
        yield f"I1: group {group}: free, cached and held do not partition the pool"
    if refs != pool.refs:
        yield f"I2: group {group}: a ref_count differs from its owners"
    if leases != pool.leases:
        yield f"I2: group {group}: a lease count differs from its owners"
    if sum(refs[block] == leases[block] for block in held) != pool.num_draining:
        yield f"I1: group {group}: the number of draining blocks is wrong"


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
    """I3: between ``seal`` and ``commit``, slots to be written are in blocks held once."""
    found = []
    first = seq.num_computed // kv.block_size
    for group, table in enumerate(seq.tables):
        writable = table.blocks[max(0, first - table.first_block) :]
        if any(kv.pools[group].is_shared(block) for block in writable):
            found.append(f"I3: group {group}: a step would write a shared block")
    return found


def _index(kv: KVState, group: int) -> Iterator[str]:
    pool, nodes = kv.pools[group], kv.index.blocks(group)
    full = kv.groups[group].window is None
    marks = bytearray(pool.num_blocks)
    for block, node in nodes.items():
        marks[block] = 1
        parent = node.parent
        if parent is None or parent.children.get(node.tokens) is not node or not node.attached:
            yield f"I5: group {group}: the node of block {block} cannot be found"
        elif full and parent.blocks[group] == ABSENT and parent.parent is not None:
            yield f"I5: group {group}: block {block} is cached without its parent"
        if node.blocks[group] != block:
            yield f"I5: group {group}: the index and block {block} disagree"
    if marks != pool.indexed_marks():
        yield f"I5: group {group}: index and pool disagree on which blocks are findable"


def _promises(kv: KVState, group: int) -> Iterator[str]:
    total = sum(seq.promised[group] for seq in kv.sequences)
    if total != kv.promises.totals[group]:
        yield f"I6: group {group}: promises sum to {total}, not {kv.promises.totals[group]}"
    if total > kv.pools[group].num_available:
        yield f"I6: group {group}: {total} blocks are promised, fewer are available"
