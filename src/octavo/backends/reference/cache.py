"""The reference KV pool: plain float32 arrays, poisoned with NaN until written."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo.backends.program import CacheLayout

Floats = NDArray[np.float32]


class PagedCache:
    """Owns K and V of every group: ``[layers, blocks, block_size, kv_heads, head_dim]`` each."""

    def __init__(self, layout: CacheLayout) -> None:
        self.layout = layout
        tail = (layout.num_blocks, layout.block_size, layout.num_kv_heads, layout.head_dim)
        self._keys = [np.full((n, *tail), np.nan, np.float32) for n in layout.group_layers]
        self._values = [np.full((n, *tail), np.nan, np.float32) for n in layout.group_layers]

    def copy(self, copies: NDArray[np.int32]) -> None:
        """Apply (group, src, dst, num_tokens) lines [C, 4]; they are never chained."""
        for group, src, dst, count in copies:
            for pool in (self._keys[group], self._values[group]):
                pool[:, dst, :count] = pool[:, src, :count]

    def write(
        self,
        group: int,
        layer: int,
        slots: tuple[NDArray[np.int64], NDArray[np.int64]],
        *,
        key: Floats,
        value: Floats,
    ) -> None:
        """Store key and value [T, kv_heads, head_dim] at (block, offset) ``slots``."""
        if self.layout.kv_dtype == "int8":
            key, value = through_int8(key), through_int8(value)
        self._keys[group][layer][slots] = key
        self._values[group][layer][slots] = value

    def gather(
        self, group: int, layer: int, slots: tuple[NDArray[np.int64], NDArray[np.int64]]
    ) -> tuple[Floats, Floats]:
        """Key and value [S, kv_heads, head_dim] at (block, offset) ``slots``."""
        return self._keys[group][layer][slots], self._values[group][layer][slots]

    def block(self, group: int, layer: int, block: int) -> tuple[Floats, Floats]:
        """Copies of one block's K and V [block_size, kv_heads, head_dim]."""
        return self._keys[group][layer][block].copy(), self._values[group][layer][block].copy()

    def poison(self, blocks: NDArray[np.int32]) -> None:
        """Forget blocks: NaN in every slot of every group and layer."""
        for pool in (*self._keys, *self._values):
            pool[:, blocks] = np.nan


def through_int8(x: Floats) -> Floats:
    """What int8 leaves of x [..., head_dim]: whole multiples of its largest magnitude / 127."""
    peak = np.abs(x).max(axis=-1, keepdims=True)
    scale = np.maximum(peak, np.float32(2.0**-100)) / np.float32(127)
    rounded: Floats = np.rint(x / scale) * scale
    return rounded


def slots_of(
    positions: NDArray[np.int64], table: NDArray[np.int32], *, first_position: int, block_size: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(block id, offset) of each position through one row's block table."""
    relative = positions - first_position
    return table[relative // block_size].astype(np.int64), relative % block_size
