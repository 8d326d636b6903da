"""The sampler's definition: order of the filters, ties, penalties, extremes, independence."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.sampling import NO_TOKEN, SampleRow, adjust_logits, sample_row


def row(**fields) -> SampleRow:
    return SampleRow(**({"seed": 0, "branch": 0, "position": 0} | fields))


def ids(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def logits(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def support(values: np.ndarray, draws: int = 400, **fields) -> set[int]:
    """Tokens that come out over many positions."""
    return {sample_row(values, row(position=i, **fields)).token for i in range(draws)}


def test_greedy_takes_the_lowest_id_among_equals():
    assert sample_row(logits(1, 3, 3, -0.0), row(temperature=0)).token == 1
    assert sample_row(logits(-1, -0.0, 0.0), row(temperature=0)).token == 1


def test_draws_follow_the_softmax():
    values = logits(0.0, 1.0, 2.0, -1.0, 0.5)
    expected = np.exp(values) / np.exp(values).sum()
    draws = 5_000
    counts = np.zeros(5)
    for position in range(draws):
        counts[sample_row(values, row(seed=3, position=position)).token] += 1
    chi_square = float((np.square(counts - draws * expected) / (draws * expected)).sum())
    assert chi_square < 23.5  # 4 degrees of freedom: exceeded once in 10,000


def test_temperature_sharpens():
    values = logits(0.0, 1.0)
    hot = [sample_row(values, row(temperature=10, position=i)).token for i in range(1000)]
    cold = [sample_row(values, row(temperature=0.2, position=i)).token for i in range(1000)]
    assert 0.45 < np.mean(hot) < 0.6
    assert np.mean(cold) > 0.98


def test_a_forced_token_is_taken_whatever_the_rest_says_and_scored():
    values = logits(1, 5, 2)
    strict = {"temperature": 0, "banned_ids": ids(0), "bias_ids": ids(1),
              "bias_values": logits(100), "mask": np.array([6], np.uint32)}  # fmt: skip
    drawn = sample_row(values, row(num_logprobs=0, forced=0, **strict))
    assert drawn.token == 0
    assert drawn.logprob == pytest.approx(-np.log(np.exp(values - 1).sum()), abs=1e-6)
    assert sample_row(logits(np.nan, 5, 2), row(forced=0)).token == NO_TOKEN


def test_top_k_keeps_the_lowest_ids_among_equals():
    assert support(logits(1, 5, 5, 5, 1), top_k=2) == {1, 2}


def test_top_p_keeps_the_shortest_prefix_that_reaches_the_mass():
    values = np.log(logits(0.5, 0.25, 0.15, 0.1))
    assert support(values, top_p=0.45) == {0}
    assert support(values, top_p=0.7) == {0, 1}
    assert support(values, top_p=0.8) == {0, 1, 2}
    assert support(values, top_p=1e-9) == {0}


def test_top_p_sees_what_top_k_left():
    # Of the two that top-k leaves, the first holds 0.5 / 0.75 of the mass.
    values = np.log(logits(0.5, 0.25, 0.15, 0.1))
    assert support(values, top_k=2, top_p=0.6) == {0}
    assert support(values, top_p=0.6) == {0, 1}


def test_top_p_sees_the_temperature():
    values = np.log(logits(0.5, 0.25, 0.15, 0.1))
    assert support(values, top_p=0.7, temperature=0.25) == {0}
    assert support(values, top_p=0.7, temperature=50) == {0, 1, 2}


def test_min_p_is_relative_to_the_best_allowed_token():
    values = np.log(logits(0.5, 0.25, 0.15, 0.1))
    assert support(values, min_p=0.4) == {0, 1}
    assert support(values, min_p=0.5, banned_ids=ids(0)) == {1, 2}
    assert support(values, min_p=1.0) == {0}


def test_repetition_penalty_acts_once_on_prompt_and_output():
    out = adjust_logits(
        logits(2, -2, 2, 2),
        row(history=ids(0, 1, 0, 2), num_prompt=2, repetition_penalty=2.0),
    )
    assert out.tolist() == [1, -4, 1, 2]


def test_presence_and_frequency_look_at_the_output_only():
    out = adjust_logits(
        logits(0, 0, 0),
        row(
            history=ids(0, 0, 1, 2, 2),
            num_prompt=2,
            presence_penalty=0.5,
            frequency_penalty=1.0,
        ),
    )
    assert out.tolist() == [0, -1.5, -2.5]


def test_penalties_come_before_bias_and_bias_before_bans():
    out = adjust_logits(
        logits(4, 4),
        row(
            history=ids(0),
            repetition_penalty=2.0,
            bias_ids=ids(0, 0, 1),
            bias_values=logits(3, 1, 100),
            banned_ids=ids(1),
        ),
    )
    assert out.tolist() == [6, -np.inf]


def test_the_mask_allows_by_bit():
    mask = np.array([0b1010, 1], np.uint32)
    out = adjust_logits(np.zeros(33, np.float32), row(mask=mask))
    assert np.flatnonzero(out == 0).tolist() == [1, 3, 32]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_candidate_is_named(temperature):
    everything = row(temperature=temperature, banned_ids=ids(0, 1), num_logprobs=1)
    sample = sample_row(logits(1, 2), everything)
    assert sample.token == NO_TOKEN
    assert sample.logprob == -np.inf
    assert sample.top_ids.tolist() == [1]


def test_logits_that_are_not_finite_are_no_candidates():
    values = logits(np.nan, np.inf, -np.inf, 1, 0)
    assert support(values) == {3, 4}
    assert sample_row(values, row(temperature=0)).token == 3


def test_extreme_temperatures_and_logits():
    values = logits(-3e38, 3e38, 1e38)
    assert support(values, temperature=1e-30, draws=50) == {1}
    assert support(values, temperature=1e-45, draws=50) == {1}
    assert support(logits(0, 1, 2), temperature=1e30, draws=100) == {0, 1, 2}
    assert support(values, temperature=100.0, top_p=0.9, min_p=0.1, draws=50) == {1}


def test_logprobs_are_of_the_raw_logits():
    values = np.random.default_rng(0).normal(0, 3, 500).astype(np.float32)
    exact = values - np.log(np.exp(values.astype(np.float64)).sum())
    sample = sample_row(
        values,
        row(temperature=0.3, top_k=3, bias_ids=ids(7), bias_values=logits(90), num_logprobs=4),
    )
    assert sample.token == 7
    assert abs(sample.logprob - exact[7]) < 2e-6
    assert sample.top_ids.tolist() == np.argsort(-exact)[:4].tolist()
    assert np.abs(sample.top_logprobs - exact[sample.top_ids]).max() < 2e-6


def test_top_logprobs_tie_by_id_and_pad():
    sample = sample_row(logits(1, 2, 2, -np.inf), row(num_logprobs=6))
    assert sample.top_ids.tolist() == [1, 2, 0, NO_TOKEN, NO_TOKEN, NO_TOKEN]
    assert sample.top_logprobs[3:].tolist() == [-np.inf] * 3


def test_logprobs_of_nothing_finite():
    sample = sample_row(np.full(3, np.nan, np.float32), row(num_logprobs=1))
    assert (sample.token, sample.logprob) == (NO_TOKEN, -np.inf)
    assert sample.top_ids.tolist() == [NO_TOKEN]


def test_no_logprobs_unless_asked():
    sample = sample_row(logits(1, 2), row())
    assert (sample.logprob, len(sample.top_ids)) == (0.0, 0)


def test_branches_are_independent_of_how_many_there_are():
    # Branch i is a function of (seed, i, position): asking for more changes nothing.
    values = np.random.default_rng(1).normal(0, 1, 300).astype(np.float32)
    tokens = [sample_row(values, row(seed=8, branch=b, position=3)).token for b in range(16)]
    again = [sample_row(values, row(seed=8, branch=b, position=3)).token for b in (5, 2)]
    assert again == [tokens[5], tokens[2]]
    assert len(set(tokens)) > 4


def test_neutral_filters_change_nothing():
    values = np.random.default_rng(2).normal(0, 2, 300).astype(np.float32)
    for position in range(50):
        plain = sample_row(values, row(position=position)).token
        neutral = row(position=position, top_k=300, top_p=1.0, history=ids(1, 2), num_prompt=1)
        assert sample_row(values, neutral).token == plain


def test_filters_only_remove_candidates():
    # The same noise decides with and without a filter: a winner that survives still wins.
    values = np.random.default_rng(3).normal(0, 2, 300).astype(np.float32)
    survived = 0
    for position in range(200):
        plain = sample_row(values, row(position=position)).token
        if plain in set(np.argsort(-values, kind="stable")[:40].tolist()):
            survived += 1
            assert sample_row(values, row(position=position, top_k=40)).token == plain
    assert survived > 50
