"""``response_format`` and ``structured_outputs``: from a request's fields to one ``Grammar``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from octavo.core.grammar import Grammar
from octavo.errors import InvalidRequestError
from octavo.frontend.tools import JSON_SCHEMA
from octavo.server.request_shapes import (
    OUTPUT_CONFIG,
    RESPONSE_FORMAT,
    STRUCTURED_OUTPUTS,
    TEXT_FORMAT,
)
from octavo.server.typed_body import TypedBody
from octavo.text.members import wrong
from octavo.text.shape_check import check_shape

_ANY_OBJECT = '{"type":"object"}'
# Name in structured_outputs → kind of grammar.
_KINDS = {"json": "json_schema", "regex": "regex", "choice": "choice", "grammar": "lark"}


def read_grammar(body: TypedBody) -> Grammar | None:
    """The grammar that a request asks for, if any.

    Raises:
        InvalidRequestError: naming the field: an unknown type or key, or two grammars at once.
    """
    form = body.shaped("response_format", RESPONSE_FORMAT)
    by_format = _format(form, "response_format")
    for field, shape in (("text", TEXT_FORMAT), ("output_config", OUTPUT_CONFIG)):
        form = body.shaped(field, shape).get("format") or {}
        by_format = by_format or _format(form, f"{field}.format")
    by_name = _structured_outputs(body)
    if by_format is not None and by_name is not None:
        raise InvalidRequestError(
            "a format and structured_outputs both ask for a structure; send one of them",
            param="structured_outputs",
        )
    return by_format or by_name


def schema_grammar(schema: object, field: str) -> Grammar:
    """A JSON schema as a grammar.

    Raises:
        InvalidRequestError: it is no object.
    """
    check_shape(schema, JSON_SCHEMA, field)
    text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    return Grammar(kind="json_schema", text=text, field=field)


def _format(form: Mapping[str, Any], field: str) -> Grammar | None:
    """A format, whose schema stands beside its type or in an object of that name."""
    kind = form.get("type", "text")
    if kind == "json_object":
        return Grammar(kind="json_schema", text=_ANY_OBJECT, field=field)
    if kind == "text":
        return None
    if kind in form:
        form, field = form[kind], f"{field}.{kind}"
    return schema_grammar(form["schema"], f"{field}.schema")


def _structured_outputs(body: TypedBody) -> Grammar | None:
    if body.raw("structured_outputs") is None:
        return None
    if len(body.mapping("structured_outputs")) != 1:
        raise wrong("structured_outputs", f"takes exactly one of {', '.join(_KINDS)}")
    ((name, wanted),) = body.shaped("structured_outputs", STRUCTURED_OUTPUTS).items()
    field = f"structured_outputs.{name}"
    if name == "json":
        return schema_grammar(_parsed(wanted, field), field)
    if name == "choice":
        return Grammar(kind="choice", choices=tuple(wanted), field=field)
    return Grammar(kind=_KINDS[name], text=wanted, field=field)


def _parsed(schema: object, field: str) -> object:
    """A schema may come as an object or as its JSON text."""
    if not isinstance(schema, str):
        return schema
    try:
        return json.loads(schema)
    except (ValueError, RecursionError):
        raise wrong(field, "is not valid JSON") from None
