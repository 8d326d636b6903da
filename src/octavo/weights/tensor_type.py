"""The storage types of weights."""

from __future__ import annotations

from enum import Enum


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
