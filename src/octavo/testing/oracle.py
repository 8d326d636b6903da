"""The slow, obvious twin of ``octavo.kv``: block tables as the seed of the project models them.

Dicts and sets, no free list, no tokens of ownership, no sharing with a cache. A block's content is
the list of tokens in it, so ``read`` says what attention would see. Where the real pool says no,
the oracle says no: it counts physical blocks, |union of all tables| ≤ number of blocks.
"""

from __future__ import annotations

from itertools import count


class PagedOracle:
    """Branches by name; every operation copies what it has to and reuses nothing cleverly."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.data: dict[int, list[int]] = {}
        self.tables: dict[str, list[int]] = {}
        self._fresh = count()

    def used(self) -> set[int]:
        """Blocks that some table holds."""
        return {block for table in self.tables.values() for block in table}

    def refs(self, block: int) -> int:
        """Tables that hold ``block``."""
        return sum(block in table for table in self.tables.values())

    def length(self, name: str) -> int:
        """Tokens of a branch."""
        return len(self.read(name))

    def blocks_needed(self, name: str, num_tokens: int) -> int:
        """New physical blocks for ``num_tokens`` more tokens, a copied tail included."""
        table = self.tables[name]
        length = self.length(name)
        new = -(-(length + num_tokens) // self.block_size) - len(table)
        copied = num_tokens > 0 and length % self.block_size and self.refs(table[-1]) > 1
        return new + bool(copied)

    def add(self, name: str) -> None:
        """A branch without tokens."""
        self.tables[name] = []

    def append(self, name: str, tokens: list[int]) -> bool:
        """Extend a branch; False, and no change, when the pool is too small."""
        if len(self.used()) + self.blocks_needed(name, len(tokens)) > self.num_blocks:
            return False
        for token in tokens:
            self._append_one(name, token)
        return True

    def _append_one(self, name: str, token: int) -> None:
        table = self.tables[name]
        if not table or len(self.data[table[-1]]) == self.block_size:
            table.append(self._new([]))
        elif self.refs(table[-1]) > 1:
            table[-1] = self._new(self.data[table[-1]])
        self.data[table[-1]].append(token)

    def _new(self, tokens: list[int]) -> int:
        block = next(self._fresh)
        self.data[block] = list(tokens)
        return block

    def fork(self, parent: str, child: str) -> None:
        """A branch that shares all blocks of another."""
        self.tables[child] = list(self.tables[parent])

    def truncate(self, name: str, length: int) -> None:
        """Roll a branch back. Only tokens that it alone appended may go."""
        table = self.tables[name]
        del table[-(-length // self.block_size) :]
        if table:
            del self.data[table[-1]][length - (len(table) - 1) * self.block_size :]

    def release(self, name: str) -> None:
        """Forget a branch."""
        del self.tables[name]

    def read(self, name: str) -> list[int]:
        """The tokens that attention would see."""
        return [token for block in self.tables[name] for token in self.data[block]]
