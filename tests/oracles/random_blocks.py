"""Random tensors of every storage type: valid blocks with arbitrary quants and scales."""

from __future__ import annotations

import numpy as np

from octavo.weights.tensor import LogicalTensor, TensorType

# Where the f16 scales of a block stand, in bytes.
_SCALES = {
    TensorType.Q4_0: (0,),
    TensorType.Q4_1: (0, 2),
    TensorType.Q5_0: (0,),
    TensorType.Q8_0: (0,),
    TensorType.Q4_K: (0, 2),
    TensorType.Q6_K: (208,),
}


def random_tensor(
    name: str, kind: TensorType, rows: int, columns: int, *, seed: int = 0
) -> LogicalTensor:
    """A matrix whose values are of order 1 / √columns."""
    rng = np.random.default_rng(seed)
    if kind.block_elements == 1:
        values = rng.normal(0, columns**-0.5, (rows, columns)).astype(np.float32)
        if kind is TensorType.F16:
            data = values.astype(np.float16).view(np.uint8)
        elif kind is TensorType.BF16:
            data = (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        else:
            data = values.view(np.uint8)
        return LogicalTensor(name, kind, (rows, columns), data.reshape(-1))
    count = rows * columns // kind.block_elements
    blocks = rng.integers(0, 256, (count, kind.block_bytes), np.uint8)
    size = columns**-0.5 / {32: 8, 256: 500}[kind.block_elements]
    for offset in _SCALES[kind]:
        scale = (rng.uniform(-size, size, count)).astype(np.float16)
        blocks[:, offset : offset + 2] = scale.view(np.uint8).reshape(count, 2)
    return LogicalTensor(name, kind, (rows, columns), blocks.reshape(-1))


def vector(name: str, size: int, *, seed: int = 0, centre: float = 1.0) -> LogicalTensor:
    """A float32 vector around ``centre``."""
    values = np.random.default_rng(seed).normal(centre, 0.2, size).astype(np.float32)
    return LogicalTensor(name, TensorType.F32, (size,), values.view(np.uint8))
