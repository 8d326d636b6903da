"""Logical tensors: what a model file says, before any backend packs it its own way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class TensorType(Enum):
    """Storage types: (GGUF type number, elements per block, bytes per block)."""

    F32 = (0, 1, 4)
    F16 = (1, 1, 2)
    Q4_0 = (2, 32, 18)
    Q4_1 = (3, 32, 20)
    Q5_0 = (6, 32, 22)
    Q8_0 = (8, 32, 34)
    Q4_K = (12, 256, 144)
    Q6_K = (14, 256, 210)
    BF16 = (30, 1, 2)

    @property
    def gguf_id(self) -> int:
        """The type's number in a GGUF file."""
        return self.value[0]

    @property
    def block_elements(self) -> int:
        """Elements that share one quantisation block."""
        return self.value[1]

    @property
    def block_bytes(self) -> int:
        """Bytes of one quantisation block."""
        return self.value[2]


@dataclass(frozen=True, slots=True, eq=False)
class LogicalTensor:
    """A tensor as stored: ``shape`` is row-major (rows, columns), columns contiguous.

    ``data`` is a read-only uint8 view (usually of a memory map) of the rows' blocks, exactly as
    the GGUF format lays them out for ``type``; safetensors floats are the block size 1 case.
    """

    name: str
    type: TensorType
    shape: tuple[int, ...]
    data: NDArray[np.uint8]

    def dequantize(self) -> NDArray[np.float32]:
        """The values as float32, of ``shape``: the exact meaning that every packing must keep."""
        from octavo.weights.dequantize import dequantize

        return dequantize(self)


class ModelFile(Protocol):
    """An opened model: metadata and tensors under canonical (GGUF) names.

    ``kind`` is "gguf" or "hf". ``metadata`` is the GGUF key-value map, or for a Hugging Face
    directory {"config": …, "generation_config": …, "tokenizer_config": …}. ``tensors`` maps
    canonical names (``token_embd.weight``, ``blk.0.attn_q.weight``, …). ``digest`` identifies
    the weights.
    """

    kind: str
    metadata: Mapping[str, Any]
    tensors: Mapping[str, LogicalTensor]
    digest: str
