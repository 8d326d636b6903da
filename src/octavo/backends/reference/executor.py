"""The reference executor: walks the program op by op, one row at a time where that is clearer."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from octavo.backends.program import (
    NO_LOGPROBS,
    BackendOptions,
    CacheLayout,
    Embed,
    LinearResidual,
    NormHead,
    NormLinear,
    NormMlp,
    Op,
    PagedAttention,
    Program,
    StepBatch,
    StepOutput,
)
from octavo.backends.reference.cache import PagedCache, slots_of
from octavo.backends.reference.ops import attend, rms_norm, rotate, row_parallel, silu
from octavo.backends.reference.sample import sample_batch
from octavo.backends.reference.weights import Weights
from octavo.errors import ModelFileError
from octavo.weights.tensor import LogicalTensor

Floats = NDArray[np.float32]

REVISION = 1


class ReferenceExecutor:
    """A model in float32 with a float32 pool; a KV dtype of int8 rounds what is written to it."""

    def __init__(
        self, program: Program, tensors: Mapping[str, LogicalTensor], layout: CacheLayout
    ) -> None:
        for op in program.ops:
            if isinstance(op, NormMlp) and op.activation != "silu":
                raise ModelFileError(f"activation '{op.activation}' is not supported")
        self._program = program
        self._weights = Weights(tensors)
        self._cache = PagedCache(layout)
        self._progress = 0

    @property
    def fingerprint(self) -> str:
        """Names the arithmetic; numpy's BLAS makes this backend a tolerance oracle only."""
        kv = "int8" if self._cache.layout.kv_dtype == "int8" else "f32"
        return f"reference/{REVISION}/numpy/f32/kv-{kv}"

    @property
    def progress(self) -> int:
        """Ops run so far."""
        return self._progress

    def forward(self, batch: StepBatch) -> StepOutput:
        """Copies, then the program over the batch, then one sample per entry of the batch."""
        self._cache.copy(batch.copies)
        if len(batch.token_ids) == 0:
            return StepOutput((), *NO_LOGPROBS)
        state = _Activations()
        for op in self._program.ops:
            self._run(op, batch, state)
            self._progress += 1
        output = sample_batch(state.logits, batch)
        output.hidden = state.hidden if batch.want_hidden else None
        return output

    def read_block(self, group: int, layer: int, block: int) -> tuple[Floats, Floats]:
        """K and V of one block, [block_size, kv_heads, head_dim] each."""
        return self._cache.block(group, layer, block)

    def poison_blocks(self, blocks: NDArray[np.int32]) -> None:
        """Fill every slot of ``blocks`` with NaN."""
        self._cache.poison(blocks)

    def close(self) -> None:
        """Let go of the weights."""
        self._weights.clear()

    def _run(self, op: Op, batch: StepBatch, state: _Activations) -> None:
        weights = self._weights
        match op:
            case Embed():
                state.x = weights.rows(op.table, batch.token_ids) * np.float32(op.scale)
            case NormLinear():
                h = rms_norm(state.x, weights[op.norm], op.eps)
                state.qkv = np.concatenate([h @ weights[name].T for name in op.weights], axis=1)
                if op.biases:
                    state.qkv += np.concatenate([weights[name] for name in op.biases])
            case PagedAttention():
                state.attn = self._attention(op, batch, state.qkv)
            case LinearResidual():
                state.x = state.x + row_parallel(
                    state.attn, weights[op.weight], self._program.k_slices
                )
                if op.bias:
                    state.x = state.x + weights[op.bias]
            case NormMlp():
                h = rms_norm(state.x, weights[op.norm], op.eps)
                h = silu(h @ weights[op.gate].T) * (h @ weights[op.up].T)
                state.x = state.x + row_parallel(h, weights[op.down], self._program.k_slices)
            case NormHead():
                chosen = state.x[batch.sample.token_index]
                state.hidden = rms_norm(chosen, weights[op.norm], op.eps)
                state.logits = state.hidden @ weights[op.weight].T

    def _attention(self, op: PagedAttention, batch: StepBatch, qkv: Floats) -> Floats:
        """Write the keys and values of all rows first, then attend from the cache, row by row."""
        widths = np.array([op.num_heads, op.num_kv_heads]) * op.head_dim
        query, key, value = np.split(qkv, np.cumsum(widths), axis=1)
        query = query.reshape(-1, op.num_heads, op.head_dim)
        key = key.reshape(-1, op.num_kv_heads, op.head_dim)
        value = value.reshape(-1, op.num_kv_heads, op.head_dim)
        rows = range(len(batch.slots))
        for row in rows:
            tokens, positions = _span(batch, row)
            rotated = rotate(key[tokens], positions, op.rope)
            slots = self._slots(op.group, batch, row, positions=positions)
            self._cache.write(op.group, op.layer, slots, key=rotated, value=value[tokens])
        out = np.empty_like(query)
        for row in rows:
            tokens, positions = _span(batch, row)
            out[tokens] = self._attend_row(
                op, batch, row, query=rotate(query[tokens], positions, op.rope)
            )
        return out.reshape(len(out), -1)

    def _attend_row(
        self, op: PagedAttention, batch: StepBatch, row: int, *, query: Floats
    ) -> Floats:
        _, positions = _span(batch, row)
        first = int(batch.first_position[op.group][row])
        if op.window is not None:
            first = max(first, int(positions[0]) - op.window + 1)
        seen = np.arange(first, positions[-1] + 1)
        slots = self._slots(op.group, batch, row, positions=seen)
        key, value = self._cache.gather(op.group, op.layer, slots)
        distance = positions[:, None] - seen[None, :]
        visible = distance >= 0
        if op.window is not None:
            visible &= distance < op.window
        return attend(query * np.float32(op.scale), key, value, visible=visible)

    def _slots(
        self, group: int, batch: StepBatch, row: int, *, positions: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        table = batch.block_tables[group][batch.slots[row]]
        first = int(batch.first_position[group][row])
        return slots_of(
            positions, table, first_position=first, block_size=self._cache.layout.block_size
        )


class ReferenceBackend:
    """Makes reference executors."""

    name = "reference"

    def load(
        self,
        program: Program,
        tensors: Mapping[str, LogicalTensor],
        layout: CacheLayout,
        *,
        options: BackendOptions,
    ) -> ReferenceExecutor:
        """Allocate the pool. Threads, ISA and activation mode mean nothing here."""
        del options
        return ReferenceExecutor(program, tensors, layout)

    def kv_block_bytes(self, layout: CacheLayout, group: int) -> int:
        """K and V in float32 of all the group's layers."""
        slot = layout.num_kv_heads * layout.head_dim * 2 * 4
        return layout.group_layers[group] * layout.block_size * slot


class _Activations:
    """The named buffers of a program: x, qkv and attn per token, hidden and logits per sample."""

    x: Floats
    qkv: Floats
    attn: Floats
    hidden: Floats
    logits: Floats


def _span(batch: StepBatch, row: int) -> tuple[slice, NDArray[np.int64]]:
    """A row's flat tokens, and their positions in its sequence."""
    start, end = (int(edge) for edge in batch.query_start_loc[row : row + 2])
    return slice(start, end), np.arange(end - start) + int(batch.context_lens[row])
