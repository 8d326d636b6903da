"""From response_format and structured_outputs to one grammar, or a refusal that names the field."""

from __future__ import annotations

import json

import pytest

from octavo.core.grammar import Grammar
from octavo.errors import InvalidRequestError
from octavo.server import FIELDS
from octavo.server.endpoints import Endpoint
from octavo.server.field_check import check_fields
from octavo.server.structured import read_grammar
from octavo.server.typed_body import TypedBody
from served import LEAST

SCHEMA = {"type": "object", "properties": {"ä": {"type": "string"}}}
TEXT = '{"type":"object","properties":{"ä":{"type":"string"}}}'


def schema_format(**fields) -> dict:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, **fields}}


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        ({"response_format": {"type": "json_object"}}, "json_schema", '{"type":"object"}'),
        ({"response_format": schema_format()}, "json_schema", TEXT),
        ({"response_format": schema_format(strict=True, description="d")}, "json_schema", TEXT),
        ({"structured_outputs": {"json": SCHEMA}}, "json_schema", TEXT),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}},
            "json_schema",
            TEXT,
        ),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
            "json_schema",
            TEXT,
        ),
        ({"text": {"format": {"type": "json_object"}}}, "json_schema", '{"type":"object"}'),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, "json_schema", TEXT),
        ({"structured_outputs": {"regex": "a+"}}, "regex", "a+"),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, "lark", 'start: "a"'),
    ],
)
def test_read(body: dict, kind: str, text: str) -> None:
    grammar = read_grammar(TypedBody(body))
    assert grammar is not None
    assert (grammar.kind, grammar.text) == (kind, text)
    assert grammar.field.split(".")[0] in body


def test_choices() -> None:
    grammar = read_grammar(TypedBody({"structured_outputs": {"choice": ["a", "b"]}}))
    assert grammar == Grammar(kind="choice", choices=("a", "b"), field="structured_outputs.choice")


@pytest.mark.parametrize(
    "body", [{}, {"response_format": None}, {"response_format": {"type": "text"}}]
)
def test_nothing_asked(body: dict) -> None:
    assert read_grammar(TypedBody(body)) is None


def checked_and_read(body: dict) -> None:
    for endpoint in (Endpoint.CHAT, Endpoint.RESPONSES, Endpoint.MESSAGES):
        if body.keys() <= {field.name for field in FIELDS if endpoint in field.endpoints}:
            check_fields({**LEAST[endpoint], **body}, endpoint)
            read_grammar(TypedBody(body))


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_object", "schema": {}}}, "response_format.schema"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"text": {"format": "json"}}, "text.format"),
        ({"text": {"format": {"type": "yaml"}}}, "text.format.type"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": schema_format(extra=1)}, "response_format.json_schema.extra"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": [1]}}},
            "response_format.json_schema.schema",
        ),
        ({"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs"),
        ({"structured_outputs": {"yaml": "a"}}, "structured_outputs.yaml"),
        ({"structured_outputs": {"regex": 3}}, "structured_outputs.regex"),
        ({"structured_outputs": {"choice": "a"}}, "structured_outputs.choice"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": "[" * 100_000}}, "structured_outputs.json"),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "structured_outputs",
        ),
    ],
)
def test_refused(body: dict, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        checked_and_read(body)
    assert caught.value.param == param
