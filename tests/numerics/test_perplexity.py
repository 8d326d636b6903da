"""The comparison harness itself, on models small enough to work out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from numerics.perplexity import compare, logits_in_chunks, text_tokens
from octavo.backends.program import BackendOptions
from octavo.backends.reference import ReferenceBackend
from octavo.models import build_program, cache_layout
from oracles.tiny_models import dense_logits, random_tensors, tiny_spec

TOKENS = np.random.default_rng(0).integers(0, 97, 30).tolist()


def executor(seed):
    spec = tiny_spec()
    layout = cache_layout(spec, block_size=16, num_blocks=2)
    return ReferenceBackend().load(
        build_program(spec), random_tensors(spec, seed), layout, options=BackendOptions()
    )


def probabilities(seed):
    logits = dense_logits(tiny_spec(), random_tensors(tiny_spec(), seed), TOKENS)[:-1]
    weights = np.exp(logits)
    return weights / weights.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("chunk", [7, 30])
def test_figures_follow_their_definitions(chunk):
    p, q = probabilities(1), probabilities(2)
    chunks = [logits_in_chunks(executor(seed), TOKENS, chunk) for seed in (1, 2)]
    result = compare(*chunks, TOKENS)
    rows = np.arange(29)
    assert result.num_tokens == 29
    perplexity = np.exp(-np.log(q[rows, TOKENS[1:]]).mean())
    assert result.perplexity == pytest.approx(perplexity, rel=1e-4)
    assert result.mean_kl == pytest.approx((p * np.log(p / q)).sum() / 29, rel=1e-4)
    assert result.top1_agreement == (p.argmax(axis=1) == q.argmax(axis=1)).mean()


def test_an_executor_equals_itself():
    chunks = [logits_in_chunks(executor(1), TOKENS, 16) for _ in range(2)]
    result = compare(*chunks, TOKENS)
    assert (result.perplexity_ratio, result.top1_agreement, result.mean_kl) == (1.0, 1.0, 0.0)


def test_the_text_is_long_enough(smollm2_path):
    assert len(text_tokens(smollm2_path)) > 4001
