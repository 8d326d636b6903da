"""Plain-value dumps of blocks and requests, for people and for JSON. No token ids leave here."""

from __future__ import annotations

from collections.abc import Mapping

from octavo.kv import KVCacheManager, take_ledger
from octavo.scheduler import RequestState


def describe_kv(kv: KVCacheManager, states: Mapping[str, RequestState]) -> dict[str, object]:
    """Per KV group: the free and cached blocks, reference counts, and every branch's table."""
    groups: list[dict[str, object]] = []
    for group, pool in enumerate(kv.pools):
        tables = {
            f"{request_id}/{branch}": {
                "first_position": seq.kv.tables[group].first_block * kv.block_size,
                "blocks": list(seq.kv.tables[group].blocks),
            }
            for request_id, state in states.items()
            for branch, seq in state.branches.items()
            if seq.kv is not None
        }
        groups.append(
            {
                "window": kv.groups[group].window,
                "num_blocks": pool.num_blocks,
                "free": pool.free_blocks(),
                "cached": pool.cached_blocks(),
                "draining": pool.num_draining,
                "ref_counts": {block: count for block, count in enumerate(pool.refs) if count},
                "tables": tables,
            }
        )
    return {
        "block_size": kv.block_size,
        "groups": groups,
        "prefix_roots": kv.index.num_roots,
        "ledger": take_ledger(kv).as_dict(),
    }


def describe_requests(states: Mapping[str, RequestState]) -> dict[str, object]:
    """Per request: identity, limits and where each branch stands."""
    return {
        request_id: {
            "epoch": state.epoch,
            "tenant": state.request.tenant,
            "priority": state.request.priority,
            "num_prompt_tokens": state.num_prompt_tokens,
            "num_cached_tokens": state.num_cached_tokens,
            "max_output": state.max_output,
            "deadline": state.request.deadline,
            "branches": {
                branch: {
                    "status": seq.status.name.lower(),
                    "num_output_tokens": seq.num_output,
                    "num_computed_tokens": seq.num_computed,
                    "slot": seq.slot,
                    "preempted": seq.preempted,
                }
                for branch, seq in state.branches.items()
            },
        }
        for request_id, state in states.items()
    }
