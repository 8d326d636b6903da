"""Which cached blocks hold which tokens: a trie of full blocks under each root digest.

    root(digest) ─ (10, 20) ─ (30, 40) ─ (50, 60)          block size 2
                            └ (30, 41)
    lookup 10 20 30 41 7  →  path of two nodes, hit length 4
    lookup 10 20 30 99    →  one node, and one token inside a child: hit length 3

Children are found by exact comparison of tokens. Among siblings in lexicographic order, the one
that shares most with a given block is a neighbour of its insertion point, so a hit that ends
inside a block costs one bisection. A node holds one block per KV group; with several groups a hit
is the longest length that is valid in all of them.

In a group with full attention a holder of a child holds its parent, and lets go of the child
first; so the oldest cached block is always a leaf: tails are evicted before heads.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

Tokens = tuple[int, ...]
ABSENT = -1


class Node:
    """One full block of tokens below its parent. ``blocks[g]`` is ABSENT where evicted."""

    __slots__ = ("attached", "blocks", "children", "digest", "ordered", "parent", "tokens")

    def __init__(
        self, parent: Node | None, tokens: Tokens, num_groups: int, *, digest: bytes = b""
    ) -> None:
        self.parent = parent
        self.digest = digest
        self.tokens = tokens
        self.blocks = [ABSENT] * num_groups
        self.children: dict[Tokens, Node] = {}
        self.ordered: list[Tokens] = []
        self.attached = True


@dataclass(frozen=True, slots=True)
class Match:
    """A usable prefix: ``length`` tokens, whose last node may be used in part only."""

    length: int
    nodes: tuple[Node, ...]


def common_prefix_length(left: Sequence[int], right: Sequence[int]) -> int:
    """How many leading tokens are equal."""
    count = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        count += 1
    return count


class PrefixIndex:
    """The trie. Knows tokens and block ids; who holds a block is the pool's business."""

    def __init__(self, block_size: int, windows: Sequence[int | None]) -> None:
        self._block_size = block_size
        self._windows = tuple(windows)
        self._roots: dict[bytes, Node] = {}
        self._node_of: list[dict[int, Node]] = [{} for _ in windows]

    # -- lookup ------------------------------------------------------------------------------

    def match(self, digest: bytes, token_ids: Sequence[int], limit: int) -> Match | None:
        """The longest usable prefix of ``token_ids``, at most ``limit`` tokens; None if empty."""
        root = self._roots.get(digest)
        if root is None:
            return None
        path, length = self._walk(root, token_ids)
        candidate = min(length, limit)
        while candidate > 0:
            usable = self._usable(path, candidate)
            if usable == candidate:
                end = -(-candidate // self._block_size)
                return Match(candidate, tuple(path[:end]))
            candidate = usable
        return None

    def _walk(self, root: Node, token_ids: Sequence[int]) -> tuple[list[Node], int]:
        size = self._block_size
        path: list[Node] = []
        node, start = root, 0
        while True:
            key = tuple(token_ids[start : start + size])
            child = node.children.get(key)
            if child is None:
                break
            path.append(child)
            node, start = child, start + size
        best, best_length = self._closest(node, key)
        if best is not None:
            path.append(best)
        return path, start + best_length

    def _closest(self, node: Node, key: Tokens) -> tuple[Node | None, int]:
        """The child that shares the longest non-empty prefix with ``key``."""
        at = bisect_left(node.ordered, key)
        best, best_length = None, 0
        for sibling in node.ordered[max(0, at - 1) : at + 1]:
            length = common_prefix_length(sibling, key)
            if length > best_length:
                best, best_length = node.children[sibling], length
        return best, best_length

    def _usable(self, path: list[Node], length: int) -> int:
        """``length`` if every group has the blocks it would read, else the next shorter try.

        Every length past the start of an absent block reads that block, until a window has moved
        beyond it; so the next try ends where the last absent block begins.
        """
        size = self._block_size
        for group, window in enumerate(self._windows):
            first = 0 if window is None else max(0, length - window + 1) // size
            for index in range((length - 1) // size, first - 1, -1):
                if path[index].blocks[group] == ABSENT:
                    return index * size
        return length

    # -- publish and forget ------------------------------------------------------------------

    def insert(self, digest: bytes, parent: Node | None, tokens: Tokens) -> Node | None:
        """The node for ``tokens`` below ``parent`` (None: the root); None if that is detached."""
        if parent is None:
            parent = self._roots.get(digest)
            if parent is None:
                parent = self._roots[digest] = Node(None, (), len(self._windows), digest=digest)
        elif not parent.attached:
            return None
        child = parent.children.get(tokens)
        if child is None:
            child = parent.children[tokens] = Node(parent, tokens, len(self._windows))
            insort(parent.ordered, tokens)
        return child

    def attach_block(self, node: Node, group: int, block: int) -> None:
        """``block`` holds the node's tokens in ``group``."""
        node.blocks[group] = block
        self._node_of[group][block] = node

    def forget_block(self, group: int, block: int) -> None:
        """The block is about to be reused; nodes left without blocks and children go too."""
        held = self._node_of[group].pop(block)
        held.blocks[group] = ABSENT
        node: Node | None = held
        while node is not None and not node.children and node.blocks == [ABSENT] * len(node.blocks):
            self._detach(node)
            node = node.parent

    def _detach(self, node: Node) -> None:
        node.attached = False
        if node.parent is None:
            del self._roots[node.digest]
            return
        del node.parent.children[node.tokens]
        del node.parent.ordered[bisect_left(node.parent.ordered, node.tokens)]

    def starting_with(self, digest: bytes, token_id: int) -> list[Node]:
        """Every node whose path from the root begins with ``token_id``, children first."""
        root = self._roots.get(digest)
        if root is None:
            return []
        nodes = [child for tokens, child in root.children.items() if tokens[0] == token_id]
        for node in nodes:
            nodes += node.children.values()
        return nodes[::-1]

    # -- for invariants and dumps ------------------------------------------------------------

    def blocks(self, group: int) -> dict[int, Node]:
        """Every indexed block of a group and its node."""
        return self._node_of[group]

    def walk(self) -> tuple[list[Node], list[Node]]:
        """Every node that can be found from a root, and beside it the parent it was found in."""
        found = list(self._roots.values())
        parents: list[Node] = []
        for parent in found:
            if parent.children:
                found += parent.children.values()
                parents += [parent] * len(parent.children)
        return found[len(self._roots) :], parents

    @property
    def num_roots(self) -> int:
        """Distinct keys that have cached blocks."""
        return len(self._roots)
