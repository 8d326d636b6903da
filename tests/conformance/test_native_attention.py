"""Paged attention against a dense forward, and its bits under every cutting of the work."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from octavo.backends.native import NativeBackend
from octavo.backends.program import BackendOptions, PagedAttention
from octavo.backends.reference import ReferenceBackend
from octavo.models import build_program, cache_layout
from octavo.models.rope import default_rope
from oracles.step_batches import Row, step
from oracles.tiny_models import dense_logits, random_tensors, tensor, tiny_spec

VARIANTS = {
    "ratio 2": {},
    "interleaved": {"rope": default_rope(16, 10000.0, interleaved=True)},
    "biases": {"qkv_bias": True, "output_bias": True},
    "separate head": {"tied_head": False},
    "ratio 1": {"num_kv_heads": 4},
    "ratio 4": {"num_kv_heads": 1},
    "ratio 3, wide": {
        "num_heads": 9, "num_kv_heads": 3, "head_dim": 64,
        "rope": default_rope(64, 10000.0, interleaved=False),
    },
    "ratio 6, 128": {
        "num_heads": 6, "num_kv_heads": 1, "head_dim": 128,
        "rope": default_rope(128, 10000.0, interleaved=False),
    },
}  # fmt: skip
TOKENS = np.random.default_rng(4).integers(0, 97, 600).tolist()
KV_DTYPES = ("bf16", "int8")


@pytest.fixture(params=KV_DTYPES)
def kv_dtype(request):
    return request.param


def load(
    spec, *, block_size=16, kv_dtype="bf16", windows=None, tensors=None, backend=None, **options
):
    program = build_program(spec)
    if windows:
        ops = tuple(
            replace(op, window=windows[op.layer]) if isinstance(op, PagedAttention) else op
            for op in program.ops
        )
        program = replace(program, ops=ops)
    layout = cache_layout(
        spec, block_size=block_size, num_blocks=2048 // block_size, kv_dtype=kv_dtype
    )
    chosen = BackendOptions(
        **({"activation": "f32", "num_threads": 2, "max_tokens": 640} | options)
    )
    backend = backend or NativeBackend()
    return backend.load(program, tensors or random_tensors(spec), layout, options=chosen)


def table_of(num_tokens, block_size, seed=1):
    blocks = np.random.default_rng(seed).permutation(2048 // block_size)
    return blocks[: -(-num_tokens // block_size)].tolist()


def run(executor, tokens, table, chunk):
    """Logits of every position, ``chunk`` tokens a step."""
    parts = []
    for start in range(0, len(tokens), chunk):
        piece = tokens[start : start + chunk]
        row = Row(tokens=piece, table=table, start=start, logits_at=range(len(piece)))
        parts.append(executor.forward(step([row])).logits)
    return np.concatenate(parts)


@pytest.mark.parametrize("variant", VARIANTS)
def test_equals_the_dense_forward(variant, kv_dtype):
    spec = tiny_spec(**VARIANTS[variant])
    tokens = TOKENS[:70]
    expected = dense_logits(spec, random_tensors(spec), tokens, kv_dtype=kv_dtype)
    for isa in ("scalar", ""):
        actual = run(load(spec, isa=isa, kv_dtype=kv_dtype), tokens, table_of(70, 16), 70)
        # The cache rounds K and V to bf16, which the dense forward does not; to int8 both do, but
        # what lies close to the middle between two numbers may go either way.
        assert np.abs(actual - expected).max() <= 1e-2 * np.abs(expected).max()
        assert np.abs(actual - expected).mean() <= 1e-3 * np.abs(expected).max()


def test_equals_the_dense_forward_beyond_a_segment(kv_dtype):
    spec = tiny_spec()
    expected = dense_logits(spec, random_tensors(spec), TOKENS, kv_dtype=kv_dtype)
    actual = run(load(spec, kv_dtype=kv_dtype), TOKENS, table_of(600, 16), 600)
    assert np.abs(actual - expected).max() <= 1e-2 * np.abs(expected).max()


@pytest.mark.parametrize("windows", [[5, None], [40, 16], [300, 1]])
def test_windows_equal_the_dense_forward(windows, kv_dtype):
    spec = tiny_spec()
    tokens = TOKENS[:330]
    expected = dense_logits(spec, random_tensors(spec), tokens, windows, kv_dtype=kv_dtype)
    executor = load(spec, windows=windows, kv_dtype=kv_dtype)
    actual = run(executor, tokens, table_of(330, 16), 330)
    assert np.abs(actual - expected).max() <= 1e-2 * np.abs(expected).max()
    assert np.array_equal(run(executor, tokens, table_of(330, 16, seed=2), 7), actual)


@pytest.mark.parametrize("isa", ["avx2", "scalar"])
def test_instruction_sets_give_the_same_bits(isa, kv_dtype):
    spec = tiny_spec(**VARIANTS["ratio 3, wide"])
    results = []
    for name in ("", isa):
        executor = load(spec, isa=name, activation="int8", kv_dtype=kv_dtype)
        results.append(run(executor, TOKENS[:300], table_of(300, 16), 300))
    assert np.array_equal(*results)


@pytest.mark.parametrize("block_size", [16, 32, 64])
@pytest.mark.parametrize("activation", ["f32", "int8"])
def test_blocks_and_chunks_do_not_matter(block_size, activation, kv_dtype):
    spec = tiny_spec()
    executor = load(spec, block_size=block_size, activation=activation, kv_dtype=kv_dtype)
    one = load(spec, activation=activation, kv_dtype=kv_dtype)
    whole = run(one, TOKENS, table_of(600, 16), 600)
    for seed, chunk in enumerate((1, 15, 16, 17, 100, 255, 257)):
        num_tokens = 300 if chunk == 1 else 600
        actual = run(executor, TOKENS[:num_tokens], table_of(600, block_size, seed), chunk)
        assert np.array_equal(actual, whole[:num_tokens]), chunk


def test_poisoned_blocks_do_not_matter(kv_dtype):
    spec = tiny_spec()
    executor = load(spec, kv_dtype=kv_dtype)
    clean = run(executor, TOKENS, table_of(600, 16), 90)
    executor.poison_blocks(np.arange(128, dtype=np.int32))
    assert all(np.isnan(half).all() for half in executor.read_block(0, 1, 5))
    for chunk in (90, 33):
        executor.poison_blocks(np.arange(128, dtype=np.int32))
        assert np.array_equal(run(executor, TOKENS, table_of(600, 16, seed=3), chunk), clean)


def test_a_window_forgets_the_blocks_before_it(kv_dtype):
    spec = tiny_spec()
    windows = [48, 20]
    one = load(spec, windows=windows, kv_dtype=kv_dtype)
    whole = run(one, TOKENS, table_of(600, 16), 600)
    executor = load(spec, windows=windows, kv_dtype=kv_dtype)
    table = table_of(600, 16, seed=5)
    first = run(executor, TOKENS[:400], table, 130)
    assert np.array_equal(first, whole[:400])
    # Positions before 336 are out of every window from 400 on: their blocks may go.
    executor.poison_blocks(np.array(table[:21], np.int32))
    tail = Row(tokens=TOKENS[400:], table=table[21:], start=400, first=336, logits_at=range(200))
    assert np.array_equal(executor.forward(step([tail])).logits, whole[400:])


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_mixed_batches_do_not_matter(num_threads, kv_dtype):
    spec = tiny_spec(**VARIANTS["ratio 3, wide"])
    rng = np.random.default_rng(9)
    lengths = [1, 16, 47, 130, 257, 33]
    prompts = [rng.integers(0, 97, n).tolist() for n in lengths]
    alone = [
        run(load(spec, activation="int8", kv_dtype=kv_dtype), prompt, table_of(n, 16), n)
        for prompt, n in zip(prompts, lengths, strict=True)
    ]
    executor = load(spec, activation="int8", num_threads=num_threads, kv_dtype=kv_dtype)
    blocks = iter(rng.permutation(128).tolist())
    tables = [[next(blocks) for _ in range(-(-n // 16))] for n in lengths]
    done = [0] * len(lengths)
    steps = 0
    while any(d < n for d, n in zip(done, lengths, strict=True)):
        rows, owners = [], []
        for i in rng.permutation(len(lengths)):
            count = min(int(rng.integers(0, 40)), lengths[i] - done[i])
            if count:
                piece = prompts[i][done[i] : done[i] + count]
                rows.append(
                    Row(tokens=piece, table=tables[i], start=done[i], logits_at=[0, count - 1])
                )
                owners.append((i, done[i], count))
        if not rows:
            continue
        logits = executor.forward(step(rows)).logits
        for n, (i, start, count) in enumerate(owners):
            assert np.array_equal(logits[2 * n], alone[i][start])
            assert np.array_equal(logits[2 * n + 1], alone[i][start + count - 1])
            done[i] = start + count
        steps += 1
    assert steps > 5


def test_copies_come_before_writes(kv_dtype):
    spec = tiny_spec()
    executor = load(spec, block_size=32, kv_dtype=kv_dtype)
    whole = run(executor, TOKENS[:60], [0, 1], 60)
    executor.poison_blocks(np.array([7], np.int32))
    # Slots 0…19 of block 1 move to block 7, then position 52 on is computed there.
    row = Row(tokens=TOKENS[52:60], table=[0, 7], start=52, logits_at=range(8))
    logits = executor.forward(step([row], copies=[[0, 1, 7, 20]])).logits
    assert np.array_equal(logits, whole[52:])
    keys, values = executor.read_block(0, 1, 7)
    assert np.isfinite(keys[:28]).all()
    assert np.isnan(keys[28:]).all()
    for copied, original in zip((keys, values), executor.read_block(0, 1, 1), strict=True):
        assert np.array_equal(copied[:20], original[:20])


def test_a_step_without_tokens_still_copies(kv_dtype):
    executor = load(tiny_spec(), kv_dtype=kv_dtype)
    run(executor, TOKENS[:16], [3], 16)
    executor.forward(step([], copies=[[0, 3, 4, 16]]))
    assert np.array_equal(executor.read_block(0, 0, 3)[0], executor.read_block(0, 0, 4)[0])


def test_int8_slots_hold_what_the_reference_rounds_to():
    """Of every block, K and V: whole multiples of the token's own scale, the same ones."""
    spec = tiny_spec(**VARIANTS["ratio 3, wide"])
    native = load(spec, kv_dtype="int8")
    reference = load(spec, kv_dtype="int8", backend=ReferenceBackend())
    floats = load(spec, kv_dtype="f32", backend=ReferenceBackend())
    table = table_of(100, 16)
    for executor in (native, reference, floats):
        run(executor, TOKENS[:96], table, 96)
    for block in table[:6]:
        for ours, theirs, exact in zip(
            *(executor.read_block(0, 0, block) for executor in (native, reference, floats)),
            strict=True,
        ):
            scale = np.abs(exact).max(axis=-1, keepdims=True) / 127
            assert np.abs(np.abs(ours).max(axis=-1, keepdims=True) - 127 * scale).max() < 1e-5
            steps = np.abs(ours - theirs) / scale
            # What lies in the middle of two numbers goes either way: the floats differ a little.
            assert (steps < 1e-3).mean() > 0.999
            assert steps.max() < 1.001
            assert np.abs(ours - exact).max() <= 0.501 * scale.max()


@pytest.mark.parametrize("name", ["attn_k", "attn_v"])
@pytest.mark.parametrize("factor", [0.0, 1e-33, 1e-12, 1e12])
def test_rows_of_any_size_are_finite(name, factor, kv_dtype):
    """A row of zeros has no scale, and one below what a scale can say is zero."""
    spec = tiny_spec()
    tensors = random_tensors(spec)
    weight = tensors[f"blk.0.{name}.weight"]
    tensors[weight.name] = tensor(weight.name, weight.dequantize() * np.float32(factor))
    expected = dense_logits(spec, tensors, TOKENS[:40], kv_dtype=kv_dtype)
    for isa in ("scalar", "avx2", ""):
        executor = load(spec, isa=isa, kv_dtype=kv_dtype, tensors=tensors)
        actual = run(executor, TOKENS[:40], [3, 1, 2], 11)
        assert np.abs(actual - expected).max() <= 1e-2 * np.abs(expected).max()
        assert factor or not np.any(executor.read_block(0, 0, 1)[name == "attn_v"])


@pytest.mark.parametrize("spoilt", [np.nan, np.inf])
def test_what_is_no_number_stays_none(spoilt, kv_dtype):
    """Rounding must not turn a broken row of K and V into a plausible one."""
    spec = tiny_spec(tied_head=False)
    tensors = random_tensors(spec)
    values = tensors["token_embd.weight"].dequantize().copy()
    values[96, 5] = spoilt
    tensors["token_embd.weight"] = tensor("token_embd.weight", values)
    tokens = [token % 96 for token in TOKENS[:40]]
    clean = run(load(spec, kv_dtype=kv_dtype), tokens, [3, 1, 2], 40)
    tokens[20] = 96
    for isa in ("scalar", "avx2", ""):
        executor = load(spec, isa=isa, kv_dtype=kv_dtype, tensors=tensors)
        logits = run(executor, tokens, [3, 1, 2], 40)
        assert np.array_equal(logits[:20], clean[:20])
        assert np.isnan(logits[21:]).all(), isa


def test_a_visible_slot_that_nobody_wrote_spoils_the_row(kv_dtype):
    spec = tiny_spec()
    executor = load(spec, kv_dtype=kv_dtype)
    run(executor, TOKENS[:40], [3, 1, 2], 40)
    executor.poison_blocks(np.array([1], np.int32))
    row = Row(tokens=TOKENS[40:41], table=[3, 1, 2], start=40, logits_at=[0])
    assert np.isnan(executor.forward(step([row])).logits).all()


def test_progress_counts_layers():
    executor = load(tiny_spec())
    run(executor, TOKENS[:4], [0], 2)
    assert executor.progress == 4


def test_groups_have_their_own_tables_and_windows(kv_dtype):
    spec = tiny_spec()
    tokens = TOKENS[:100]
    program = build_program(spec)
    ops = tuple(
        replace(op, layer=0, group=op.layer, window=[None, 24][op.layer])
        if isinstance(op, PagedAttention)
        else op
        for op in program.ops
    )
    layout = cache_layout(spec, block_size=16, num_blocks=32, kv_dtype=kv_dtype)
    layout = replace(layout, group_layers=(1, 1))
    executor = NativeBackend().load(
        replace(program, ops=ops),
        random_tensors(spec),
        layout,
        options=BackendOptions(activation="f32"),
    )
    executor.poison_blocks(np.arange(32, dtype=np.int32))
    tables = [np.random.default_rng(seed).permutation(32)[:7].tolist() for seed in (1, 2)]
    parts = []
    for start, first in ((0, 0), (60, 32)):  # the windowed group forgets 32 positions
        piece = tokens[start : start + 60]
        row = Row(tokens=piece, table=tables[0], start=start, logits_at=range(len(piece)))
        batch = step([row])
        batch.block_tables += (np.array([tables[1][first // 16 :]], np.int32),)
        batch.first_position += (np.array([first], np.int32),)
        parts.append(executor.forward(batch).logits)
    actual = np.concatenate(parts)
    expected = dense_logits(spec, random_tensors(spec), tokens, [None, 24], kv_dtype=kv_dtype)
    assert np.abs(actual - expected).max() <= 1e-2 * np.abs(expected).max()
