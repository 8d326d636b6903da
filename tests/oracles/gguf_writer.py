"""Writes small or damaged GGUF files for tests, by the published layout and nothing else."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.weights.tensor import TensorType

ALIGNMENT = 32


def write_gguf(
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, tuple[TensorType, tuple[int, ...], NDArray[np.uint8]]],
    *,
    version: int = 3,
) -> None:
    """``tensors`` maps a name to (type, row-major shape, raw bytes). Data is written in order."""
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata)))
        for key, value in metadata.items():
            file.write(string(key) + typed_value(value))
        offset = 0
        for name, (tensor_type, shape, data) in tensors.items():
            file.write(tensor_entry(name, shape, tensor_type.gguf_id, offset))
            offset += -(-data.nbytes // ALIGNMENT) * ALIGNMENT
        file.write(b"\0" * (-file.tell() % ALIGNMENT))
        for _, _, data in tensors.values():
            file.write(data.tobytes())
            file.write(b"\0" * (-data.nbytes % ALIGNMENT))


def tensor_entry(name: str, shape: tuple[int, ...], type_id: int, offset: int) -> bytes:
    """One line of the tensor directory."""
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
    return string(name) + dimensions + struct.pack("<IQ", type_id, offset)


def string(text: str) -> bytes:
    """A length-prefixed string."""
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def typed_value(value: object) -> bytes:
    """A value with its type number in front: the smallest type that files usually have."""
    if isinstance(value, list):
        bodies = [typed_value(item) for item in value]
        kind = bodies[0][:4] if bodies else struct.pack("<I", 8)
        if any(body[:4] != kind for body in bodies):
            kind = struct.pack("<I", 11)
            bodies = [kind + struct.pack("<q", item) for item in value]
        return (
            struct.pack("<I", 9)
            + kind
            + struct.pack("<Q", len(value))
            + b"".join(body[4:] for body in bodies)
        )
    if isinstance(value, bool):
        return struct.pack("<IB", 7, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + string(value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    assert isinstance(value, int)
    if 0 <= value < 1 << 32:
        return struct.pack("<II", 4, value)
    return struct.pack("<Iq", 11, value)
