"""Exponential and logarithm as fixed sequences of float32 operations.

A library's exp and log differ between versions and machines in the last bit, and one bit decides
a token. These use only single additions and multiplications in a written order (no fused ones),
so that this module and ``native/sampler.cpp`` give the same bits everywhere. The polynomials are
weighted least-squares fits, relative error below 1e-7 over their intervals.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_F = np.float32

LN2_HIGH = _F(0.693359375)
LN2_LOW = _F(-2.12194440e-4)
LOG2_E = _F(1.44269504)
# Adding and taking away 1.5 · 2^23 rounds a small float32 to the nearest integer, ties to even.
ROUNDER = _F(12582912.0)
# exp(x) is 0 below this, which keeps every other result a normal number.
EXP_FLOOR = _F(-87.0)

# exp(r) = 1 + r + r² · Q(r), |r| <= ln 2 / 2
EXP_POLYNOMIAL = tuple(
    _F(c) for c in (0.5, 0.16666518151, 0.041666205972, 0.0083688832819, 0.0013950471766)
)
# log(1 + f) = f - f²/2 + f³ · P(f), sqrt(1/2) <= 1 + f < sqrt(2)
LOG_POLYNOMIAL = tuple(
    _F(c)
    for c in (
        0.33333331346,
        -0.25000822544,
        0.20001226664,
        -0.16623353958,
        0.14201776683,
        -0.131602332,
        0.12761469185,
        -0.0763422996,
    )
)
_SQRT_HALF_BITS = np.int32(0x3F3504F3)

# Probability mass is counted in units of 2^-44, so that sums are of integers: exact in any order.
MASS_SCALE = 2.0**44


def _horner(x: NDArray[np.float32], coefficients: tuple[np.float32, ...]) -> NDArray[np.float32]:
    value = np.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = value * x + coefficient
    return value


def exp32(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """exp of values in [EXP_FLOOR, 0]; 0 for every other value, NaN too. exp32(0) is exactly 1."""
    valid = (x >= EXP_FLOOR) & (x <= _F(0.0))
    x = np.where(valid, x, _F(0.0))
    n = (x * LOG2_E + ROUNDER) - ROUNDER
    r = (x - n * LN2_HIGH) - n * LN2_LOW
    value = _F(1.0) + (r + (r * r) * _horner(r, EXP_POLYNOMIAL))
    power = ((n.astype(np.int32) + np.int32(127)) << np.int32(23)).view(np.float32)
    return np.where(valid, value * power, _F(0.0))


def log32(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Natural logarithm of positive normal numbers."""
    bits = np.ascontiguousarray(x, np.float32).view(np.int32)
    exponent = (bits - _SQRT_HALF_BITS) >> np.int32(23)
    f = (bits - (exponent << np.int32(23))).view(np.float32) - _F(1.0)
    e = exponent.astype(np.float32)
    square = f * f
    value = (f * square) * _horner(f, LOG_POLYNOMIAL)
    value = value + e * LN2_LOW
    value = value - _F(0.5) * square
    return (f + value) + e * LN2_HIGH


def mass32(weights: NDArray[np.float32]) -> NDArray[np.int64]:
    """Weights in [0, 1] as integers of 2^-44, rounded to the nearest, ties to even."""
    return np.rint(weights.astype(np.float64) * MASS_SCALE).astype(np.int64)
