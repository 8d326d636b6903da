"""Plain-value snapshots of blocks and requests, for people and for JSON. No token ids leave here.

The engine makes them between two steps, so they are copies at C speed and no more; whoever shows
them works out the rest (``octavo.server.kv_page``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from octavo.kv import KVCacheManager, take_ledger
from octavo.scheduler import RequestState


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSnapshot:
    """One branch's block table: entry i covers logical block ``first_block`` + i."""

    first_block: int
    num_computed: int
    blocks: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSnapshot:
    """The blocks of one KV group.

    ``ref_counts`` and ``indexed`` (1: the prefix index knows it) have an entry per block.
    ``leased`` says how many leading slots of a block each reader may read. ``tables`` are named
    "request/branch".
    """

    window: int | None
    num_blocks: int
    ref_counts: list[int]
    indexed: bytes
    leased: list[dict[int, int]]
    tables: dict[str, TableSnapshot]


@dataclass(frozen=True, slots=True, kw_only=True)
class KVSnapshot:
    """Every block and the ledger: bytes by state in all, per tenant, and per request."""

    block_size: int
    prefix_roots: int
    ledger: dict[str, int]
    tenants: dict[str, dict[str, int]]
    requests: dict[str, dict[str, int]]
    groups: list[GroupSnapshot]


def snapshot_kv(kv: KVCacheManager, states: Mapping[str, RequestState]) -> KVSnapshot:
    """Copy what ``/debug/kv`` shows. Cost: one pass over tables, one copy per pool."""
    ledger = take_ledger(kv)
    return KVSnapshot(
        block_size=kv.block_size,
        prefix_roots=kv.index.num_roots,
        ledger=ledger.as_dict(),
        tenants={tenant: holding.as_dict() for tenant, holding in ledger.tenants.items()},
        requests={
            account.request_id: holding.as_dict() for account, holding in ledger.requests.items()
        },
        groups=[_snapshot_group(kv, group, states) for group in range(len(kv.pools))],
    )


def _snapshot_group(
    kv: KVCacheManager, group: int, states: Mapping[str, RequestState]
) -> GroupSnapshot:
    pool = kv.pools[group]
    return GroupSnapshot(
        window=kv.groups[group].window,
        num_blocks=pool.num_blocks,
        ref_counts=pool.refs.copy(),
        indexed=pool.indexed_marks(),
        leased=[fills.copy() for fills in kv.lease_fills[group].values()],
        tables={
            f"{request_id}/{branch}": TableSnapshot(
                first_block=seq.kv.tables[group].first_block,
                num_computed=seq.num_computed,
                blocks=seq.kv.tables[group].blocks.copy(),
            )
            for request_id, state in states.items()
            for branch, seq in state.branches.items()
            if seq.kv is not None
        },
    )


def describe_requests(states: Mapping[str, RequestState]) -> dict[str, object]:
    """Per request: identity, limits and where each branch stands; its blocks, per KV group."""
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
                    "num_blocks": [len(table.blocks) for table in seq.kv.tables] if seq.kv else [],
                }
                for branch, seq in state.branches.items()
            },
        }
        for request_id, state in states.items()
    }
