"""A KV manager over a pool that does not exist, and one step of one sequence."""

from __future__ import annotations

from octavo.kv import KVCacheManager, SequenceKV, check_kv, check_writes
from octavo.testing import make_info

ROOT = b"root"


def manager(
    block_size: int = 4, num_blocks: int = 16, windows=(None,), *, prefix_cache: bool = True
) -> KVCacheManager:
    info = make_info(block_size=block_size, num_blocks=num_blocks, windows=windows)
    return KVCacheManager(info, prefix_cache=prefix_cache, max_chunk=8)


def extend(kv: KVCacheManager, seq: SequenceKV, tokens: list[int], accepted: int | None = None):
    """Append ``tokens`` (token i at position i is i unless given) in one step."""
    step = kv.begin()
    assert step.grow(seq, len(tokens))
    copies = step.seal()
    assert check_writes(kv, seq) == []
    history = list(range(seq.num_computed)) + tokens
    kv.commit(seq, history, len(tokens) if accepted is None else accepted)
    kv.end_step()
    assert check_kv(kv) == []
    return copies
