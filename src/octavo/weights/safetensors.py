"""A strict reader of safetensors files over a read-only memory map.

    [header length, 8 bytes] [header: JSON of name -> dtype, shape, data_offsets] [tensor data]

The tensors must cover the data exactly, without a hole or an overlap, as the format demands.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from octavo.errors import ModelFileError
from octavo.weights.mapping import map_file
from octavo.weights.tensor import LogicalTensor, TensorType

MAX_HEADER_BYTES: Final = 1 << 25
MAX_TENSORS: Final = 65_536
MAX_DIMENSIONS: Final = 4

_TYPES: Final = {"F32": TensorType.F32, "F16": TensorType.F16, "BF16": TensorType.BF16}


def open_safetensors(path: Path) -> dict[str, LogicalTensor]:
    """The tensors of one file under the names that it gives them.

    Raises:
        ModelFileError: the file is missing, truncated, malformed or holds something unsupported.
    """
    buffer = map_file(path)
    size = len(buffer)
    length = int.from_bytes(buffer[:8], "little") if size >= 8 else 0
    if size < 8 or length > size - 8:
        raise ModelFileError(
            f"{path}: truncated or not a safetensors file (a header of {length} bytes in a file "
            f"of {size}); fetch the file again"
        )
    if length > MAX_HEADER_BYTES:
        raise ModelFileError(
            f"{path}: declares a header of {length} bytes, the limit is {MAX_HEADER_BYTES}"
        )
    header = parse_json(buffer[8 : 8 + length], f"{path}: the header")
    header.pop("__metadata__", None)
    if not 0 < len(header) <= MAX_TENSORS:
        raise ModelFileError(f"{path}: holds {len(header)} tensors, allowed are 1 to {MAX_TENSORS}")
    data = np.frombuffer(buffer, np.uint8)[8 + length :]
    entries = [_entry(path, name, fields) for name, fields in header.items()]
    end, previous = 0, ""
    for name, _, _, (start, stop) in sorted(entries, key=lambda entry: entry[3]):
        if start != end:
            what = "overlaps" if start < end else "leaves a hole after"
            raise ModelFileError(f"{path}: tensor {name!r} {what} {previous!r}; fetch it again")
        end, previous = stop, name
    if end != data.size:
        raise ModelFileError(
            f"{path}: the tensors end at byte {end} of the data, the file holds {data.size}; "
            "fetch the file again"
        )
    return {
        name: LogicalTensor(name, tensor_type, shape, data[start:stop])
        for name, tensor_type, shape, (start, stop) in entries
    }


def parse_json(data: bytes, what: str) -> dict[str, Any]:
    """A JSON object without duplicate keys.

    Raises:
        ModelFileError: it is something else.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise ModelFileError(f"{what} holds the key {twice!r} twice; fetch it again")
        return found

    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError):
        raise ModelFileError(f"{what} is not valid JSON; fetch it again") from None
    if not isinstance(value, dict):
        raise ModelFileError(f"{what} is not a JSON object; fetch it again")
    return value


_Entry = tuple[str, TensorType, tuple[int, ...], tuple[int, int]]


def _entry(path: Path, name: str, fields: object) -> _Entry:
    what = f"{path}: tensor {name!r}"
    if not isinstance(fields, Mapping):
        raise ModelFileError(f"{what} is malformed; fetch the file again")
    dtype = fields.get("dtype")
    if not isinstance(dtype, str) or dtype not in _TYPES:
        raise ModelFileError(f"{what} has unsupported type {dtype!r}; use F32, F16 or BF16")
    shape = _numbers(fields.get("shape"))
    offsets = _numbers(fields.get("data_offsets"))
    if shape is None or not 1 <= len(shape) <= MAX_DIMENSIONS or 0 in shape:
        raise ModelFileError(f"{what} has bad dimensions {fields.get('shape')!r}")
    if offsets is None or len(offsets) != 2:
        raise ModelFileError(f"{what} has bad data_offsets; fetch the file again")
    need = math.prod(shape) * _TYPES[dtype].block_bytes
    if offsets[1] - offsets[0] != need:
        raise ModelFileError(
            f"{what} of shape {list(shape)} needs {need} bytes, its offsets span "
            f"{offsets[1] - offsets[0]}; fetch the file again"
        )
    return name, _TYPES[dtype], shape, (offsets[0], offsets[1])


def _numbers(value: object) -> tuple[int, ...] | None:
    good = isinstance(value, list) and all(
        type(item) is int and 0 <= item < 1 << 63 for item in value
    )
    return tuple(value) if good and isinstance(value, list) else None
