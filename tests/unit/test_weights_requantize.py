"""The test support that makes other weight formats says what it does."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.weights import open_model
from octavo.weights.tensor_type import TensorType
from oracles.gguf_writer import write_gguf
from oracles.requantize import TYPE_NAMES, requantize


@pytest.mark.parametrize("type_name", TYPE_NAMES)
def test_matrices_change_and_vectors_do_not(tmp_path, type_name):
    rng = np.random.default_rng(3)
    matrix = rng.normal(0, 1, (4, 64)).astype(np.float32)
    vector = rng.normal(0, 1, 7).astype(np.float32)
    metadata = {"general.architecture": "llama", "x.list": ["a", "b"], "x.eps": 0.5}
    source = tmp_path / "source.gguf"
    write_gguf(
        source,
        metadata,
        {
            "m.weight": (TensorType.F32, (4, 64), matrix.view(np.uint8).reshape(-1)),
            "v.weight": (TensorType.F32, (7,), vector.view(np.uint8)),
        },
    )
    model = open_model(requantize(source, tmp_path / "out.gguf", type_name))
    assert dict(model.metadata) == metadata
    assert model.tensors["m.weight"].type is TensorType[type_name]
    assert model.tensors["v.weight"].type is TensorType.F32
    assert np.array_equal(model.tensors["v.weight"].dequantize(), vector)
    error = np.abs(model.tensors["m.weight"].dequantize() - matrix).max()
    assert error <= {"F32": 0, "F16": 2e-3, "BF16": 2e-2}.get(type_name, 0.5)
