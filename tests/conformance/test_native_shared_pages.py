"""Rows that read the same physical pages: the pages are read once, and no bit changes."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.backends.native import NativeBackend
from octavo.backends.program import BackendOptions
from octavo.models import build_program, cache_layout
from octavo.models.rope import default_rope
from oracles.step_batches import Row, step
from oracles.tiny_models import random_tensors, tiny_spec

SPEC = tiny_spec(
    num_heads=9, num_kv_heads=3, head_dim=64, rope=default_rope(64, 10000.0, interleaved=True)
)
RNG = np.random.default_rng(11)
PREFIX = RNG.integers(0, 97, 560).tolist()
SEGMENT = 256
HEADS = SPEC.num_layers * SPEC.num_kv_heads
# Keys and values, and two scales of int8.
TOKEN_BYTES = {"bf16": HEADS * SPEC.head_dim * 2 * 2, "int8": HEADS * (SPEC.head_dim * 2 + 2 * 4)}

# Per row: how many leading tokens of PREFIX it shares, and how many tokens it has in all.
ROWS = [(560, 600), (560, 577), (300, 540), (560, 561), (0, 530), (300, 310), (0, 20)]


@pytest.fixture(params=TOKEN_BYTES)
def kv_dtype(request):
    return request.param


def load(block_size, num_threads, kv_dtype):
    layout = cache_layout(
        SPEC, block_size=block_size, num_blocks=4096 // block_size, kv_dtype=kv_dtype
    )
    options = BackendOptions(num_threads=num_threads, max_tokens=640)
    return NativeBackend().load(build_program(SPEC), random_tensors(SPEC), layout, options=options)


class Family:
    """Sequences whose common tokens lie in common blocks; the last token is not computed yet."""

    def __init__(self, block_size: int) -> None:
        rng = np.random.default_rng(block_size)
        blocks = iter(rng.permutation(4096 // block_size).tolist())
        common = [next(blocks) for _ in range(len(PREFIX) // block_size)]
        self.tokens, self.tables = [], []
        for shared, total in ROWS:
            whole = shared // block_size
            own = -(-total // block_size) - whole
            self.tables.append(common[:whole] + [next(blocks) for _ in range(own)])
            self.tokens.append(PREFIX[:shared] + rng.integers(0, 97, total - shared).tolist())
        self.spare = list(blocks)

    def prefill(self, executor):
        for tokens, table in zip(self.tokens, self.tables, strict=True):
            executor.forward(step([Row(tokens=tokens[:-1], table=table, logits_at=[0])]))

    def last(self, index):
        tokens = self.tokens[index]
        return Row(
            tokens=tokens[-1:], table=self.tables[index], start=len(tokens) - 1, logits_at=[0]
        )


def attention_bytes(executor):
    return next(time.read_bytes for time in executor.op_times() if time.op == "attention")


@pytest.mark.parametrize(("block_size", "num_threads"), [(16, 2), (48, 1), (64, 3)])
def test_shared_pages_are_read_once_and_change_nothing(block_size, num_threads, kv_dtype):
    executor, token_bytes = load(block_size, num_threads, kv_dtype), TOKEN_BYTES[kv_dtype]
    family = Family(block_size)
    family.prefill(executor)
    alone, unshared = [], 0
    for index, (_, total) in enumerate(ROWS):
        executor.start_profile()
        alone.append(executor.forward(step([family.last(index)])).logits[0])
        assert attention_bytes(executor) == total * token_bytes
        unshared += total
    for order in (range(len(ROWS)), [3, 6, 2, 0, 5, 4, 1]):
        executor.start_profile()
        logits = executor.forward(step([family.last(i) for i in order])).logits
        # Three rows share two segments, two more the first of them.
        saved = 4 * SEGMENT + 2 * SEGMENT
        assert attention_bytes(executor) == (unshared - saved) * token_bytes
        for place, index in enumerate(order):
            assert np.array_equal(logits[place], alone[index]), index


def test_beside_a_prompt_and_rows_that_do_not_sample(kv_dtype):
    executor = load(16, 2, kv_dtype)
    family = Family(16)
    family.prefill(executor)
    alone = [executor.forward(step([family.last(i)])).logits[0] for i in (0, 1, 3)]
    fresh = np.random.default_rng(2).integers(0, 97, 90).tolist()
    prompt = Row(tokens=fresh, table=family.spare[:6], logits_at=[89])
    expected = executor.forward(step([prompt])).logits[0]
    executor.start_profile()
    rows = [family.last(0), prompt, family.last(1), family.last(3)]
    logits = executor.forward(step(rows)).logits
    total = 600 + 90 + 577 + 561
    # The last layer goes on with the rows that sample: it reads every row's pages by itself.
    saved = 2 * 2 * SEGMENT * (SPEC.num_layers - 1) / SPEC.num_layers
    assert attention_bytes(executor) == (total - saved) * TOKEN_BYTES[kv_dtype]
    for place, want in zip((0, 2, 3, 1), (*alone, expected), strict=True):
        assert np.array_equal(logits[place], want)


def test_a_long_row_alone_is_split_without_a_change(kv_dtype):
    # With few rows every whole segment is an item; beside sixteen others none is.
    executor = load(16, 2, kv_dtype)
    family = Family(16)
    family.prefill(executor)
    alone = executor.forward(step([family.last(4)])).logits[0]
    others = [
        Row(tokens=[index], table=[family.spare[index]], start=0, logits_at=[0])
        for index in range(15)
    ]
    assert np.array_equal(executor.forward(step([family.last(4), *others])).logits[0], alone)
