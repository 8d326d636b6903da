"""Open numbers get an end, a schema's own bounds stay, and nothing that is written is invalid."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest
from llguidance import LLMatcher, LLTokenizer

from octavo.core.grammar import Grammar
from octavo.grammar.notation import new_matcher
from octavo.grammar.number_bounds import LARGEST, bound_numbers

NUMBER: dict[str, Any] = {"type": "number"}
INTEGER: dict[str, Any] = {"type": "integer"}
NAMES = {
    "type": "object",
    "properties": {"type": NUMBER, "enum": INTEGER},
    "required": ["type", "enum"],
    "additionalProperties": False,
}
# Schema, what it spells, and what it does not.
SPELT: list[tuple[dict[str, Any], list[str], list[str]]] = [
    (NUMBER, ["0", "-1.5", "9" * 15, "-0.123456789"], ["9" * 16, "1e5", "0.1234567891"]),
    (INTEGER, ["0", "-7", str(LARGEST), str(-LARGEST)], [str(LARGEST + 1), "1.5"]),
    ({**NUMBER, "minimum": 0.1}, ["0.1", "2"], ["0.05", "9" * 16]),
    ({**NUMBER, "exclusiveMinimum": 0, "maximum": 1}, ["0.5", "1"], ["0", "1.1"]),
    ({**NUMBER, "minimum": 0, "maximum": 1e-12}, ["0", "0.0000000000001"], ["0.1"]),
    ({**NUMBER, "minimum": 1e17}, ["100000000000000000"], ["5"]),
    ({**NUMBER, "multipleOf": 0.5}, ["1.5"], ["1.25", "9" * 16]),
    ({**INTEGER, "multipleOf": 7}, ["14"], ["15"]),
    ({**INTEGER, "exclusiveMaximum": 5}, ["4", "-3"], ["5"]),
    ({"type": ["number", "null"]}, ["null", "1.5"], ["1e5"]),
    ({"anyOf": [NUMBER, {"type": "string"}]}, ["1.5", '"1e5"'], ["1e5"]),
    ({"allOf": [NUMBER, {"minimum": 5}]}, ["6.5"], ["4"]),
    ({"const": 10**20}, [str(10**20)], ["1"]),
    ({"type": "number", "enum": [10**20]}, [str(10**20)], ["1"]),
    (NAMES, ['{"type": 1.5, "enum": 3}'], ['{"type": 1e5, "enum": 3}']),
]


@pytest.mark.parametrize(("schema", "spelt", "not_spelt"), SPELT)
def test_what_a_number_may_be(
    schema: dict[str, Any], spelt: list[str], not_spelt: list[str]
) -> None:
    matcher = new_matcher(
        LLTokenizer("byte"), Grammar(kind="json_schema", text=json.dumps(schema), field="f")
    )
    assert not matcher.is_error(), matcher.get_error()
    for text in spelt:
        assert spells(matcher, text), text
        jsonschema_rs.validate(schema, json.loads(text))
    for text in not_spelt:
        assert not spells(matcher, text), text


def spells(matcher: LLMatcher, text: str) -> bool:
    state, tokens = matcher.deep_copy(), list(text.encode())
    return state.try_consume_tokens(tokens) == len(tokens) and state.is_accepting()


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"}, {"enum": [1, 2]}, {"const": {"type": "number"}}, True, {},
        {"default": {"type": "integer"}, "type": "string"}, {"type": "number", "minimum": "x"},
    ],
)  # fmt: skip
def test_what_is_no_open_number_stays(schema: Any) -> None:
    assert bound_numbers(schema) == schema
