"""The GGUF reader: exact on good files, one-line errors and bounded work on all others."""

from __future__ import annotations

import random
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize as published_dequantize

from octavo.errors import ModelFileError
from octavo.weights import open_model
from octavo.weights.dequantize import dequantize
from octavo.weights.tensor_type import TensorType
from oracles.gguf_writer import string, tensor_entry, typed_value, write_gguf

ARCHITECTURE = {"general.architecture": "llama"}


def small_tensors() -> dict[str, tuple[TensorType, tuple[int, ...], np.ndarray]]:
    rng = np.random.default_rng(7)
    tensors = {}
    for tensor_type in TensorType:
        shape = (3, 2 * tensor_type.block_elements) if tensor_type.block_elements > 1 else (3, 5)
        size = 6 if tensor_type.block_elements > 1 else 15
        data = rng.integers(0, 256, size * tensor_type.block_bytes, np.uint8)
        tensors[f"t.{tensor_type.name}"] = (tensor_type, shape, data)
    return tensors


@pytest.mark.parametrize("version", [2, 3])
def test_a_written_file_is_read_back(tmp_path, version):
    metadata = {
        **ARCHITECTURE,
        "a.text": "naïve ✓", "a.flag": True, "a.float": 0.5, "a.int": 7, "a.signed": -3,
        "a.strings": ["", "x", "日本"], "a.numbers": [1, 2, 3], "a.flags": [True, False],
        "a.floats": [0.5, 2.0], "a.big": [-1, 5], "a.none": [],
    }  # fmt: skip
    path = tmp_path / "m.gguf"
    write_gguf(path, metadata, small_tensors(), version=version)
    model = open_model(path)
    assert model.kind == "gguf"
    assert dict(model.metadata) == metadata
    for name, (tensor_type, shape, data) in small_tensors().items():
        tensor = model.tensors[name]
        assert (tensor.name, tensor.type, tensor.shape) == (name, tensor_type, shape)
        assert np.array_equal(tensor.data, data)
        assert not tensor.data.flags.writeable


@pytest.mark.parametrize("tensor_type", list(TensorType))
def test_dequantize_is_exact(tensor_type):
    rng = np.random.default_rng(tensor_type.gguf_id)
    blocks = rng.integers(0, 256, (500, tensor_type.block_bytes), np.uint8)
    # Any bit pattern is a block, but scales beyond reach of a real file drown a difference in NaN.
    with np.errstate(all="ignore"):
        expected = published_dequantize(blocks, GGMLQuantizationType[tensor_type.name])
    got = dequantize(tensor_type, blocks.reshape(-1))
    assert got.dtype == np.float32
    assert np.isfinite(got).sum() > got.size // 2
    assert np.array_equal(got.reshape(-1), expected.reshape(-1), equal_nan=True)


def test_real_weights_are_exact(smollm2_path):
    from gguf import GGUFReader

    model = open_model(smollm2_path)
    seen = {tensor.type for tensor in model.tensors.values()}
    assert seen == {TensorType.F32, TensorType.Q4_1, TensorType.Q8_0}
    for published in GGUFReader(smollm2_path).tensors[1:9]:
        tensor = model.tensors[published.name]
        expected = published_dequantize(published.data, published.tensor_type)
        assert np.array_equal(tensor.dequantize(), expected.reshape(tensor.shape))


@pytest.mark.slow
def test_real_k_quants_are_exact(qwen_path):
    from gguf import GGUFReader

    model = open_model(qwen_path)
    assert {t.type for t in model.tensors.values()} >= {TensorType.Q4_K, TensorType.Q6_K}
    for published in GGUFReader(qwen_path).tensors[3:8]:
        expected = published_dequantize(published.data, published.tensor_type)
        assert np.array_equal(model.tensors[published.name].dequantize(), expected)


def header(num_tensors: int, num_keys: int, version: int = 3, magic: bytes = b"GGUF") -> bytes:
    return magic + struct.pack("<IQQ", version, num_tensors, num_keys)


KEY = string("general.architecture") + typed_value("llama")
KEYS = header(1, 1) + KEY
ENTRY = tensor_entry("t", (2, 4), 0, 0)


def whole(*entries: bytes, keys: bytes = KEY, num_keys: int = 1, data: int = 4096) -> bytes:
    file = header(len(entries), num_keys) + keys + b"".join(entries)
    return file + b"\0" * (-len(file) % 32) + b"\0" * data


BAD_FILES = {
    "empty": (b"", "empty"),
    "short magic": (b"GG", "truncated"),
    "wrong magic": (b"PK\x03\x04" + b"\0" * 64, "not a GGUF file"),
    "version 1": (header(0, 0, version=1), "version 1"),
    "version 99": (header(0, 0, version=99), "version 99"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 1, 1), "big-endian"),
    "no counts": (b"GGUF\x03\0\0\0", "truncated"),
    "many tensors": (header(1 << 60, 1) + KEY, "tensors, the limit"),
    "many keys": (header(1, 1 << 60), "keys, the limit"),
    "no keys there": (header(1, 5), "truncated"),
    "no architecture": (header(1, 0) + ENTRY + b"\0" * 64, "general.architecture"),
    "architecture is a number": (
        header(1, 1) + string("general.architecture") + typed_value(3),
        "general.architecture",
    ),
    "duplicate key": (header(1, 2) + KEY + KEY, "duplicate key"),
    "long key": (header(1, 1) + struct.pack("<Q", 1 << 40) + b"x", "the limit"),
    "key past the end": (header(1, 1) + struct.pack("<Q", 1000) + b"x", "truncated"),
    "key is not text": (header(1, 1) + struct.pack("<Q", 2) + b"\xff\xfe" + b"\0" * 8, "UTF-8"),
    "unknown value type": (header(1, 1) + string("k") + struct.pack("<I", 77), "value type 77"),
    "bad boolean": (header(1, 1) + string("k") + struct.pack("<IB", 7, 9), "boolean"),
    "long string value": (
        header(1, 1) + string("k") + struct.pack("<IQ", 8, 1 << 50),
        "the limit",
    ),
    "huge array": (header(1, 1) + string("k") + struct.pack("<IIQ", 9, 8, 1 << 62), "the limit"),
    "array past the end": (
        header(1, 1) + string("k") + struct.pack("<IIQ", 9, 10, 1 << 20),
        "truncated",
    ),
    "array of arrays": (header(1, 1) + string("k") + struct.pack("<IIQ", 9, 9, 1), "type 9"),
    "string array ends": (
        header(1, 1) + string("k") + struct.pack("<IIQ", 9, 8, 2) + string("a") + b"\xff" * 8,
        "truncated",
    ),
    "split file": (
        whole(ENTRY, keys=KEY + string("split.count") + typed_value(3), num_keys=2),
        "split files",
    ),
    "no tensors": (header(0, 1) + KEY, "no tensors"),
    "duplicate tensor": (whole(ENTRY, tensor_entry("t", (2, 4), 0, 32)), "duplicate tensor name"),
    "no dimensions": (whole(tensor_entry("t", (), 0, 0)), "0 dimensions"),
    "nine dimensions": (whole(tensor_entry("t", (1,) * 9, 0, 0)), "9 dimensions"),
    "zero rows": (whole(tensor_entry("t", (0, 4), 0, 0)), "bad dimensions"),
    "product overflows": (whole(tensor_entry("t", (1 << 32, 1 << 32), 0, 0)), "truncated"),
    "ragged blocks": (whole(tensor_entry("t", (2, 33), 2, 0)), "bad dimensions"),
    "refused type": (whole(tensor_entry("t", (2, 256), 10, 0)), "Q2_K"),
    "unknown type": (whole(tensor_entry("t", (2, 256), 4321, 0)), "number 4321"),
    "misaligned": (whole(tensor_entry("t", (2, 4), 0, 7)), "not aligned"),
    "offset past the end": (whole(tensor_entry("t", (2, 4), 0, 1 << 20)), "truncated"),
    "offset overflows": (whole(tensor_entry("t", (2, 4), 0, (1 << 64) - 32)), "truncated"),
    "overlap": (
        whole(tensor_entry("t", (4, 4), 0, 0), tensor_entry("u", (4, 4), 0, 32)),
        "overlap",
    ),
    "bad alignment": (
        whole(ENTRY, keys=KEY + string("general.alignment") + typed_value(24), num_keys=2),
        "general.alignment",
    ),
    "data cut": (whole(tensor_entry("t", (1024, 4), 0, 0)), "truncated"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_refused_in_one_line(tmp_path, name):
    data, cause = BAD_FILES[name]
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelFileError, match=cause) as caught:
        open_model(path)
    message = str(caught.value)
    assert "\n" not in message
    assert "bad.gguf" in message


def test_what_is_no_regular_file_is_refused(tmp_path):
    import os

    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "missing.gguf", tmp_path / "pipe", tmp_path / "a\0b"):
        with pytest.raises(ModelFileError):
            open_model(path)


def seed_file(tmp_path: Path) -> bytes:
    path = tmp_path / "seed.gguf"
    metadata = {
        **ARCHITECTURE, "tokenizer.ggml.tokens": [f"tok{i}" for i in range(200)],
        "llama.block_count": 2, "x.floats": [0.5] * 20, "x.flag": False, "x.text": "abc",
    }  # fmt: skip
    write_gguf(path, metadata, small_tensors())
    return path.read_bytes()


def open_or_refuse(path: Path, data: bytes) -> bool:
    path.write_bytes(data)
    try:
        model = open_model(path)
    except ModelFileError:
        return False
    for tensor in model.tensors.values():
        assert tensor.data.size < len(data)
    return True


def test_every_truncation_is_refused(tmp_path):
    data = seed_file(tmp_path)
    last_byte = len(data.rstrip(b"\0")) - 1
    for length in range(0, last_byte, 23):
        assert not open_or_refuse(tmp_path / "cut.gguf", data[:length])


def test_flipped_bytes_give_a_model_or_a_refusal(tmp_path):
    data = seed_file(tmp_path)
    rng = random.Random(20)
    directory_end = data.index(b"t.BF16") + 80
    outcomes = set()
    tracemalloc.start()
    for _ in range(1200):
        mutated = bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 8))):
            mutated[rng.randrange(directory_end)] = rng.choice(
                (0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256))
            )
        outcomes.add(open_or_refuse(tmp_path / "flip.gguf", bytes(mutated)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert outcomes == {True, False}
    assert peak < 8 << 20
