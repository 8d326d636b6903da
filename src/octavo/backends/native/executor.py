"""A loaded native model: arrays in, arrays out."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo import _native
from octavo.backends.program import (
    NO_LOGPROBS,
    CacheLayout,
    OpTime,
    Program,
    StepBatch,
    StepOutput,
)
from octavo.weights.tensor import LogicalTensor


class NativeExecutor:
    """Owns the native model: packed weights, KV pool, scratch memory and worker threads.

    ``info`` reports what was allocated and on what: isa, num_threads, weight_bytes,
    huge_page_fraction, and ``notes``, one line for everything that runs slower than it could.
    """

    def __init__(
        self,
        model: _native.Model,
        layout: CacheLayout,
        *,
        program: Program,
        fingerprint: str,
        info: dict[str, object],
        borrowed: tuple[LogicalTensor, ...],
    ) -> None:
        self._model: _native.Model | None = model
        self._layout = layout
        self._vocab_size = program.vocab_size
        self._hidden_size = program.hidden_size
        self._fingerprint = fingerprint
        self.info = info
        # The embedding is read in place, from the model file's memory map.
        self._borrowed = borrowed

    @property
    def fingerprint(self) -> str:
        """Kernel revision, activation mode, KV dtype; every instruction set gives the same bits."""
        return self._fingerprint

    @property
    def progress(self) -> int:
        """Layers computed so far."""
        return 0 if self._model is None else self._model.progress

    def forward(self, batch: StepBatch) -> StepOutput:
        """One step: copies, program, sampling. The GIL is released meanwhile."""
        model, width = self._model, batch.sample.max_logprobs
        assert model is not None, "the executor is closed"
        if width < 0 and not (batch.want_logits or batch.want_hidden):
            return StepOutput(model.forward(batch, None), *NO_LOGPROBS)
        count = len(batch.sample.token_index)
        output = StepOutput(
            token_ids=(),
            logprobs=np.empty(count, np.float32),
            top_ids=np.full((count, max(0, width)), -1, np.int32),
            top_logprobs=np.full((count, max(0, width)), -np.inf, np.float32),
            logits=np.empty((count, self._vocab_size), np.float32) if batch.want_logits else None,
            hidden=np.empty((count, self._hidden_size), np.float32) if batch.want_hidden else None,
        )
        output.token_ids = model.forward(batch, output)
        return output

    @property
    def span(self) -> tuple[float, float]:
        """When the last step began and ended: arrays were checked before and tokens listed after.

        Seconds on the clock of ``time.perf_counter``.
        """
        return self._loaded().span

    def start_profile(self) -> None:
        """Forget earlier times and time every op from now on."""
        self._loaded().start_profile()

    def op_times(self) -> list[OpTime]:
        """Times since ``start_profile`` of the ops that ran, in the order of a step.

        KV and weights count once per step, however often a prompt's rows read them from cache.
        """
        return [
            OpTime(op=op, calls=calls, seconds=seconds, read_bytes=size, operations=operations)
            for op, calls, seconds, size, operations in self._loaded().costs()
            if calls
        ]

    def read_block(
        self, group: int, layer: int, block: int
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """K and V of one block as float32 [block_size, kv_heads, head_dim]."""
        shape = (self._layout.block_size, self._layout.num_kv_heads, self._layout.head_dim)
        keys, values = np.empty(shape, np.float32), np.empty(shape, np.float32)
        self._loaded().read_block(group, layer, block, keys, values)
        return keys, values

    def poison_blocks(self, blocks: NDArray[np.int32]) -> None:
        """Fill every slot of ``blocks`` with NaN, in every group and layer."""
        self._loaded().poison(np.ascontiguousarray(blocks, np.int32))

    def _loaded(self) -> _native.Model:
        assert self._model is not None, "the executor is closed"
        return self._model

    def close(self) -> None:
        """Free memory and stop the threads. Idempotent."""
        self._model = None
        self._borrowed = ()
