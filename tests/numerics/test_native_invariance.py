"""The default model: the schedule never changes a bit of logits, tokens or logprobs."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.backends.native import NativeBackend
from octavo.backends.program import BackendOptions
from octavo.models import build_program, cache_layout, model_spec
from octavo.weights import open_model
from oracles.step_batches import Row, step

PROMPT = np.random.default_rng(7).integers(0, 40000, 640).tolist()
NUM_BLOCKS = 4096


@pytest.fixture(scope="module", params=["bf16", "int8"])
def kv_dtype(request):
    return request.param


def load(path, *, block_size=16, kv_dtype="bf16", **options):
    model = open_model(path)
    spec = model_spec(model)
    layout = cache_layout(
        spec, block_size=block_size, num_blocks=NUM_BLOCKS // block_size, kv_dtype=kv_dtype
    )
    chosen = BackendOptions(**({"num_threads": 2, "max_tokens": 640} | options))
    return NativeBackend().load(build_program(spec), model.tensors, layout, options=chosen)


def table_of(num_tokens, block_size, seed=1):
    blocks = np.random.default_rng(seed).permutation(NUM_BLOCKS // block_size)
    return blocks[: -(-num_tokens // block_size)].tolist()


def last_logits(executor, tokens, table, chunk):
    """Logits after the last token of every chunk, by position."""
    found = {}
    for start in range(0, len(tokens), chunk):
        piece = tokens[start : start + chunk]
        row = Row(tokens=piece, table=table, start=start, logits_at=[len(piece) - 1])
        found[start + len(piece) - 1] = executor.forward(step([row])).logits[0]
    return found


@pytest.fixture(scope="module")
def whole(smollm2_path, kv_dtype):
    executor = load(smollm2_path, kv_dtype=kv_dtype)
    places = list(range(15, 640, 16))
    row = Row(tokens=PROMPT, table=table_of(640, 16), logits_at=places)
    logits = executor.forward(step([row])).logits
    return dict(zip(places, logits, strict=True))


def assert_equal(found, whole):
    shared = found.keys() & whole.keys()
    assert shared
    for place in shared:
        assert np.array_equal(found[place], whole[place]), place


@pytest.mark.parametrize(
    ("block_size", "chunk", "num_threads"), [(16, 1, 2), (32, 48, 1), (64, 256, 2), (16, 80, 3)]
)
def test_chunks_blocks_and_threads(smollm2_path, kv_dtype, whole, block_size, chunk, num_threads):
    executor = load(smollm2_path, block_size=block_size, num_threads=num_threads, kv_dtype=kv_dtype)
    executor.poison_blocks(np.arange(NUM_BLOCKS // block_size, dtype=np.int32))
    tokens = PROMPT[:64] if chunk == 1 else PROMPT
    table = table_of(640, block_size, seed=chunk)
    assert_equal(last_logits(executor, tokens, table, chunk), whole)


@pytest.mark.parametrize("num_neighbours", [1, 2, 4, 11, 31])
def test_neighbours(smollm2_path, kv_dtype, whole, num_neighbours):
    executor = load(smollm2_path, kv_dtype=kv_dtype)
    rng = np.random.default_rng(num_neighbours)
    blocks = iter(rng.permutation(NUM_BLOCKS // 16).tolist())
    table = [next(blocks) for _ in range(40)]
    others = [[next(blocks) for _ in range(4)] for _ in range(num_neighbours)]
    place = int(rng.integers(0, num_neighbours + 1))
    for index, start in enumerate(range(0, 48, 16)):
        rows = [
            Row(tokens=rng.integers(0, 40000, 1).tolist(), table=t, start=index, logits_at=[0])
            for t in others
        ]
        mine = Row(tokens=PROMPT[start : start + 16], table=table, start=start, logits_at=[15])
        rows.insert(place, mine)
        logits = executor.forward(step(rows)).logits
        assert np.array_equal(logits[place], whole[start + 15])


@pytest.mark.parametrize(("chunk", "num_threads"), [(16, 1), (80, 2), (640, 3)])
def test_hidden_states_depend_on_their_own_tokens_alone(smollm2_path, chunk, num_threads):
    """Bit for bit the same in any chunk and company, and what the logits are made of."""

    def hidden(executor, rows):
        batch = step(rows)
        batch.want_hidden = True
        return executor.forward(batch)

    executor = load(smollm2_path, num_threads=num_threads)
    tokens = PROMPT[:80]
    other = Row(tokens=PROMPT[90:99], table=table_of(640, 16)[30:31], logits_at=[3, 8])
    for start in range(0, 80, chunk):
        piece = tokens[start : start + chunk]
        places = [len(piece) - 1]
        mine = Row(tokens=piece, table=table_of(80, 16), start=start, logits_at=places)
        output = hidden(executor, [other, mine] if start else [mine])
    assert output.hidden.dtype == np.float32
    whole = Row(tokens=tokens, table=table_of(640, 16)[5:10], logits_at=range(80))
    alone = hidden(load(smollm2_path), [whole])
    assert np.array_equal(output.hidden[-1], alone.hidden[-1])
    assert np.array_equal(output.logits[-1], alone.logits[-1])
    assert len({row.tobytes() for row in alone.hidden}) == 80


def test_instruction_sets_agree(smollm2_path, kv_dtype, whole):
    avx2 = load(smollm2_path, isa="avx2", kv_dtype=kv_dtype)
    assert_equal(last_logits(avx2, PROMPT[:96], table_of(96, 16), 32), whole)
    scalar = load(smollm2_path, isa="scalar", kv_dtype=kv_dtype)
    assert_equal(last_logits(scalar, PROMPT[:16], [0], 16), whole)


@pytest.mark.slow
def test_beyond_two_thousand_tokens(smollm2_path, kv_dtype):
    tokens = np.random.default_rng(8).integers(0, 40000, 2300).tolist()
    results = [
        last_logits(load(smollm2_path, kv_dtype=kv_dtype), tokens, table_of(2300, 16, seed), chunk)[
            2299
        ]
        for seed, chunk in ((1, 640), (2, 333), (3, 64))
    ]
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], results[2])
