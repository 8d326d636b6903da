"""Combinations of sampling parameters and grammars that are refused, each with its field."""

from __future__ import annotations

import pytest

from octavo.core.grammar import (
    MAX_GRAMMAR_CHARS,
    MAX_GRAMMAR_CHOICES,
    Grammar,
    validate_grammar,
)
from octavo.core.sampling_params import (
    MAX_BEAM_WIDTH,
    SamplingParams,
    refuse_stream,
    validate_sampling_params,
)
from octavo.errors import InvalidRequestError

BEAM = {"use_beam_search": True, "temperature": 0.0, "n": 2}


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        (Grammar(kind="ebnf", text="x", field="f"), "must be one of"),
        (Grammar(kind="regex", text="x" * (MAX_GRAMMAR_CHARS + 1), field="f"), "characters"),
        (Grammar(kind="choice", field="f"), "must list texts"),
        (Grammar(kind="choice", choices=("a", ""), field="f"), "none of them empty"),
        (Grammar(kind="choice", choices=("a",) * (MAX_GRAMMAR_CHOICES + 1), field="f"), "lists"),
        (Grammar(kind="lark", field="f"), "is empty"),
    ],
)
def test_a_grammar_past_a_limit_is_refused(grammar: Grammar, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words) as raised:
        validate_grammar(grammar)
    assert raised.value.param == "f"


@pytest.mark.parametrize("choices", [("a",), ("a",) * MAX_GRAMMAR_CHOICES])
def test_a_grammar_within_the_limits_is_taken(choices: tuple[str, ...]) -> None:
    """Just within is taken, one more is not."""
    validate_grammar(Grammar(kind="choice", choices=choices))
    validate_grammar(Grammar(kind="regex", text="x" * MAX_GRAMMAR_CHARS))
    for beyond in (
        Grammar(kind="choice", choices=("x",) * (MAX_GRAMMAR_CHOICES + 1)),
        Grammar(kind="regex", text="x" * (MAX_GRAMMAR_CHARS + 1)),
    ):
        with pytest.raises(InvalidRequestError, match="limit is"):
            validate_grammar(beyond)


@pytest.mark.parametrize(
    ("values", "param"),
    [
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"use_beam_search": 1}, "use_beam_search"),
        ({"early_stopping": "later"}, "early_stopping"),
        ({"length_penalty": 2.0}, "length_penalty"),
        ({"early_stopping": True}, "early_stopping"),
        ({**BEAM, "n": 1}, "best_of"),
        ({**BEAM, "n": MAX_BEAM_WIDTH + 1}, "n"),
        ({**BEAM, "best_of": MAX_BEAM_WIDTH + 1}, "best_of"),
        ({**BEAM, "temperature": 0.5}, "temperature"),
        ({**BEAM, "stop": ("x",)}, "stop"),
        ({**BEAM, "grammar": Grammar(kind="regex", text="x", field="guided")}, "guided"),
        ({"grammar": Grammar(kind="regex", text="x"), "ignore_eos": True}, "ignore_eos"),
        ({"grammar": Grammar(kind="regex", text="x"), "min_tokens": 1}, "min_tokens"),
    ],
)
def test_what_does_not_go_together_is_refused(values: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        SamplingParams(**values)  # type: ignore[arg-type]
    assert raised.value.param == param


def test_a_beam_search_needs_twice_its_width_of_tokens() -> None:
    params = SamplingParams(**BEAM)  # type: ignore[arg-type]
    validate_sampling_params(params, vocab_size=4)
    with pytest.raises(InvalidRequestError, match="vocabulary of 4 tokens; the model's has 3"):
        validate_sampling_params(params, vocab_size=3)


@pytest.mark.parametrize("values", [BEAM, {"n": 1, "best_of": 2}])
def test_what_is_known_at_its_end_only_cannot_be_streamed(values: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        refuse_stream(SamplingParams(**values))  # type: ignore[arg-type]
    assert raised.value.param == "stream"
    refuse_stream(SamplingParams(n=2))
