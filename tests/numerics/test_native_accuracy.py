"""The native backend's int8 arithmetic against the float32 reference, over a long text."""

from __future__ import annotations

from pathlib import Path

import pytest

from numerics.perplexity import Comparison, compare, load, text_tokens
from octavo.backends.native import NativeBackend
from octavo.backends.program import BackendOptions
from octavo.backends.reference import ReferenceBackend
from oracles.requantize import requantize

CHUNK = 256
WHOLE = 4000
SHORT = 384


def compare_backends(model_path: Path, num_tokens: int | None = None) -> Comparison:
    tokens = text_tokens(model_path)[:num_tokens]
    options = BackendOptions(max_tokens=CHUNK)
    reference = load(ReferenceBackend(), model_path, len(tokens), options)
    native = load(NativeBackend(), model_path, len(tokens), options)
    result = compare(reference, native, tokens, chunk=CHUNK)
    reference.close()
    native.close()
    return result


def assert_accurate(result: Comparison) -> None:
    assert abs(result.perplexity_ratio - 1) <= 0.01, result
    assert result.top1_agreement >= 0.97, result
    assert result.mean_kl <= 0.01, result


def test_the_packaged_q4_1_on_a_short_text(smollm2_path):
    result = compare_backends(smollm2_path, SHORT)
    assert result.num_tokens == SHORT - 1
    # A few hundred tokens are too few for the bounds of the whole text.
    assert abs(result.perplexity_ratio - 1) <= 0.02, result
    assert result.top1_agreement >= 0.95, result
    assert result.mean_kl <= 0.01, result


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_packaged_q4_1(smollm2_path):
    result = compare_backends(smollm2_path)
    assert result.num_tokens >= WHOLE
    assert_accurate(result)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("weight_format", ["Q8_0", "Q4_0", "Q5_0", "BF16"])
def test_requantised(smollm2_path, tmp_path, weight_format):
    path = requantize(smollm2_path, tmp_path / "model.gguf", weight_format)
    result = compare_backends(path)
    assert result.num_tokens >= WHOLE
    assert_accurate(result)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_q4_k_and_q6_k_on_the_larger_model(qwen_path):
    result = compare_backends(qwen_path)
    assert result.num_tokens >= WHOLE
    assert_accurate(result)
