"""The beam twin against what it must find: everything, where its width covers everything."""

from __future__ import annotations

import math
from itertools import product
from random import Random
from typing import Any

import pytest

from octavo.testing.beam_reference import BeamTask, Hypothesis, beam_search

STOP = 0


def random_model(seed: int, vocab_size: int) -> Any:
    """Random normalised logprobs, the same for the same tokens; coarse ones, so that some tie."""

    def continuations(tokens: tuple[int, ...]) -> list[tuple[int, float]]:
        rng = Random(f"{seed}/{tokens}")
        weights = [rng.randint(1, 4) for _ in range(vocab_size)]
        row = [(token, math.log(w / sum(weights))) for token, w in enumerate(weights)]
        return sorted(row, key=lambda pair: (-pair[1], pair[0]))

    return continuations


def every_sequence(model: Any, task: BeamTask) -> list[Hypothesis]:
    """Every sequence that ends, scored one by one."""
    found = []
    for length in range(1, task.max_tokens + 1):
        for tokens in product(range(4), repeat=length):
            ends = tokens[-1] == STOP or length == task.max_tokens
            if (
                STOP in tokens[:-1]
                or not ends
                or (tokens[-1] == STOP and length <= task.min_tokens)
            ):
                continue
            total = 0.0
            for at, token in enumerate(tokens):
                total += dict(model(tokens[:at]))[token]
            found.append(Hypothesis(tokens, total / length**task.length_penalty))
    return sorted(found, key=lambda each: -each.score)


@pytest.mark.parametrize("length_penalty", [-1.0, 0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("min_tokens", [0, 2])
def test_a_width_that_covers_everything_finds_the_best(
    length_penalty: float, min_tokens: int
) -> None:
    task = BeamTask(
        width=64,
        max_tokens=3,
        length_penalty=length_penalty,
        early_stopping="never",
        min_tokens=min_tokens,
        stop_ids=(STOP,),
    )
    for seed in range(5):
        model = random_model(seed, 4)
        found = beam_search(model, task)
        best = every_sequence(model, task)
        assert len(found) == min(len(best), 64)
        assert [each.score for each in found] == [each.score for each in best[: len(found)]]


def test_one_beam_is_greedy() -> None:
    for seed in range(5):
        model = random_model(seed, 6)
        tokens: tuple[int, ...] = ()
        while len(tokens) < 8 and STOP not in tokens:
            tokens += (model(tokens)[0][0],)
        task = BeamTask(width=1, max_tokens=8, early_stopping=True, stop_ids=(STOP,))
        assert beam_search(model, task)[0].token_ids == tokens


def test_early_stopping_decides_how_long_it_looks() -> None:
    """An end that is likely at once, and a continuation that becomes nearly certain."""

    def model(tokens: tuple[int, ...]) -> list[tuple[int, float]]:
        if len(tokens) < 2:
            return [(1, -0.9), (STOP, -1.0), (2, -5.0), (3, -6.0)]
        return [(1, -0.01), (STOP, -5.0), (2, -6.0), (3, -7.0)]

    looked = {}
    for early_stopping in (True, False, "never"):
        task = BeamTask(
            width=2,
            max_tokens=12,
            length_penalty=1.0,
            early_stopping=early_stopping,  # type: ignore[arg-type]
            stop_ids=(STOP,),
        )
        looked[early_stopping] = [len(each.token_ids) for each in beam_search(model, task)]
    assert looked[True] == [2, 1] or looked[True] == [1, 2]
    assert looked["never"][0] == 12


def test_ties_go_to_the_earlier_beam_then_to_the_lower_id() -> None:
    task = BeamTask(width=2, max_tokens=2, stop_ids=())
    found = beam_search(lambda _: [(token, -1.0) for token in range(4)], task)
    assert [each.token_ids for each in found] == [(0, 0), (0, 1)]
