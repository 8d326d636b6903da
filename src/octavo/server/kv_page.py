"""``/debug/kv``: every block and the ledger as one JSON object, made and sent piece by piece.

    {"block_size", "prefix_roots", "snapshot_s", "ledger": {…},
     "tenants": {tenant: {…}}, "requests": {id: {…}},
     "groups": [{"window", "num_blocks", "states": {state: blocks}, "tables": {…},
                 "blocks": [{"block", "state", "ref_count", "fill", "owners", …}, …]}, …]}

The engine only copied what it knows (``octavo.engine.dump``); who owns which block is worked out
here, outside of its process. Nothing holds more than one piece of the text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict

import msgspec

from octavo.engine import GroupSnapshot, KVSnapshot
from octavo.server.replies import encode_json

BLOCKS_PER_PIECE = 256


def kv_page(body: Mapping[str, object]) -> Iterator[bytes]:
    """The engine's answer to "kv" as JSON text."""
    snapshot = msgspec.convert(body["snapshot"], KVSnapshot)
    head: dict[str, object] = {
        "block_size": snapshot.block_size,
        "prefix_roots": snapshot.prefix_roots,
        "snapshot_s": body["snapshot_s"],
        "ledger": snapshot.ledger,
        "tenants": snapshot.tenants,
        "requests": snapshot.requests,
    }
    yield _opened(head) + b',"groups":['
    for index, group in enumerate(snapshot.groups):
        yield b"," * (index > 0)
        yield from _group(group, snapshot.block_size)
    yield b"]}\n"


def _opened(value: Mapping[str, object]) -> bytes:
    """A JSON object without its closing brace."""
    return encode_json(value)[:-1]


def _group(group: GroupSnapshot, block_size: int) -> Iterator[bytes]:
    blocks = _Blocks(group, block_size)
    head = {
        "window": group.window,
        "num_blocks": group.num_blocks,
        "states": Counter(map(blocks.state, range(group.num_blocks))),
        "tables": {label: asdict(table) for label, table in group.tables.items()},
    }
    yield _opened(head) + b',"blocks":['
    for start in range(0, group.num_blocks, BLOCKS_PER_PIECE):
        piece = range(start, min(start + BLOCKS_PER_PIECE, group.num_blocks))
        yield b"," * (start > 0) + b",\n".join(encode_json(blocks.row(block)) for block in piece)
    yield b"]}"


class _Blocks:
    """One group's blocks by id. ``owners`` are "request/branch"; a lease has no name."""

    def __init__(self, group: GroupSnapshot, block_size: int) -> None:
        self._group = group
        self._size = block_size
        self._owners: dict[int, list[str]] = {}
        self._fills: dict[int, int] = {}
        for label, table in group.tables.items():
            for index, block in enumerate(table.blocks, table.first_block):
                self._owners.setdefault(block, []).append(label)
                fill = min(block_size, table.num_computed - index * block_size)
                self._fills[block] = max(self._fills.get(block, 0), fill)
        self._leases = Counter(block for fills in group.leased for block in fills)
        for fills in group.leased:
            for block, fill in fills.items():
                self._fills[block] = max(self._fills.get(block, 0), fill)

    def state(self, block: int) -> str:
        """See ``kv.block_pool``."""
        refs = self._group.ref_counts[block]
        if not refs:
            return "cached" if self._group.indexed[block] else "free"
        return "draining" if refs == self._leases[block] else "owned"

    def row(self, block: int) -> dict[str, object]:
        """What is said of one block. Only full blocks are indexed."""
        indexed = bool(self._group.indexed[block])
        return {
            "block": block,
            "state": self.state(block),
            "ref_count": self._group.ref_counts[block],
            "fill": self._size if indexed else self._fills.get(block, 0),
            "owners": self._owners.get(block, []),
            "leases": self._leases[block],
            "indexed": indexed,
        }
