"""The ops in numpy float32, as their definitions read."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo.backends.program import RopeSpec

Floats = NDArray[np.float32]


def rms_norm(x: Floats, weight: Floats, eps: float) -> Floats:
    """x / sqrt(mean(x²) + eps) · weight, along the last axis (Zhang and Sennrich, 2019)."""
    mean_square: Floats = np.mean(np.square(x), axis=-1, keepdims=True)
    out: Floats = x / np.sqrt(mean_square + np.float32(eps)) * weight
    return out


def row_parallel(x: Floats, weight: Floats, k_slices: int) -> Floats:
    """x @ weight.T summed over ``k_slices`` equal slices of K, ascending."""
    width = x.shape[1] // k_slices
    total = np.zeros((x.shape[0], weight.shape[0]), np.float32)
    for start in range(0, x.shape[1], width):
        total += x[:, start : start + width] @ weight[:, start : start + width].T
    return total


def silu(x: Floats) -> Floats:
    """x · sigmoid(x)."""
    out = np.empty_like(x)
    with np.errstate(over="ignore"):  # exp(-x) may be inf, and the quotient is then -0
        np.divide(x, np.float32(1.0) + np.exp(-x), out=out)
    return out


def rotate(x: Floats, positions: NDArray[np.int64], rope: RopeSpec) -> Floats:
    """Turn every pair (a, b) of x [T, heads, head_dim] by its angle position · inv_freq[i]."""
    inv_freq = np.array(rope.inv_freq, np.float32)
    angle = positions.astype(np.float32)[:, None, None] * inv_freq
    cos, sin = np.cos(angle), np.sin(angle)
    half = x.shape[-1] // 2
    if rope.interleaved:
        first, second = slice(0, None, 2), slice(1, None, 2)
    else:
        first, second = slice(0, half), slice(half, None)
    a, b = x[..., first], x[..., second]
    out = np.empty_like(x)
    out[..., first] = a * cos - b * sin
    out[..., second] = a * sin + b * cos
    return out


def attend(query: Floats, key: Floats, value: Floats, *, visible: NDArray[np.bool_]) -> Floats:
    """Softmax attention of one row: query [Q, H, D] (scaled), key and value [S, G, D] → [Q, H, D].

    Query head h reads KV head h // (H / G). ``visible`` [Q, S] has a true entry in every line;
    what is not visible weighs exactly 0.
    """
    share = query.shape[1] // key.shape[1]
    query = query.transpose(1, 0, 2)
    key = np.repeat(key, share, axis=1).transpose(1, 2, 0)
    value = np.repeat(value, share, axis=1).transpose(1, 0, 2)
    scores = np.where(visible, query @ key, np.float32(-np.inf))
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)
    out: Floats = (weights @ value).transpose(1, 0, 2)
    return out
