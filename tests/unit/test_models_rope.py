"""Inverse frequencies of every scaling against their formulas, written out one by one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from octavo.models.rope import (
    Llama3Scaling,
    default_rope,
    factored_rope,
    linear_rope,
    llama3_rope,
)

SCALING = Llama3Scaling(
    factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=8192
)


def llama3_twin(base: float) -> float:
    wavelength = 2 * math.pi / base
    if wavelength < 8192 / 4.0:
        return base
    if wavelength > 8192 / 1.0:
        return base / 8.0
    smooth = (8192 / wavelength - 1.0) / (4.0 - 1.0)
    return (1 - smooth) * base / 8.0 + smooth * base


def test_default_and_linear():
    rope = default_rope(64, 10000.0, interleaved=False)
    expected = [10000.0 ** (-2 * i / 64) for i in range(32)]
    assert rope.inv_freq == pytest.approx(expected, rel=1e-7)
    quarter = linear_rope(64, 10000.0, 4.0, interleaved=False)
    assert quarter.inv_freq == pytest.approx([f / 4 for f in expected], rel=1e-7)


def test_llama3_blends_between_the_two_wavelengths():
    rope = llama3_rope(128, 500000.0, SCALING, interleaved=False)
    base = [500000.0 ** (-2 * i / 128) for i in range(64)]
    assert rope.inv_freq == pytest.approx([llama3_twin(f) for f in base], rel=1e-6)
    kept = sum(f == pytest.approx(b, rel=1e-6) for f, b in zip(rope.inv_freq, base, strict=True))
    slowed = sum(
        f == pytest.approx(b / 8, rel=1e-6) for f, b in zip(rope.inv_freq, base, strict=True)
    )
    assert kept > 10
    assert slowed > 10
    assert kept + slowed < 64


def test_stored_factors_give_the_same_as_llama3():
    rope = llama3_rope(128, 500000.0, SCALING, interleaved=True)
    base = default_rope(128, 500000.0, interleaved=True)
    factors = np.array(base.inv_freq) / np.array(rope.inv_freq)
    stored = factored_rope(128, 500000.0, factors.tolist(), interleaved=True)
    assert stored.inv_freq == pytest.approx(rope.inv_freq, rel=1e-6)


def test_names_tell_ropes_apart():
    ropes = [
        default_rope(64, 10000.0, interleaved=False),
        default_rope(64, 10000.0, interleaved=True),
        default_rope(64, 500000.0, interleaved=False),
        linear_rope(64, 10000.0, 2.0, interleaved=False),
        llama3_rope(64, 10000.0, SCALING, interleaved=False),
        factored_rope(64, 10000.0, [1.0] * 32, interleaved=False),
    ]
    assert len({rope.name for rope in ropes}) == len(ropes)
