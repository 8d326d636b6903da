"""The reference backend against a dense forward without pages, in float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from octavo.backends.program import BackendOptions, CacheLayout, PagedAttention, Program
from octavo.backends.reference import ReferenceBackend, ReferenceExecutor
from octavo.errors import ModelFileError
from octavo.models import build_program, cache_layout
from octavo.models.rope import default_rope, linear_rope
from oracles.step_batches import Row, step
from oracles.tiny_models import dense_logits, random_tensors, tiny_spec

TOKENS = np.random.default_rng(4).integers(0, 97, 40).tolist()
VARIANTS = {
    "plain": {},
    "interleaved": {"rope": default_rope(16, 10000.0, interleaved=True)},
    "linear rope": {"rope": linear_rope(16, 500.0, 4.0, interleaved=False)},
    "biases": {"qkv_bias": True, "output_bias": True},
    "separate head": {"tied_head": False},
    "one kv head": {"num_kv_heads": 1},
    "no sharing": {"num_kv_heads": 4},
    "wide heads": {"head_dim": 32, "rope": default_rope(32, 10000.0, interleaved=False)},
}


def load(spec, tensors, *, block_size=4, num_blocks=64, kv_dtype="f32") -> ReferenceExecutor:
    layout = cache_layout(spec, block_size=block_size, num_blocks=num_blocks, kv_dtype=kv_dtype)
    return ReferenceBackend().load(build_program(spec), tensors, layout, options=BackendOptions())


def assert_close(actual, expected):
    assert np.abs(actual - expected).max() <= 2e-5 * np.abs(expected).max()


@pytest.mark.parametrize("variant", VARIANTS)
def test_one_chunk_equals_the_dense_forward(variant):
    spec = tiny_spec(**VARIANTS[variant])
    tensors = random_tensors(spec)
    table = np.random.default_rng(1).permutation(64)[:10].tolist()
    output = load(spec, tensors).forward(
        step([Row(tokens=TOKENS, table=table, logits_at=range(len(TOKENS)))])
    )
    expected = dense_logits(spec, tensors, TOKENS)
    assert_close(output.logits, expected)
    assert list(output.token_ids) == expected.argmax(axis=1).tolist()


def test_an_int8_cache_rounds_what_is_written():
    spec = tiny_spec()
    tensors = random_tensors(spec)
    executor = load(spec, tensors, kv_dtype="int8")
    parts = [
        executor.forward(
            step([Row(tokens=TOKENS[i : i + 8], table=range(10), start=i, logits_at=range(8))])
        ).logits
        for i in range(0, 40, 8)
    ]
    expected = dense_logits(spec, tensors, TOKENS, kv_dtype="int8")
    assert np.abs(np.concatenate(parts) - expected).max() <= 2e-3 * np.abs(expected).max()
    exact = dense_logits(spec, tensors, TOKENS)
    assert np.abs(expected - exact).max() > 5e-3 * np.abs(expected).max()
    assert executor.fingerprint != load(spec, tensors).fingerprint


@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_mixed_chunks_equal_the_dense_forward(block_size):
    spec = tiny_spec()
    tensors = random_tensors(spec)
    executor = load(spec, tensors, block_size=block_size, num_blocks=128)
    rng = np.random.default_rng(2)
    prompts = [rng.integers(0, 97, n).tolist() for n in (5, 23, 38)]
    blocks = iter(rng.permutation(128).tolist())
    tables = [[next(blocks) for _ in range(-(-len(p) // block_size))] for p in prompts]
    done, seen = [0, 0, 0], [[], [], []]
    steps = 0
    while any(d < len(p) for d, p in zip(done, prompts, strict=True)):
        rows, owners = [], []
        for i in rng.permutation(3):
            chunk = prompts[i][done[i] : done[i] + int(rng.integers(1, 9))]
            if chunk:
                at = range(len(chunk))
                rows.append(Row(tokens=chunk, table=tables[i], start=done[i], logits_at=at))
                owners.append(i)
                done[i] += len(chunk)
        logits = executor.forward(step(rows)).logits
        steps += 1
        for i, row in zip(owners, rows, strict=True):
            seen[i].append(logits[: len(row.tokens)])
            logits = logits[len(row.tokens) :]
    assert steps > 3
    for prompt, parts in zip(prompts, seen, strict=True):
        assert_close(np.concatenate(parts), dense_logits(spec, tensors, prompt))


def windowed(spec, windows) -> Program:
    program = build_program(spec)
    ops = tuple(
        replace(op, window=windows[op.layer], layer=0, group=op.layer)
        if isinstance(op, PagedAttention)
        else op
        for op in program.ops
    )
    return replace(program, ops=ops)


def test_groups_with_their_own_window_table_and_first_position():
    spec = tiny_spec()
    tensors = random_tensors(spec)
    windows = [None, 6]
    layout = CacheLayout(
        block_size=4, num_blocks=32, group_layers=(1, 1), num_kv_heads=2, head_dim=16
    )
    executor = ReferenceBackend().load(
        windowed(spec, windows), tensors, layout, options=BackendOptions()
    )
    expected = dense_logits(spec, tensors, TOKENS, windows)
    for start in range(0, 40, 5):
        # Of the windowed group, keep only the blocks that its span still touches.
        first = max(0, start - 5) // 4 * 4
        full = list(range(10))
        narrow = list(range(20 + first // 4, 30))
        batch = step([Row(tokens=TOKENS[start : start + 5], table=full, start=start)])
        batch.block_tables = (batch.block_tables[0], np.array([narrow], np.int32))
        batch.first_position = (batch.first_position[0], np.array([first], np.int32))
        batch.sample = step(
            [Row(tokens=TOKENS[start : start + 5], table=full, logits_at=range(5))]
        ).sample
        if first:
            forgotten = np.arange(20, 20 + first // 4, dtype=np.int32)
            executor.poison_blocks(forgotten)
        assert_close(executor.forward(batch).logits, expected[start : start + 5])


def test_copies_come_before_writes():
    spec = tiny_spec()
    tensors = random_tensors(spec)
    executor = load(spec, tensors)
    executor.forward(step([Row(tokens=TOKENS[:6], table=[7, 3])]))
    other = [*TOKENS[:6], 1, 2]
    # Fork at 6: the tail block 3 is copied to 9, then each side writes its own.
    rows = [
        Row(tokens=TOKENS[6:8], table=[7, 3], start=6, logits_at=[1]),
        Row(tokens=other[6:], table=[7, 9], start=6, logits_at=[1]),
    ]
    logits = executor.forward(step(rows, copies=[(0, 3, 9, 2)])).logits
    assert_close(logits[0], dense_logits(spec, tensors, TOKENS[:8])[-1])
    assert_close(logits[1], dense_logits(spec, tensors, other)[-1])


def test_copies_alone_and_block_reads():
    spec = tiny_spec()
    executor = load(spec, random_tensors(spec))
    executor.forward(step([Row(tokens=TOKENS[:4], table=[5])]))
    executor.forward(step([], copies=[(0, 5, 6, 3)]))
    for layer in range(2):
        source, copy = executor.read_block(0, layer, 5), executor.read_block(0, layer, 6)
        for a, b in zip(source, copy, strict=True):
            assert a.shape == (4, 2, 16)
            assert np.isfinite(a).all()
            assert np.array_equal(a[:3], b[:3])
            assert np.isnan(b[3]).all()


def test_unwritten_and_poisoned_blocks_are_nan():
    spec = tiny_spec()
    executor = load(spec, random_tensors(spec))
    assert np.isnan(executor.read_block(0, 1, 0)[1]).all()
    executor.forward(step([Row(tokens=TOKENS[:4], table=[0])]))
    executor.poison_blocks(np.array([0], np.int32))
    assert np.isnan(executor.read_block(0, 0, 0)[0]).all()


def test_progress_grows_and_close_repeats():
    spec = tiny_spec()
    executor = load(spec, random_tensors(spec))
    executor.forward(step([Row(tokens=TOKENS[:2], table=[0])]))
    assert executor.progress == 2 + 4 * spec.num_layers
    executor.close()
    executor.close()
    assert "reference" in executor.fingerprint


def test_sampling_parameters_reach_the_sampler():
    spec = tiny_spec()
    tensors = random_tensors(spec)
    executor = load(spec, tensors)
    expected = dense_logits(spec, tensors, TOKENS[:5])[-1]
    best = np.argsort(-expected)[:3]
    count = 3
    output = executor.forward(
        step(
            [Row(tokens=TOKENS[:5], table=[0, 1], logits_at=[4] * count)],
            banned_start=np.array([0, 0, 1, 1], np.int32),
            banned_ids=best[:1].astype(np.int32),
            bias_start=np.array([0, 0, 0, 1], np.int32),
            bias_ids=np.array([11], np.int32),
            bias_values=np.array([1000], np.float32),
            num_logprobs=np.array([-1, 2, 0], np.int32),
        )
    )
    assert list(output.token_ids) == [best[0], best[1], 11]
    assert output.top_ids.tolist() == [[-1, -1], best[:2].tolist(), [-1, -1]]
    assert output.logprobs[0] == 0.0
    assert output.top_logprobs[1, 1] == output.logprobs[1]


def test_seeded_samples_depend_on_branch_and_position():
    spec = tiny_spec()
    executor = load(spec, random_tensors(spec))
    same = {"temperature": np.full(8, 5.0, np.float32), "seed": np.full(8, 3, np.uint64)}
    batch = step(
        [Row(tokens=TOKENS[:5], table=[0, 1], logits_at=[4] * 8)],
        branch=np.arange(8, dtype=np.int32) % 4,
        position=np.full(8, 5, np.int32),
        **same,
    )
    tokens = executor.forward(batch).token_ids
    assert tokens[:4] == tokens[4:]
    assert len(set(tokens)) > 1


def test_an_unknown_activation_is_refused():
    spec = tiny_spec()
    program = build_program(spec)
    ops = tuple(
        replace(op, activation="gelu") if hasattr(op, "activation") else op for op in program.ops
    )
    layout = cache_layout(spec, block_size=4, num_blocks=2)
    with pytest.raises(ModelFileError, match="gelu"):
        ReferenceBackend().load(replace(program, ops=ops), {}, layout, options=BackendOptions())


def test_large_models_are_not_kept_dequantised(monkeypatch):
    monkeypatch.setattr("octavo.backends.reference.weights._KEPT_BYTES", 0)
    spec = tiny_spec()
    tensors = random_tensors(spec)
    output = load(spec, tensors).forward(step([Row(tokens=TOKENS[:3], table=[0], logits_at=[2])]))
    assert_close(output.logits[0], dense_logits(spec, tensors, TOKENS[:3])[-1])


def test_block_bytes():
    layout = CacheLayout(
        block_size=16, num_blocks=1, group_layers=(30, 2), num_kv_heads=3, head_dim=64
    )
    assert ReferenceBackend().kv_block_bytes(layout, 0) == 30 * 16 * 3 * 64 * 2 * 4
