"""Philox4x32-10 against the published vectors, and the float functions against numpy's."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.sampling.elementary import exp32, log32, mass32
from octavo.sampling.philox import gumbel, philox4x32, uniforms

ONES = 0xFFFFFFFF

# Known-answer vectors of the Random123 distribution: counter, key, result.
VECTORS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "result"), VECTORS)
def test_philox_gives_the_published_words(counter, key, result):
    words = philox4x32(np.array([counter, counter], np.uint32), key)
    assert words.tolist() == [list(result)] * 2


def test_uniforms_follow_their_definition():
    seed, branch, position = (0x299F31D0 << 32) | 0xA4093822, 3, 77
    drawn = uniforms(np.arange(9, dtype=np.int32), seed=seed, branch=branch, position=position)
    for token, value in enumerate(drawn):
        counter = np.array([token // 4, position, branch, 0], np.uint32)
        word = int(philox4x32(counter, (0xA4093822, 0x299F31D0))[token % 4])
        assert float(value) == ((word >> 9) + 0.5) / 2**23


def test_uniforms_are_open_and_even():
    drawn = uniforms(np.arange(200_000, dtype=np.int32), seed=5, branch=0, position=1)
    assert drawn.min() > 0.0
    assert drawn.max() < 1.0
    counts, _ = np.histogram(drawn, bins=100, range=(0, 1))
    chi_square = float((np.square(counts - 2000.0) / 2000.0).sum())
    assert chi_square < 160  # 99 degrees of freedom: exceeded once in 10,000


def test_gumbel_noise_has_its_mean_and_variance():
    noise = gumbel(np.arange(200_000, dtype=np.int32), seed=9, branch=2, position=4)
    assert abs(float(noise.mean()) - 0.5772) < 0.015
    assert abs(float(noise.var()) - np.pi**2 / 6) < 0.04


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 2, "branch": 0, "position": 5},
        {"seed": 1 + (1 << 32), "branch": 0, "position": 5},
        {"seed": 1, "branch": 1, "position": 5},
        {"seed": 1, "branch": 0, "position": 6},
    ],
)
def test_every_part_of_the_key_changes_the_noise(other):
    ids = np.arange(64, dtype=np.int32)
    here = gumbel(ids, seed=1, branch=0, position=5)
    assert np.count_nonzero(here == gumbel(ids, **other)) == 0


def test_noise_of_a_token_does_not_depend_on_the_others():
    alone = gumbel(np.array([1234], np.int32), seed=1, branch=0, position=0)
    among = gumbel(np.arange(2000, dtype=np.int32), seed=1, branch=0, position=0)
    assert alone[0] == among[1234]


def test_exp_is_close_and_exact_at_zero():
    x = np.linspace(-87, 0, 200_001).astype(np.float32)
    exact = np.exp(x.astype(np.float64))
    assert np.abs(exp32(x) / exact - 1).max() < 2e-7
    assert exp32(np.zeros(1, np.float32))[0] == 1.0
    assert exp32(np.array([-88, -np.inf, np.nan, 1e-3, np.inf], np.float32)).tolist() == [0.0] * 5


def test_log_is_close_where_it_is_used():
    u = ((np.arange(0, 2**23, 37) + 0.5) / 2**23).astype(np.float32)
    assert np.abs(log32(u) / np.log(u.astype(np.float64)) - 1).max() < 2e-7
    wide = np.logspace(-7, 6, 100_000).astype(np.float32)
    error = np.abs(log32(wide) - np.log(wide.astype(np.float64)))
    assert (error <= 2e-7 * np.maximum(np.abs(np.log(wide)), 1e-2)).all()


def test_mass_rounds_to_even_and_keeps_one():
    unit = 2.0**-44
    weights = np.array([0.0, 1.0, 0.5 * unit, 1.5 * unit, 3 * unit], np.float32)
    assert mass32(weights).tolist() == [0, 2**44, 0, 2, 3]
