"""The seed's example and inequality, through our own manager."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from octavo.kv import KVCacheManager, SequenceKV, check_kv
from octavo.testing.fake_runner import make_info
from octavo.testing.oracle import PagedOracle


def append(kv: KVCacheManager, seq: SequenceKV, tokens: list[int], history: list[int]) -> None:
    step = kv.begin()
    assert step.grow(seq, len(tokens))
    assert step.seal() is not None
    kv.commit(seq, history + tokens, len(tokens))
    kv.end_step()


def test_seed_example() -> None:
    """Five blocks of two tokens: 10 20 30, a fork, and 40 on the fork."""
    kv = KVCacheManager(make_info(block_size=2, num_blocks=5), prefix_cache=False, max_chunk=8)
    original = kv.new_sequence(b"")
    for at, token in enumerate((10, 20, 30)):
        append(kv, original, [token], [10, 20, 30][:at])
    branch = kv.fork(original)
    step = kv.begin()
    assert step.grow(branch, 1)
    copies = step.seal()
    kv.commit(branch, [10, 20, 30, 40], 1)
    kv.end_step()

    mine, theirs = original.tables[0].blocks, branch.tables[0].blocks
    assert copies is not None
    assert [(c.src, c.dst, c.num_tokens) for c in copies] == [(mine[-1], theirs[-1], 1)]
    assert mine[-1] != theirs[-1]
    assert mine[0] == theirs[0]
    assert kv.pools[0].refs[mine[0]] == 2
    assert kv.pools[0].refs[mine[-1]] == 1
    assert kv.pools[0].num_free == 2
    assert check_kv(kv) == []


def test_oracle_is_the_seeds_model() -> None:
    oracle = PagedOracle(num_blocks=5, block_size=2)
    oracle.add("original")
    assert oracle.append("original", [10, 20, 30])
    oracle.fork("original", "branch")
    assert oracle.append("branch", [40])
    assert oracle.read("original") == [10, 20, 30]
    assert oracle.read("branch") == [10, 20, 30, 40]
    assert oracle.tables["original"][-1] != oracle.tables["branch"][-1]
    assert oracle.refs(oracle.tables["original"][0]) == 2
    assert oracle.refs(oracle.tables["original"][-1]) == 1


@given(
    block_size=st.sampled_from([1, 2, 3, 8, 16]),
    num_blocks=st.integers(1, 30),
    rows=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 60)), min_size=1, max_size=6),
)
def test_reservation_is_the_seeds_inequality(
    block_size: int, num_blocks: int, rows: list[tuple[int, int]]
) -> None:
    """Without sharing: all rows fit exactly when Σ⌈(Tᵢ+qᵢ)/P⌉ ≤ available + owned."""
    info = make_info(block_size=block_size, num_blocks=num_blocks)
    kv = KVCacheManager(info, prefix_cache=True, max_chunk=64)
    sequences = []
    for length, _ in rows:
        seq = kv.new_sequence(b"")
        step = kv.begin()
        if length and not step.grow(seq, length):
            length = 0
        assert step.seal() == []
        kv.commit(seq, [len(sequences)] * length, length)
        sequences.append(seq)
    owned = sum(len(seq.tables[0].blocks) for seq in sequences)
    available = kv.pools[0].num_available
    after = sum(
        -(-(seq.num_computed + q) // block_size)
        for seq, (_, q) in zip(sequences, rows, strict=True)
    )
    step = kv.begin()
    fits = all(step.grow(seq, q) for seq, (_, q) in zip(sequences, rows, strict=True))
    assert fits == (after <= available + owned)
