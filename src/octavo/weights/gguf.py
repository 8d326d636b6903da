"""A strict reader of GGUF files (versions 2 and 3) over a read-only memory map.

    [magic, version, tensor count, key count] [keys and values] [tensor directory] pad [tensor data]

Nothing is allocated from a number that the file declares before that number has been held against
the bytes that are there, so a hostile file costs a bounded amount of memory and time. Everything
that does not fit raises ``ModelFileError`` with one line that names the cause and the remedy.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from octavo.errors import ModelFileError
from octavo.weights.digest import file_digest
from octavo.weights.mapping import map_file
from octavo.weights.tensor import LogicalTensor, TensorType

MAGIC: Final = b"GGUF"
MAX_KEYS: Final = 65_536
MAX_TENSORS: Final = 65_536
MAX_ARRAY: Final = 1 << 22
MAX_NAME_BYTES: Final = 1_024
MAX_STRING_BYTES: Final = 1 << 24
MAX_DIMENSIONS: Final = 4
MAX_ALIGNMENT: Final = 65_536

_STRING: Final = 8
_ARRAY: Final = 9
_BOOL: Final = 7
# Value type number -> struct code of a scalar.
_SCALARS: Final = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_TYPES: Final = {tensor_type.gguf_id: tensor_type for tensor_type in TensorType}
# Types that exist in the format and that Octavo refuses: named, so that the refusal can be.
_REFUSED_TYPES: Final = {
    7: "Q5_1", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 13: "Q5_K", 15: "Q8_K",
    16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S",
    22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M",
    34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip


@dataclass(frozen=True)
class GgufFile:
    """An opened GGUF file (a ``ModelFile``). Its tensors are views of the memory map."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, LogicalTensor]
    kind: str = field(default="gguf", init=False)

    @cached_property
    def digest(self) -> str:
        """BLAKE2b of the whole file, header included (see ``weights.digest``)."""
        return file_digest(self.path)


class _Cursor:
    """Reads forward through the map; every read is checked against the end of the file."""

    def __init__(self, buffer: mmap.mmap, path: Path) -> None:
        self.buffer = buffer
        self.size = len(buffer)
        self.position = 0
        self.path = path

    def fail(self, cause: str, remedy: str = "fetch the file again") -> ModelFileError:
        return ModelFileError(f"{self.path}: {cause}; {remedy}")

    def need(self, count: int, what: str) -> None:
        if count > self.size - self.position:
            raise self.fail(
                f"truncated: {what} needs {count} bytes at offset {self.position}, "
                f"the file has {self.size}"
            )

    def integer(self, code: str, what: str) -> int:
        return int(self.scalar(code, what))

    def scalar(self, code: str, what: str) -> int | float:
        width = struct.calcsize("<" + code)
        self.need(width, what)
        (value,) = struct.unpack_from("<" + code, self.buffer, self.position)
        self.position += width
        assert isinstance(value, int | float)
        return value

    def string(self, what: str, limit: int = MAX_STRING_BYTES) -> str:
        length = self.integer("Q", what)
        if length > limit:
            raise self.fail(f"{what} declares {length} bytes, the limit is {limit}")
        self.need(length, what)
        raw = self.buffer[self.position : self.position + length]
        self.position += length
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise self.fail(f"{what} is not valid UTF-8") from None

    def array(self, what: str) -> list[object]:
        element = self.integer("I", what)
        count = self.integer("Q", what)
        if count > MAX_ARRAY:
            raise self.fail(f"{what} declares {count} elements, the limit is {MAX_ARRAY}")
        if element == _STRING:
            self.need(8 * count, what)
            return list(self._strings(count, what))
        if element not in _SCALARS:
            raise self.fail(f"{what} is an array of unsupported type {element}")
        dtype = np.dtype(_SCALARS[element]).newbyteorder("<")
        self.need(count * dtype.itemsize, what)
        if element == _BOOL:
            dtype = np.dtype(np.uint8)
        values = np.frombuffer(self.buffer, dtype, count, self.position)
        self.position += count * dtype.itemsize
        return [bool(v) for v in values] if element == _BOOL else list(values.tolist())

    def _strings(self, count: int, what: str) -> list[str]:
        # A vocabulary has 10^5 of them: this loop is the time of opening a file.
        buffer, size, position = self.buffer, self.size, self.position
        unpack = struct.Struct("<Q").unpack_from
        strings = []
        try:
            for _ in range(count):
                (length,) = unpack(buffer, position)
                position += 8
                if length > size - position:
                    break
                strings.append(buffer[position : position + length].decode("utf-8"))
                position += length
        except UnicodeDecodeError:
            raise self.fail(f"{what}[{len(strings)}] is not valid UTF-8") from None
        except struct.error:
            pass
        if len(strings) < count:
            raise self.fail(f"truncated: {what} ends after {len(strings)} of {count} strings")
        self.position = position
        return strings

    def value(self, value_type: int, what: str) -> object:
        if value_type == _STRING:
            return self.string(what)
        if value_type == _ARRAY:
            return self.array(what)
        if value_type == _BOOL:
            raw = self.integer("B", what)
            if raw > 1:
                raise self.fail(f"{what} is a boolean of value {raw}")
            return bool(raw)
        if value_type not in _SCALARS:
            raise self.fail(f"{what} has unsupported value type {value_type}")
        return self.scalar(_SCALARS[value_type], what)


@dataclass(frozen=True, slots=True)
class _Entry:
    """One line of the tensor directory; ``offset`` counts from the start of the tensor data."""

    name: str
    type: TensorType
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


def open_gguf(path: Path) -> GgufFile:
    """Open and check a GGUF file.

    Raises:
        ModelFileError: the file is missing, truncated, malformed or holds something unsupported.
    """
    buffer = map_file(path)
    cursor = _Cursor(buffer, path)
    num_tensors, num_keys = _read_preamble(cursor)
    metadata = _read_metadata(cursor, num_keys)
    entries = _read_directory(cursor, num_tensors)
    alignment = _alignment(cursor, metadata)
    data_start = _check_layout(cursor, entries, alignment)
    tensors = {
        entry.name: LogicalTensor(
            entry.name,
            entry.type,
            entry.shape,
            np.frombuffer(buffer, np.uint8, entry.num_bytes, data_start + entry.offset),
        )
        for entry in entries
    }
    return GgufFile(path, metadata, tensors)


def _read_preamble(cursor: _Cursor) -> tuple[int, int]:
    cursor.need(4, "the magic number")
    magic = cursor.buffer[:4]
    cursor.position = 4
    if magic != MAGIC:
        raise cursor.fail(
            f"not a GGUF file (it begins with {magic!r})", "give a .gguf file or a model directory"
        )
    version = cursor.integer("I", "the version")
    if version in (2 << 24, 3 << 24):
        raise cursor.fail("big-endian GGUF is not supported", "convert it to little-endian")
    if version not in (2, 3):
        raise cursor.fail(f"GGUF version {version} is not supported", "use version 2 or 3")
    num_tensors = cursor.integer("Q", "the tensor count")
    num_keys = cursor.integer("Q", "the key count")
    for count, limit, what in (
        (num_tensors, MAX_TENSORS, "tensors"),
        (num_keys, MAX_KEYS, "keys"),
    ):
        if count > limit:
            raise cursor.fail(f"declares {count} {what}, the limit is {limit}")
    return num_tensors, num_keys


def _read_metadata(cursor: _Cursor, num_keys: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(num_keys):
        key = cursor.string("a key", MAX_NAME_BYTES)
        if key in metadata:
            raise cursor.fail(f"duplicate key {key!r}")
        metadata[key] = cursor.value(cursor.integer("I", f"the type of {key!r}"), f"key {key!r}")
    if not isinstance(metadata.get("general.architecture"), str):
        raise cursor.fail("the key 'general.architecture' is missing or not a string")
    if metadata.get("split.count", 1) != 1:
        raise cursor.fail(
            f"one of {metadata['split.count']} split files, which is not supported",
            "merge the parts into one file",
        )
    return metadata


def _read_directory(cursor: _Cursor, num_tensors: int) -> list[_Entry]:
    entries: dict[str, _Entry] = {}
    for _ in range(num_tensors):
        entry = _read_entry(cursor)
        if entry.name in entries:
            raise cursor.fail(f"duplicate tensor name {entry.name!r}")
        entries[entry.name] = entry
    if not entries:
        raise cursor.fail("holds no tensors")
    return list(entries.values())


def _read_entry(cursor: _Cursor) -> _Entry:
    name = cursor.string("a tensor name", MAX_NAME_BYTES)
    what = f"tensor {name!r}"
    num_dimensions = cursor.integer("I", what)
    if not 1 <= num_dimensions <= MAX_DIMENSIONS:
        raise cursor.fail(f"{what} has {num_dimensions} dimensions, allowed are 1 to 4")
    dimensions = [cursor.integer("Q", what) for _ in range(num_dimensions)]
    type_id = cursor.integer("I", what)
    offset = cursor.integer("Q", what)
    if type_id not in _TYPES:
        type_name = _REFUSED_TYPES.get(type_id, f"number {type_id}")
        known = " ".join(tensor_type.name for tensor_type in TensorType)
        raise cursor.fail(f"{what} has unsupported type {type_name}", f"use one of {known}")
    tensor_type = _TYPES[type_id]
    elements = math.prod(dimensions)
    if elements == 0 or dimensions[0] % tensor_type.block_elements:
        raise cursor.fail(
            f"{what} of type {tensor_type.name} has bad dimensions {dimensions} (rows must be "
            f"whole blocks of {tensor_type.block_elements})"
        )
    num_bytes = elements // tensor_type.block_elements * tensor_type.block_bytes
    # The file stores the contiguous dimension first; shapes here are row-major.
    return _Entry(name, tensor_type, tuple(reversed(dimensions)), offset, num_bytes)


def _alignment(cursor: _Cursor, metadata: Mapping[str, Any]) -> int:
    alignment = metadata.get("general.alignment", 32)
    good = isinstance(alignment, int) and 8 <= alignment <= MAX_ALIGNMENT
    if not good or alignment & (alignment - 1):
        raise cursor.fail(f"general.alignment is {alignment!r}, not a power of two from 8 to 65536")
    return int(alignment)


def _check_layout(cursor: _Cursor, entries: list[_Entry], alignment: int) -> int:
    """Where the data starts; each tensor lies inside the file, aligned, on no other's bytes."""
    data_start = -(-cursor.position // alignment) * alignment
    end, previous = 0, ""
    for entry in sorted(entries, key=lambda e: e.offset):
        what = f"tensor {entry.name!r}"
        if entry.offset % alignment:
            raise cursor.fail(f"{what} at offset {entry.offset} is not aligned to {alignment}")
        if entry.offset < end:
            raise cursor.fail(f"{what} overlaps tensor {previous!r}")
        end, previous = entry.offset + entry.num_bytes, entry.name
        if data_start + end > cursor.size:
            raise cursor.fail(
                f"truncated: {what} ends at byte {data_start + end}, the file has {cursor.size}"
            )
    return data_start
