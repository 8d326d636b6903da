"""Logical tensors: what a model file says, before any backend packs it its own way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from octavo.weights.dequantize import dequantize
from octavo.weights.tensor_type import TensorType


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
        return dequantize(self.type, self.data).reshape(self.shape)


class ModelFile(Protocol):
    """An opened model: metadata and tensors under canonical (GGUF) names.

    ``kind`` is "gguf" or "hf". ``metadata`` is the GGUF key-value map, or for a Hugging Face
    directory {"config": …, "generation_config": …, "tokenizer_config": …}. ``tensors`` maps
    canonical names (``token_embd.weight``, ``blk.0.attn_q.weight``, …). ``digest`` identifies
    the weights.
    """

    @property
    def kind(self) -> str:
        """ "gguf" or "hf"."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the header says."""

    @property
    def tensors(self) -> Mapping[str, LogicalTensor]:
        """The weights under canonical names."""

    @property
    def digest(self) -> str:
        """Identifies the weights; computed at first use."""


__all__ = ["LogicalTensor", "ModelFile", "TensorType"]
