"""Longest common prefix by exact comparison, against a brute-force twin."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from octavo.kv.prefix_index import PrefixIndex, common_prefix_length


def publish(index: PrefixIndex, digest: bytes, tokens: list[int], size: int, first: int) -> None:
    node = None
    for at in range(0, len(tokens) - len(tokens) % size, size):
        node = index.insert(digest, node, tuple(tokens[at : at + size]))
        assert node is not None
        for group, block in enumerate(node.blocks):
            if block < 0:
                index.attach_block(node, group, first + at)


@given(
    size=st.sampled_from([1, 2, 3, 8]),
    stored=st.lists(st.lists(st.integers(0, 2), max_size=20), max_size=8),
    query=st.lists(st.integers(0, 2), max_size=24),
    slack=st.integers(0, 3),
)
def test_longest_prefix(size: int, stored: list[list[int]], query: list[int], slack: int) -> None:
    index = PrefixIndex(size, [None])
    for number, tokens in enumerate(stored):
        publish(index, b"d", tokens, size, 1000 * number)
    best = max(
        (common_prefix_length(t[: len(t) - len(t) % size], query) for t in stored), default=0
    )
    limit = len(query) - slack
    match = index.match(b"d", query, limit)
    assert (match.length if match else 0) == max(0, min(best, limit))
    if match is not None:
        spelled = [token for node in match.nodes for token in node.tokens]
        assert spelled[: match.length] == query[: match.length]
        assert len(match.nodes) == -(-match.length // size)


def test_another_root_finds_nothing() -> None:
    index = PrefixIndex(2, [None])
    publish(index, b"a", [1, 2, 3, 4], 2, 0)
    assert index.match(b"b", [1, 2, 3, 4], 3) is None
    assert index.match(b"a", [1, 2, 3, 4], 0) is None
    assert index.match(b"a", [9, 9], 2) is None


def test_forgetting_leaves_no_node_behind() -> None:
    index = PrefixIndex(2, [None])
    publish(index, b"a", [1, 2, 3, 4], 2, 0)
    assert index.num_roots == 1
    index.forget_block(0, 2)
    index.forget_block(0, 0)
    assert index.num_roots == 0
    assert index.blocks(0) == {}


def test_a_hit_is_valid_in_every_group() -> None:
    """Group 1 sees four positions: only blocks within its window have to be there."""
    index = PrefixIndex(2, [None, 4])
    publish(index, b"a", list(range(10)), 2, 0)
    query = [*range(10), 99]
    for block in (0, 2):
        index.forget_block(1, block)
    match = index.match(b"a", query, 10)
    assert match is not None
    assert match.length == 10
    index.forget_block(1, 8)
    match = index.match(b"a", query, 10)
    assert match is not None
    # Length 8 reads positions 5…7: blocks 4 and 6 of group 1.
    assert match.length == 8
    index.forget_block(1, 4)
    assert index.match(b"a", query, 10) is None


def test_a_detached_parent_takes_no_children() -> None:
    index = PrefixIndex(1, [None])
    node = index.insert(b"a", None, (1,))
    assert node is not None
    index.attach_block(node, 0, 0)
    index.forget_block(0, 0)
    assert index.insert(b"a", node, (2,)) is None


def test_what_begins_alike_is_told_children_first() -> None:
    index = PrefixIndex(2, [None])
    publish(index, b"d", [1, 2, 3, 4, 5, 6], 2, 0)
    publish(index, b"d", [1, 9, 3, 4], 2, 100)
    publish(index, b"d", [2, 2], 2, 200)
    found = index.starting_with(b"d", 1)
    assert sorted(node.tokens for node in found) == [(1, 2), (1, 9), (3, 4), (3, 4), (5, 6)]
    assert all(
        found.index(child) < at for at, n in enumerate(found) for child in n.children.values()
    )


def test_a_block_that_is_absent_in_one_group_is_no_hit() -> None:
    """Not at the very beginning either, with full attention or within a window."""
    for group in (0, 1):
        index = PrefixIndex(1, [None, 4])
        publish(index, b"a", [5], 1, 0)
        index.forget_block(group, 0)
        assert index.num_roots == 1
        assert index.match(b"a", [5], 1) is None
