"""Distributions of token counts, written as one short word: ``128`` or ``exponential:161``."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from octavo.errors import ConfigError

SYNTAX = "N, uniform:LOW:HIGH, exponential:MEAN or lognormal:MEAN:SIGMA"


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution over the integers from 1. ``text`` is what the user wrote."""

    text: str
    sample: Callable[[random.Random], int]


def parse_lengths(text: str, *, option: str) -> Lengths:
    """Read a distribution.

    Raises:
        ConfigError: it is none, or has an impossible parameter; ``option`` names where it stood.
    """
    kind, *parts = text.split(":")
    if not parts:
        kind, parts = "fixed", [text]
    makers = {"fixed": (_fixed, 1), "uniform": (_uniform, 2),
              "exponential": (_exponential, 1), "lognormal": (_lognormal, 2)}  # fmt: skip
    maker, arity = makers.get(kind, (None, 0))
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        maker, numbers = None, []
    if maker is None or len(numbers) != arity or not all(0 < x < 1e7 for x in numbers):
        raise ConfigError(f"{option} is '{text}'; write {SYNTAX}, each number above 0")
    if kind == "uniform" and numbers[0] > numbers[1]:
        raise ConfigError(f"{option} is '{text}'; LOW may not exceed HIGH")
    return Lengths(text, maker(numbers))


def _whole(value: float) -> int:
    return max(1, round(value))


def _fixed(numbers: list[float]) -> Callable[[random.Random], int]:
    return lambda rng: _whole(numbers[0])


def _uniform(numbers: list[float]) -> Callable[[random.Random], int]:
    low, high = map(_whole, numbers)
    return lambda rng: rng.randint(low, high)


def _exponential(numbers: list[float]) -> Callable[[random.Random], int]:
    return lambda rng: _whole(rng.expovariate(1 / numbers[0]))


def _lognormal(numbers: list[float]) -> Callable[[random.Random], int]:
    """``MEAN`` is the mean of the lengths, not of their logarithms: E = exp(mu + sigma² / 2)."""
    mean, sigma = numbers
    mu = math.log(mean) - sigma * sigma / 2
    return lambda rng: _whole(rng.lognormvariate(mu, sigma))
