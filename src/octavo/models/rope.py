"""Rotary embeddings as numbers: the inverse frequencies of each scaling that models use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo.backends.program import RopeSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """Parameters of the Llama 3.1 context extension."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


def default_rope(head_dim: int, theta: float, *, interleaved: bool) -> RopeSpec:
    """inv_freq[i] = theta^(-2i / head_dim) (Su et al., 2021)."""
    return _rope(_base(head_dim, theta), interleaved, f"default theta={theta:g}")


def linear_rope(head_dim: int, theta: float, factor: float, *, interleaved: bool) -> RopeSpec:
    """Positions divided by ``factor`` (position interpolation, Chen et al., 2023)."""
    name = f"linear theta={theta:g} factor={factor:g}"
    return _rope(_base(head_dim, theta) / factor, interleaved, name)


def llama3_rope(
    head_dim: int, theta: float, scaling: Llama3Scaling, *, interleaved: bool
) -> RopeSpec:
    """Long wavelengths divided by ``factor``, short ones kept, a linear blend between.

    With L the original context, a frequency turns L·f/2π times within it: fewer than
    ``low_freq_factor`` turns are slowed fully, more than ``high_freq_factor`` not at all.
    """
    base = _base(head_dim, theta)
    turns = scaling.original_context * base / (2.0 * np.pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    keep = np.clip((turns - scaling.low_freq_factor) / span, 0.0, 1.0)
    name = (
        f"llama3 theta={theta:g} factor={scaling.factor:g} low={scaling.low_freq_factor:g} "
        f"high={scaling.high_freq_factor:g} context={scaling.original_context}"
    )
    return _rope(base * keep + base / scaling.factor * (1.0 - keep), interleaved, name)


def factored_rope(
    head_dim: int, theta: float, factors: Sequence[float], *, interleaved: bool
) -> RopeSpec:
    """Each frequency divided by its own factor, as a GGUF ``rope_freqs.weight`` stores them."""
    scaled = _base(head_dim, theta) / np.asarray(factors, np.float64)
    return _rope(scaled, interleaved, f"factors theta={theta:g}")


def _base(head_dim: int, theta: float) -> NDArray[np.float64]:
    return np.power(theta, -np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)


def _rope(inv_freq: NDArray[np.float64], interleaved: bool, name: str) -> RopeSpec:
    values = tuple(float(value) for value in inv_freq.astype(np.float32))
    pairs = "interleaved" if interleaved else "halves"
    return RopeSpec(inv_freq=values, interleaved=interleaved, name=f"{name} pairs={pairs}")
