"""What each storage type means: blocks of bytes to float32, one short function per type.

A block of a quantised type holds 32 or 256 weights of one row. Every function takes the blocks as
uint8 [B, block_bytes] and returns float32 [B, block_elements]; all arithmetic is in float32, in
the order that the format defines, so that values are exact and not merely close.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from octavo.weights.tensor_type import TensorType

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

# Elements converted at a time: bounds the temporaries beside the result.
_CHUNK_ELEMENTS: Final = 1 << 20


def dequantize(tensor_type: TensorType, data: Bytes) -> Floats:
    """The values of whole blocks of ``tensor_type``, as float32 [B, block_elements]."""
    convert = _CONVERTERS[tensor_type]
    blocks = data.reshape(-1, tensor_type.block_bytes)
    values = np.empty((len(blocks), tensor_type.block_elements), np.float32)
    step = _CHUNK_ELEMENTS // tensor_type.block_elements
    # A scale may be infinite or NaN in a damaged file: that is the caller's to judge.
    with np.errstate(all="ignore"):
        for start in range(0, len(blocks), step):
            values[start : start + step] = convert(blocks[start : start + step])
    return values


def _f32(blocks: Bytes) -> Floats:
    return np.ascontiguousarray(blocks).view("<f4")


def _f16(blocks: Bytes) -> Floats:
    return np.ascontiguousarray(blocks).view("<f2").astype(np.float32)


def _bf16(blocks: Bytes) -> Floats:
    words = np.ascontiguousarray(blocks).view("<u2").astype(np.uint32)
    return (words << np.uint32(16)).view(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """[B, n] bytes -> [B, 2n]: all low halves of a block, then all high halves."""
    return np.concatenate([packed & np.uint8(15), packed >> np.uint8(4)], axis=1)


def _q4_0(blocks: Bytes) -> Floats:
    """d · (q − 8): f16 d, 16 bytes of nibbles."""
    d = _f16(blocks[:, :2])
    return d * (_nibbles(blocks[:, 2:]).astype(np.float32) - np.float32(8))


def _q4_1(blocks: Bytes) -> Floats:
    """d · q + m: f16 d, f16 m, 16 bytes of nibbles."""
    d, m = _f16(blocks[:, 0:2]), _f16(blocks[:, 2:4])
    return d * _nibbles(blocks[:, 4:]).astype(np.float32) + m


def _q5_0(blocks: Bytes) -> Floats:
    """d · (q − 16): f16 d, 32 fifth bits, 16 bytes of nibbles."""
    d = _f16(blocks[:, :2])
    fifth = np.unpackbits(blocks[:, 2:6], axis=1, bitorder="little")
    q = _nibbles(blocks[:, 6:]) | (fifth << np.uint8(4))
    return d * (q.astype(np.float32) - np.float32(16))


def _q8_0(blocks: Bytes) -> Floats:
    """d · q: f16 d, 32 signed bytes."""
    d = _f16(blocks[:, :2])
    return d * np.ascontiguousarray(blocks[:, 2:]).view(np.int8).astype(np.float32)


def _q4_k(blocks: Bytes) -> Floats:
    """d · s · q − dmin · m for 8 groups of 32: f16 d, f16 dmin, 12 bytes of s and m, 128 of q.

    Groups 0–3 keep s and m in the low six bits of bytes 0–3 and 4–7. Groups 4–7 have their low
    four bits in bytes 8–11 and their high two bits on top of the first eight bytes. A pair of
    groups (2i, 2i + 1) shares 32 bytes of q: the low halves, then the high halves.
    """
    d, dmin = _f16(blocks[:, 0:2]), _f16(blocks[:, 2:4])
    low, middle, high = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    six, four, two = np.uint8(63), np.uint8(15), np.uint8(6)
    s = np.concatenate([low & six, (high & four) | (low >> two << np.uint8(4))], axis=1)
    m = np.concatenate(
        [middle & six, (high >> np.uint8(4)) | (middle >> two << np.uint8(4))], axis=1
    )
    scale = d * s.astype(np.float32)
    offset = dmin * m.astype(np.float32)
    q = _nibbles(blocks[:, 16:].reshape(-1, 32)).reshape(-1, 8, 32).astype(np.float32)
    return (scale[:, :, None] * q - offset[:, :, None]).reshape(-1, 256)


def _q6_k(blocks: Bytes) -> Floats:
    """d · s · (q − 32) for 16 groups of 16: 128 bytes of low halves, 64 of top bits, 16 s, f16 d.

    Each half of 128 weights has 64 bytes of low halves (byte i: weights i and i + 64) and 32 bytes
    of top bits (byte i: weights i, i + 32, i + 64, i + 96, two bits each, lowest first).
    """
    low = _nibbles(blocks[:, :128].reshape(-1, 64))
    shifts = np.array([0, 2, 4, 6], np.uint8)[None, :, None]
    top = (blocks[:, 128:192].reshape(-1, 1, 32) >> shifts) & np.uint8(3)
    q = low | (top.reshape(-1, 128) << np.uint8(4))
    s = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    scale = _f16(blocks[:, 208:210]) * s
    centred = q.reshape(-1, 16, 16).astype(np.float32) - np.float32(32)
    return (scale[:, :, None] * centred).reshape(-1, 256)


_CONVERTERS: Final[dict[TensorType, Callable[[Bytes], Floats]]] = {
    TensorType.F32: _f32,
    TensorType.F16: _f16,
    TensorType.BF16: _bf16,
    TensorType.Q4_0: _q4_0,
    TensorType.Q4_1: _q4_1,
    TensorType.Q5_0: _q5_0,
    TensorType.Q8_0: _q8_0,
    TensorType.Q4_K: _q4_k,
    TensorType.Q6_K: _q6_k,
}
