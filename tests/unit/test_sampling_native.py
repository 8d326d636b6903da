"""The native sampler against its definition: the same bits for every combination of features."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo import _native as native
from octavo.sampling import SampleRow, sample_row
from octavo.sampling.philox import gumbel


def assert_same(logits, row):
    expected = sample_row(logits, row)
    token, logprob, top_ids, top_logprobs = native.sample_row(logits, row)
    assert token == expected.token
    assert np.float32(logprob).tobytes() == np.float32(expected.logprob).tobytes()
    assert top_ids == expected.top_ids.tolist()
    assert np.array(top_logprobs, np.float32).tobytes() == expected.top_logprobs.tobytes()


def random_logits(rng, vocab):
    kind = rng.integers(5)
    if kind == 0:  # many exact ties, zeros of both signs
        signs = rng.choice([-0.5, 0.5], vocab)
        return (rng.integers(-3, 4, vocab) * signs).astype(np.float32)
    if kind == 1:  # flat
        return rng.normal(0, 0.01, vocab).astype(np.float32)
    if kind == 2:  # one dominant token
        logits = rng.normal(0, 1, vocab).astype(np.float32)
        logits[rng.integers(vocab)] = 60.0
        return logits
    return rng.normal(rng.normal(0, 20), rng.uniform(0.5, 12), vocab).astype(np.float32)


def random_row(rng, vocab) -> SampleRow:
    def sometimes(value: Any, neutral: Any, chance: float = 0.4) -> Any:
        return value if rng.random() < chance else neutral

    def ids(most: int) -> np.ndarray:
        return rng.integers(0, vocab, rng.integers(0, most)).astype(np.int32)

    history, bias = ids(60), ids(6)
    mask = rng.integers(0, 1 << 32, -(-vocab // 32), dtype=np.uint64).astype(np.uint32)
    return SampleRow(
        seed=int(rng.integers(0, 1 << 64, dtype=np.uint64)),
        branch=int(rng.integers(0, 128)),
        position=int(rng.integers(0, 1 << 20)),
        temperature=float(rng.choice([0.0, 1e-3, 0.3, 0.7, 1.0, 1.0, 1.5, 5.0, 100.0])),
        top_k=sometimes(int(rng.choice([1, 2, 5, 40, 500, vocab, vocab + 7])), 0),
        top_p=sometimes(float(rng.choice([1e-6, 0.1, 0.5, 0.9, 0.99, 0.999999])), 1.0),
        min_p=sometimes(float(rng.choice([1e-4, 0.05, 0.5, 1.0])), 0.0, 0.3),
        repetition_penalty=sometimes(float(rng.choice([0.5, 1.1, 1.3, 10.0])), 1.0),
        presence_penalty=sometimes(float(rng.uniform(-2, 2)), 0.0),
        frequency_penalty=sometimes(float(rng.uniform(-2, 2)), 0.0),
        num_logprobs=int(rng.choice([-1, 0, 1, 5, 20])),
        num_prompt=int(rng.integers(0, len(history) + 1)),
        history=history,
        bias_ids=bias,
        bias_values=rng.uniform(-100, 100, len(bias)).astype(np.float32),
        banned_ids=ids(4),
        mask=sometimes(mask, None, 0.2),
        forced=sometimes(int(rng.integers(0, vocab)), -1, 0.2),
    )


@pytest.mark.parametrize("vocab", [1, 3, 17, 32, 1000, 4099])
def test_native_equals_the_definition(vocab):
    rng = np.random.default_rng(vocab)
    for _ in range(300):
        assert_same(random_logits(rng, vocab), random_row(rng, vocab))


def test_native_equals_the_definition_on_a_real_vocabulary():
    rng = np.random.default_rng(7)
    for _ in range(60):
        assert_same(random_logits(rng, 49152), random_row(rng, 49152))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3.4e38, -3.4e38])
def test_native_equals_the_definition_on_extreme_logits(bad):
    rng = np.random.default_rng(11)
    for _ in range(100):
        logits = random_logits(rng, 257)
        logits[rng.integers(0, 257, rng.integers(1, 8))] = bad
        assert_same(logits, random_row(rng, 257))
    assert_same(np.full(257, bad, np.float32), random_row(rng, 257))


def test_native_equals_the_definition_on_extreme_temperatures():
    rng = np.random.default_rng(13)
    for temperature in (1e-45, 1.1754944e-38, 1e-30, 1e-6, 1e6, 1e30, 3e38):
        for top_p in (1.0, 0.7):
            logits = random_logits(rng, 999)
            assert_same(
                logits,
                SampleRow(seed=1, branch=0, position=2, temperature=temperature, top_p=top_p),
            )


def test_equal_scores_go_to_the_lowest_id():
    pair = np.arange(2, dtype=np.int32)
    ties = 0
    for position in range(400):
        noise = gumbel(pair, seed=5, branch=0, position=position)
        # Token 1 leads by logit; token 0 trails by just as much as its noise is the luckier.
        logits = np.array([noise[1] - noise[0], 0.0], np.float32)
        row = SampleRow(seed=5, branch=0, position=position)
        if logits[0] < 0 and logits[0] + noise[0] == noise[1]:
            ties += 1
            assert sample_row(logits, row).token == 0
        assert_same(logits, row)
    assert ties > 20


def test_the_native_module_refuses_ids_outside_the_vocabulary():
    row = SampleRow(seed=0, branch=0, position=0, banned_ids=np.array([8], np.int32))
    with pytest.raises(IndexError, match="banned_ids"):
        native.sample_row(np.zeros(8, np.float32), row)
