"""Float32 weights, dequantised when first used."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from octavo.weights.tensor import LogicalTensor

Floats = NDArray[np.float32]

# Models that need no more than this in float32 stay dequantised; larger ones are read each time.
_KEPT_BYTES = 3 << 30


class Weights:
    """Looks tensors up by canonical name."""

    def __init__(self, tensors: Mapping[str, LogicalTensor]) -> None:
        self._tensors = tensors
        self._kept: dict[str, Floats] = {}
        total = sum(4 * math.prod(tensor.shape) for tensor in tensors.values())
        self._keep = total <= _KEPT_BYTES

    def __getitem__(self, name: str) -> Floats:
        """The whole tensor."""
        if name in self._kept:
            return self._kept[name]
        values = self._tensors[name].dequantize()
        if self._keep:
            self._kept[name] = values
        return values

    def rows(self, name: str, ids: NDArray[np.int32]) -> Floats:
        """Rows ``ids`` of a matrix, without touching the others."""
        tensor = self._tensors[name]
        rows, columns = tensor.shape
        data = tensor.data.reshape(rows, -1)[ids].reshape(-1)
        return LogicalTensor(tensor.name, tensor.type, (len(ids), columns), data).dequantize()

    def clear(self) -> None:
        """Let go of what is kept."""
        self._kept.clear()
