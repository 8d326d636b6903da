"""Every sampling field has a range, and a refusal that names it."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import pytest

from octavo.core.grammar import Grammar
from octavo.core.sampling_params import SamplingParams, validate_sampling_params
from octavo.errors import InvalidRequestError

VOCAB = 100
HOSTILE_INTEGERS = [True, 1.5, "1", None, math.nan, -(1 << 70), 1 << 70]
HOSTILE_NUMBERS = [True, "1", None, math.nan, math.inf, -math.inf, 1e308, -1e308]
INTEGERS = ["n", "best_of", "max_tokens", "min_tokens", "top_k", "seed", "logprobs",
            "prompt_logprobs"]  # fmt: skip
NUMBERS = [
    "temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
    "length_penalty",
]  # fmt: skip
DIGITS = Grammar(kind="regex", text="[0-9]+")
MAY_BE_NONE = {"best_of", "max_tokens", "seed", "logprobs", "prompt_logprobs"}


def refused(**values: object) -> str | None:
    try:
        validate_sampling_params(SamplingParams(**values), vocab_size=VOCAB)  # type: ignore[arg-type]
    except InvalidRequestError as error:
        return error.param
    return None


def test_what_can_never_work_cannot_be_made() -> None:
    with pytest.raises(InvalidRequestError, match="temperature must be between 0 and 100"):
        SamplingParams(temperature=-1)
    with pytest.raises(InvalidRequestError, match="not a string"):
        SamplingParams(stop="abc")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("value", HOSTILE_INTEGERS)
def test_hostile_integers(name: str, value: object) -> None:
    expected = None if value is None and name in MAY_BE_NONE else name
    assert refused(**{name: value}) == expected


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", HOSTILE_NUMBERS)
def test_hostile_numbers(name: str, value: object) -> None:
    assert refused(**{name: value}) == name


@pytest.mark.parametrize(
    ("values", "param"),
    [
        ({"n": 0}, "n"),
        ({"allowed_token_ids": (1, VOCAB)}, "allowed_token_ids"),
        ({"allowed_token_ids": (1,) * 20_000}, "allowed_token_ids"),
        ({"allowed_token_ids": (1,), "bad_words": ("x",)}, "allowed_token_ids"),
        ({"allowed_token_ids": (1,), "grammar": DIGITS}, "allowed_token_ids"),
        ({"bad_words": ("x",), "grammar": DIGITS}, "bad_words"),
        ({"bad_words": ("",)}, "bad_words[0]"),
        ({"bad_words": "x"}, "bad_words"),
        ({"bad_words": ("x",) * 129}, "bad_words"),
        ({"bad_words": ("x" * 129,)}, "bad_words[0]"),
        (
            {"prompt_logprobs": 2, "use_beam_search": True, "best_of": 2, "temperature": 0.0},
            "prompt_logprobs",
        ),
        ({"n": 129}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.01}, "top_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"logprobs": 21}, "logprobs"),
        ({"logit_bias": ((100, 0.0),)}, "logit_bias"),
        ({"logit_bias": ((-1, 0.0),)}, "logit_bias"),
        ({"logit_bias": ((1, 101.0),)}, "logit_bias"),
        ({"logit_bias": ((1, 0.0),) * 1025}, "logit_bias"),
        ({"stop_token_ids": (100,)}, "stop_token_ids"),
        ({"stop_token_ids": (True,)}, "stop_token_ids"),
        ({"stop_token_ids": (1,) * 129}, "stop_token_ids"),
        ({"stop": ("",)}, "stop[0]"),
        ({"stop": (3,)}, "stop[0]"),
        ({"stop": ("x",) * 17}, "stop"),
        ({"stop": ("x" * 257,)}, "stop[0]"),
    ],
)
def test_limits(values: dict[str, object], param: str) -> None:
    assert refused(**values) == param


def test_the_defaults_and_the_edges_are_accepted() -> None:
    assert refused() is None
    assert (
        refused(
            n=128,
            max_tokens=1 << 20,
            min_tokens=1 << 20,
            temperature=0,
            top_k=1,
            top_p=1,
            min_p=1.0,
            seed=-(1 << 63),
            repetition_penalty=10,
            presence_penalty=-2,
            frequency_penalty=2.0,
            logit_bias=((99, -100.0), (0, 100)),
            stop=("x" * 256,),
            stop_token_ids=(0, 99),
            logprobs=20,
        )
        is None
    )


def test_every_numeric_field_is_in_the_tables() -> None:
    others = {
        "logit_bias", "ignore_eos", "stop", "stop_token_ids", "include_stop_str_in_output",
        "skip_special_tokens", "use_beam_search", "early_stopping", "grammar",
        "allowed_token_ids", "bad_words", "bad_token_ids",
    }  # fmt: skip
    assert {field.name for field in fields(SamplingParams)} == {*INTEGERS, *NUMBERS, *others}


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ((1, 101.0), "a value of logit_bias must be between -100 and 100, not 101.0"),
        ((1, "a"), "a value of logit_bias must be a finite number"),
        ((100, 1.0), "a token id of logit_bias must be between 0 and 99, not 100"),
    ],
)
def test_a_bias_at_fault_says_which_half_of_it(pair: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        validate_sampling_params(SamplingParams(logit_bias=(pair,)), vocab_size=100)
    assert (caught.value.message, caught.value.param) == (message, "logit_bias")
