"""Rewrites a GGUF file in another weight format, by the quantisers of the gguf package."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from gguf.constants import GGMLQuantizationType
from gguf.quants import quantize

from octavo.weights import open_model
from octavo.weights.tensor_type import TensorType
from oracles.gguf_writer import write_gguf

TYPE_NAMES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0")


def requantize(src: Path, dst: Path, type_name: str) -> Path:
    """Write ``src`` to ``dst`` with every matrix in ``type_name``; vectors (norms, biases) in F32.

    ``type_name`` is one of ``TYPE_NAMES`` (the package quantises no others). The values are those
    of ``src``, dequantised: compare a requantised model with its own reference, not with ``src``.
    """
    assert type_name in TYPE_NAMES, f"{type_name} is not one of {TYPE_NAMES}"
    model = open_model(src)
    tensors = {}
    for name, tensor in model.tensors.items():
        chosen = TensorType[type_name] if len(tensor.shape) > 1 else TensorType.F32
        raw = quantize(tensor.dequantize(), GGMLQuantizationType[chosen.name])
        data = np.ascontiguousarray(raw).view(np.uint8).reshape(-1)
        tensors[name] = (chosen, tensor.shape, data)
    partial = dst.with_name(dst.name + ".partial")
    write_gguf(partial, model.metadata, tensors)
    return partial.replace(dst)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("src", type=Path)
    parser.add_argument("dst", type=Path)
    parser.add_argument("type_name", choices=TYPE_NAMES)
    arguments = parser.parse_args()
    requantize(arguments.src, arguments.dst, arguments.type_name)
