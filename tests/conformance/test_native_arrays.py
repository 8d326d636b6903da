"""The native side takes an array as it is or refuses it: it never converts one.

A converted input would hide a mistake and cost a copy per step, a converted output would be lost.
"""

from __future__ import annotations

import sys
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from octavo import _native
from octavo.backends.native import NativeBackend
from octavo.backends.native.executor import NativeExecutor
from octavo.backends.program import BackendOptions, SampleBatch, StepBatch, StepOutput
from octavo.models import build_program, cache_layout
from octavo.sampling import SampleRow
from oracles.step_batches import Row, step
from oracles.tiny_models import random_tensors, tiny_spec

SAMPLE_ARRAYS = [field.name for field in fields(SampleBatch) if field.name != "max_logprobs"]
ROW_ARRAYS = ["token_ids", "query_start_loc", "context_lens", "slots", "copies"]
TUPLES = ["block_tables", "first_position"]
# Of these any length holds: other arrays say what of them is read.
FREE = ["history", "bias_ids", "banned_ids", "masks", "token_index"]
OUTPUTS = ["logprobs", "top_ids", "top_logprobs", "logits", "hidden"]


# Of a model with one layer of two heads, and as many KV heads, of 16.
OPTIONS = {
    "hidden": 32, "vocab": 8, "k_slices": 1, "threads": 1, "max_tokens": 16,
    "int8_activations": False, "isa": "scalar", "int8_kv": False, "block_size": 16,
    "num_blocks": 2, "group_layers": [1], "kv_heads": 2, "head_dim": 16,
}  # fmt: skip
SHAPES = {
    "table": (8, 32), "qkv": (96, 32), "out": (32, 32), "up": (64, 32), "down": (32, 64),
    "head": (8, 32),
}  # fmt: skip
ATTENTION = {
    "layer": 0, "group": 0, "heads": 2, "kv_heads": 2, "head_dim": 16, "scale": 0.25,
    "window": 0, "interleaved": False, "inv_freq": [1.0] * 8,
}  # fmt: skip


def matrix(rows: int, columns: int) -> tuple[int, int, int, np.ndarray]:
    return 0, rows, columns, np.zeros(rows * columns * 4, np.uint8)


def build(**changed: Any) -> None:
    """Make the model whose shapes, or members of its attention op, differ in ``changed``."""
    model = _native.Model(OPTIONS)
    raw = {name: matrix(*changed.get(name, shape)) for name, shape in SHAPES.items()}
    norm, none = np.ones(changed.get("norm", 32), np.float32), np.empty(0, np.float32)
    model.set_embedding(raw["table"], 1.0)
    model.add_norm_linear(norm, 1e-5, [raw["qkv"]], [none])
    model.add_attention({name: changed.get(name, value) for name, value in ATTENTION.items()})
    model.add_linear_residual(raw["out"], none)
    model.add_norm_mlp(norm, 1e-5, matrix(64, 32), raw["up"], raw["down"])
    model.set_head(norm, 1e-5, raw["head"])
    model.finish()


@pytest.fixture(scope="module")
def executor() -> NativeExecutor:
    spec = tiny_spec()
    layout = cache_layout(spec, block_size=16, num_blocks=8)
    options = BackendOptions(num_threads=1)
    return NativeBackend().load(build_program(spec), random_tensors(spec), layout, options=options)


def batch(**sample: object) -> StepBatch:
    rows = [Row(tokens=[1, 2, 3], table=[0], logits_at=[2]), Row(tokens=[4], table=[1, 2])]
    return step([*rows, Row(tokens=[5, 6], table=[3], logits_at=[0, 1])], **sample)


def spoilt(array: np.ndarray) -> list[np.ndarray]:
    """The same values as another type, in another rank, with another sign, not side by side."""
    other = np.float64 if array.dtype.kind == "f" else np.int64
    apart = np.repeat(array, 2, axis=-1)[..., ::2]
    found = [array.astype(other), array.reshape(1, *array.shape)]
    if array.dtype.kind in "iu":
        sign = {"i": "u", "u": "i"}[array.dtype.kind]
        found.append(array.astype(f"{sign}{array.dtype.itemsize}"))
    return found if apart.flags.c_contiguous else [*found, apart]


def entered(given: StepBatch, name: str, array: np.ndarray) -> StepBatch:
    """A copy of ``given`` that holds ``array`` under ``name``."""
    if name in SAMPLE_ARRAYS:
        return replace(given, sample=replace(given.sample, **{name: array}))
    return replace(given, **{name: (array,) if name in TUPLES else array})


def held(given: StepBatch, name: str) -> np.ndarray:
    if name in SAMPLE_ARRAYS:
        return getattr(given.sample, name)
    value = getattr(given, name)
    return value[0] if name in TUPLES else value


@pytest.mark.parametrize("name", [*ROW_ARRAYS, *TUPLES, *SAMPLE_ARRAYS])
def test_an_input_of_another_kind_is_refused_by_name(executor, name):
    good = batch()
    expected = executor.forward(good).logits
    for array in spoilt(held(good, name)):
        with pytest.raises(TypeError, match=rf"{name} must be .*(int|float)\d+ array of rank"):
            executor.forward(entered(good, name, array))
    with pytest.raises(TypeError, match=name):
        executor.forward(entered(good, name, held(good, name).tolist()))
    assert np.array_equal(executor.forward(good).logits, expected)


@pytest.mark.parametrize(
    "name",
    ["query_start_loc", "slots", "first_position", *(n for n in SAMPLE_ARRAYS if n not in FREE)],
)
def test_an_array_of_another_length_is_refused(executor, name):
    good = batch()
    array = held(good, name)
    for changed in (np.concatenate((array, array[:1])), array[:-1]):
        if len(changed) != len(array):
            with pytest.raises(ValueError, match=r"."):
                executor.forward(entered(good, name, np.ascontiguousarray(changed)))
    executor.forward(good)


@pytest.mark.parametrize("name", TUPLES)
def test_arrays_in_a_list_are_refused_by_name(executor, name):
    """It could get others without becoming another object."""
    good = batch()
    with pytest.raises(TypeError, match=f"{name} must be a tuple of arrays"):
        executor.forward(replace(good, **{name: [held(good, name)]}))
    executor.forward(good)


@pytest.mark.parametrize("context", [0, 2])
def test_starts_whose_differences_wrap_are_refused(executor, context):
    """In 32 bits each less the one before is positive, though they descend."""
    good, most = batch(), 2**31 - 1
    starts = np.array([0, most, -2, len(good.token_ids)], np.int32)
    lens = np.array([context, context, 0], np.int32)
    with pytest.raises(ValueError, match=r"empty row|too short"):
        executor.forward(replace(good, query_start_loc=starts, context_lens=lens))
    lens = np.array([most, most, most], np.int32)
    with pytest.raises(ValueError, match="block table too short"):
        executor.forward(replace(good, context_lens=lens))
    bans = {"banned_start": np.array([0, most, -2, 0], np.int32)}
    with pytest.raises(ValueError, match="CSR offsets"):
        executor.forward(replace(good, sample=replace(good.sample, **bans)))


def test_an_array_is_looked_at_again_when_another_stands_in_its_place(executor):
    """Values change within an array, arrays within a batch: both are seen."""
    kept = batch()
    first = executor.forward(kept)
    kept.token_ids[0] = 9
    within = executor.forward(kept)
    kept.token_ids = kept.token_ids.copy()
    kept.token_ids[0] = 1
    again = executor.forward(kept)
    assert not np.array_equal(within.logits[0], first.logits[0])
    assert np.array_equal(again.logits, first.logits)
    kept.block_tables = (kept.block_tables[0] + 1,)
    kept.sample = replace(kept.sample, forced=np.array([7, 7, -1], np.int32))
    moved = executor.forward(kept)
    assert moved.token_ids[:2] == (7, 7)
    assert np.array_equal(moved.logits, first.logits)
    assert executor.read_block(0, 0, 1)[0][0].any()


def outputs(count: int, width: int = 2) -> dict[str, np.ndarray]:
    spec = tiny_spec()
    return {
        "logprobs": np.zeros(count, np.float32),
        "top_ids": np.zeros((count, width), np.int32),
        "top_logprobs": np.zeros((count, width), np.float32),
        "logits": np.zeros((count, spec.vocab_size), np.float32),
        "hidden": np.zeros((count, spec.hidden_size), np.float32),
    }


@pytest.mark.parametrize("name", OUTPUTS)
def test_an_output_that_cannot_be_written_is_refused_by_name(executor, name):
    model = executor._loaded()
    good = batch(num_logprobs=np.array([-1, 2, 0], np.int32))
    arrays = outputs(3)
    assert model.forward(good, StepOutput((), **arrays)) == executor.forward(good).token_ids
    locked = arrays[name].copy()
    locked.flags.writeable = False
    for array in (*spoilt(arrays[name]), locked):
        with pytest.raises(TypeError, match=f"{name} must be a writable"):
            model.forward(good, StepOutput((), **(arrays | {name: array})))
    for changed in (outputs(2), outputs(4), outputs(3, 1)):
        if changed[name].shape != arrays[name].shape:
            with pytest.raises(ValueError, match=r"shape|columns"):
                model.forward(good, StepOutput((), **(arrays | {name: changed[name]})))


def test_logprobs_without_room_for_them_are_refused(executor):
    with pytest.raises(ValueError, match="no room"):
        executor._loaded().forward(batch(num_logprobs=np.array([-1, 0, -1], np.int32)), None)


def test_an_array_that_is_kept_is_let_go_of_with_the_next(executor):
    first = batch()
    executor.forward(first)
    array = first.token_ids
    before = sys.getrefcount(array)
    executor.forward(batch())
    assert sys.getrefcount(array) < before


def test_the_other_calls_convert_nothing_either(executor):
    spec = tiny_spec()
    block = np.zeros((16, spec.num_kv_heads, spec.head_dim), np.float32)
    model = executor._loaded()
    model.read_block(0, 0, 0, block, block.copy())
    for keys in (block.astype(np.float64), block[:, ::-1]):
        with pytest.raises(TypeError):
            model.read_block(0, 0, 0, keys, block)
    with pytest.raises(TypeError):
        model.poison(np.zeros(1, np.int64))
    raw = (0, 1, 4, np.arange(4, dtype=np.float32).view(np.uint8))
    with pytest.raises(TypeError):
        _native.dequantize(raw, np.zeros((1, 4), np.float64))
    with pytest.raises(TypeError, match="tensor bytes"):
        _native.dequantize((*raw[:3], raw[3].astype(np.int16)), np.zeros((1, 4), np.float32))
    row = SampleRow(seed=0, branch=0, position=0)
    with pytest.raises(TypeError):
        _native.sample_row(np.zeros(8, np.float64), row)
    with pytest.raises(TypeError, match="banned_ids"):
        _native.sample_row(np.zeros(8, np.float32), replace(row, banned_ids=np.array([1])))


def test_a_row_that_ends_within_a_block_is_refused():
    for type_number, columns, block_bytes in ((2, 48, 18), (12, 288, 144)):
        raw = (type_number, 1, columns, np.zeros(block_bytes, np.uint8))
        with pytest.raises(ValueError, match="block"):
            _native.dequantize(raw, np.zeros((1, columns), np.float32))


def test_a_bias_has_a_value_per_row():
    norm, weight, short = np.ones(32, np.float32), matrix(32, 32), np.ones(31, np.float32)
    for biases in ([], [short], [short, short]):
        with pytest.raises(ValueError, match="bias"):
            _native.Model(OPTIONS).add_norm_linear(norm, 1e-5, [weight], biases)
    with pytest.raises(ValueError, match="bias"):
        _native.Model(OPTIONS).add_linear_residual(weight, short)


@pytest.mark.parametrize(
    "changed",
    [
        {"table": (8, 64)},
        {"norm": 64},
        {"qkv": (95, 32)},
        {"qkv": (96, 64)},
        {"out": (64, 32)},
        {"out": (32, 64)},
        {"up": (32, 32)},
        {"down": (32, 32)},
        {"down": (64, 64)},
        {"head": (9, 32)},
        {"heads": 4},
        {"kv_heads": 1},
        {"head_dim": 32},
        {"group": 1},
        {"layer": 1},
        {"layer": -1},
        {"inv_freq": [1.0] * 9},
    ],
)
def test_ops_that_do_not_fit_one_another_are_refused(changed):
    """Otherwise the walk would read or write beyond an array."""
    build()
    with pytest.raises(ValueError, match=r"hidden|attention|columns|gate|head|layer|frequencies"):
        build(**changed)
