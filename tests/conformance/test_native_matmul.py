"""Every weight format and instruction set against plain numpy on the dequantised weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from octavo.backends.native import NativeBackend
from octavo.backends.program import (
    BackendOptions,
    CacheLayout,
    Embed,
    NormHead,
    NormMlp,
    Program,
)
from octavo.weights.tensor import TensorType
from oracles.random_blocks import random_tensor, vector
from oracles.step_batches import Row, step

EPS = 1e-5
ISAS = ("scalar", "avx2", "avx512vnni")
QUANTISED = [kind for kind in TensorType if kind.block_elements > 1]
LAYOUT = CacheLayout(block_size=16, num_blocks=1, group_layers=(1,), num_kv_heads=1, head_dim=32)


def isas():
    from octavo import _native

    return [isa for isa in ISAS if isa in _native.cpu_features()]


def load(program, tensors, isa="", activation="int8", num_threads=2):
    options = BackendOptions(isa=isa, activation=activation, num_threads=num_threads, max_tokens=64)
    return NativeBackend().load(program, tensors, LAYOUT, options=options)


def head_model(kind, hidden, vocab):
    tensors = {
        "embed": random_tensor("embed", TensorType.F32, 64, hidden, seed=1),
        "norm": vector("norm", hidden),
        "head": random_tensor("head", kind, vocab, hidden, seed=2),
    }
    program = Program(
        ops=(Embed(table="embed"), NormHead(norm="norm", eps=EPS, weight="head")),
        hidden_size=hidden,
        vocab_size=vocab,
        num_layers=0,
    )
    return program, tensors


def logits(executor, tokens, at=None):
    rows = [Row(tokens=tokens, table=[0] * 4, logits_at=range(len(tokens)) if at is None else at)]
    return executor.forward(step(rows)).logits


def rms_norm(x, weight):
    return x / np.sqrt((x.astype(np.float64) ** 2).mean(axis=1, keepdims=True) + EPS) * weight


def int8_groups(x):
    """The values that int8 activations stand for: a scale per row and 32 columns."""
    padded = -x.shape[1] % 32
    groups = np.pad(x, ((0, 0), (0, padded))).astype(np.float32).reshape(len(x), -1, 32)
    amax = np.abs(groups).max(axis=2, keepdims=True)
    inverse = np.divide(np.float32(127), amax, out=np.zeros_like(amax), where=amax > 0)
    values = np.rint(groups * inverse).astype(np.float64) * (amax / np.float32(127))
    return values.reshape(len(x), -1)[:, : x.shape[1]]


def assert_close(actual, x, weights):
    expected = x @ weights.T
    size = np.abs(x) @ np.abs(weights).T
    assert np.all(np.abs(actual - expected) <= 3e-6 * size)


@pytest.mark.parametrize("activation", ["int8", "f32"])
@pytest.mark.parametrize(("hidden", "vocab"), [(256, 33), (768, 77)])
@pytest.mark.parametrize("kind", list(TensorType), ids=lambda kind: kind.name)
def test_head_equals_numpy(kind, hidden, vocab, activation):
    program, tensors = head_model(kind, hidden, vocab)
    tokens = np.random.default_rng(3).integers(0, 64, 9).tolist()
    x = rms_norm(tensors["embed"].dequantize()[tokens], tensors["norm"].dequantize())
    results = [logits(load(program, tensors, isa, activation), tokens) for isa in isas()]
    if activation == "int8" and kind in QUANTISED:
        # A value on the edge between two quants may round either way in float64.
        close = np.abs(results[0] - int8_groups(x) @ tensors["head"].dequantize().T)
        size = np.abs(x) @ np.abs(tensors["head"].dequantize()).T
        assert np.all(close <= 2e-4 * size)
        assert np.median(close / size) <= 1e-6
    else:
        assert_close(results[0], x, tensors["head"].dequantize().astype(np.float64))
    for other in results[1:]:
        assert np.array_equal(results[0], other)


@pytest.mark.parametrize("kind", [TensorType.Q4_1, TensorType.Q8_0, TensorType.F16])
@pytest.mark.parametrize("hidden", [32, 576, 640, 1536])
def test_widths_that_are_no_multiple_of_256(kind, hidden):
    program, tensors = head_model(kind, hidden, 49)
    tokens = list(range(5))
    x = rms_norm(tensors["embed"].dequantize()[tokens], tensors["norm"].dequantize())
    result = logits(load(program, tensors, activation="f32"), tokens)
    assert_close(result, x, tensors["head"].dequantize().astype(np.float64))


@pytest.mark.parametrize("hidden", [20, 50, 100])
def test_float_weights_of_any_width(hidden):
    program, tensors = head_model(TensorType.BF16, hidden, 31)
    x = rms_norm(tensors["embed"].dequantize()[:3], tensors["norm"].dequantize())
    for isa in isas():
        result = logits(load(program, tensors, isa), [0, 1, 2])
        assert_close(result, x, tensors["head"].dequantize().astype(np.float64))


@pytest.mark.parametrize("kind", list(TensorType), ids=lambda kind: kind.name)
def test_a_row_does_not_depend_on_its_neighbours(kind):
    program, tensors = head_model(kind, 256, 65)
    executor = load(program, tensors)
    tokens = np.random.default_rng(5).integers(0, 64, 41).tolist()
    alone = np.concatenate([logits(executor, [token]) for token in tokens])
    for count in (2, 3, 4, 5, 8, 13, 41):
        assert np.array_equal(logits(executor, tokens[:count]), alone[:count])
    assert np.array_equal(logits(executor, tokens, at=[40, 3, 17]), alone[[40, 3, 17]])
    assert np.array_equal(logits(load(program, tensors, num_threads=1), tokens), alone)
    assert np.array_equal(logits(load(program, tensors, num_threads=3), tokens), alone)


def mlp_model(kind, hidden, inner, slices):
    tensors = {
        "embed": random_tensor("embed", TensorType.F32, 64, hidden, seed=1),
        "norm": vector("norm", hidden),
        "gate": random_tensor("gate", kind, inner, hidden, seed=3),
        "up": random_tensor("up", kind, inner, hidden, seed=4),
        "down": random_tensor("down", kind, hidden, inner, seed=5),
        "head": random_tensor("head", TensorType.F32, 33, hidden, seed=6),
    }
    mlp = NormMlp(norm="norm", eps=EPS, gate="gate", up="up", down="down")
    program = Program(
        ops=(Embed(table="embed"), mlp, NormHead(norm="norm", eps=EPS, weight="head")),
        hidden_size=hidden,
        vocab_size=33,
        num_layers=1,
        k_slices=slices,
    )
    return program, tensors


@pytest.mark.parametrize("slices", [1, 2, 3])
@pytest.mark.parametrize("kind", [TensorType.F32, TensorType.Q4_1, TensorType.Q6_K])
def test_mlp_equals_numpy(kind, slices):
    program, tensors = mlp_model(kind, 256, 768, slices)
    weights = {name: t.dequantize().astype(np.float64) for name, t in tensors.items()}
    x = weights["embed"][:7]
    h = rms_norm(x, weights["norm"])
    gate = h @ weights["gate"].T
    x = x + (gate / (1 + np.exp(-gate)) * (h @ weights["up"].T)) @ weights["down"].T
    expected = rms_norm(x, weights["norm"]) @ weights["head"].T
    results = [logits(load(program, tensors, isa, "f32"), range(7)) for isa in isas()]
    assert np.abs(results[0] - expected).max() <= 3e-6 * np.abs(expected).max()
    for other in results[1:]:
        assert np.array_equal(results[0], other)


def test_mlp_rows_are_independent_with_int8_activations():
    program, tensors = mlp_model(TensorType.Q4_1, 96, 160, 2)
    results = []
    for isa in isas():
        executor = load(program, tensors, isa)
        whole = logits(executor, range(37))
        assert np.array_equal(np.concatenate([logits(executor, [i]) for i in range(37)]), whole)
        results.append(whole)
    for other in results[1:]:
        assert np.array_equal(results[0], other)


def outlier_model(kind):
    """Every third token has one value that makes its group's 8-bit scale coarse."""
    program, tensors = mlp_model(kind, 256, 256, 2)
    table = tensors["embed"].dequantize().copy()
    table[::3, 5] = 40 * np.abs(table).max()
    data = np.ascontiguousarray(table).view(np.uint8).reshape(tensors["embed"].data.shape)
    return program, tensors | {"embed": replace(tensors["embed"], data=data)}


@pytest.mark.parametrize("kind", QUANTISED, ids=lambda kind: kind.name)
def test_outliers_cost_no_precision_and_leave_their_neighbours_alone(kind):
    program, tensors = outlier_model(kind)
    tokens = list(range(61))  # enough blocks of rows for every way to unpack
    exact = logits(load(program, tensors, activation="f32"), tokens)
    results = []
    for isa in isas():
        executor = load(program, tensors, isa)
        whole = logits(executor, tokens)
        assert np.array_equal(np.concatenate([logits(executor, [t]) for t in tokens]), whole)
        results.append(whole)
    for other in results[1:]:
        assert np.array_equal(results[0], other)
    error = np.abs(results[0] - exact).max(axis=1) / np.abs(exact).max(axis=1)
    plain = np.delete(error, np.s_[::3])
    assert error[::3].max() <= np.median(plain)
