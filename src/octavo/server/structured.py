"""``response_format`` and ``structured_outputs``: from a request's fields to one ``Grammar``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from octavo.core.grammar import Grammar
from octavo.errors import InvalidRequestError
from octavo.frontend.tools import JSON_SCHEMA
from octavo.server.request_shapes import STRUCTURED_OUTPUTS
from octavo.server.typed_body import TypedBody
from octavo.text.members import wrong
from octavo.text.shape_check import check_shape
from octavo.text.shapes import OBJECT

_ANY_OBJECT = '{"type":"object"}'
# Name in structured_outputs → kind of grammar.
_KINDS = {"json": "json_schema", "regex": "regex", "choice": "choice", "grammar": "lark"}


def read_grammar(body: TypedBody) -> Grammar | None:
    """The grammar that a request asks for, if any.

    Raises:
        InvalidRequestError: naming the field: an unknown type or key, or two grammars at once.
    """
    by_format = _format(body.mapping("response_format"), "response_format")
    for field in ("text", "output_config"):
        form = body.mapping(field).get("format") or {}
        by_format = by_format or _format(form, f"{field}.format")
    by_name = _structured_outputs(body)
    if by_format is not None and by_name is not None:
        raise InvalidRequestError(
            "a format and structured_outputs both ask for a structure; send one of them",
            param="structured_outputs",
        )
    return by_format or by_name


def schema_grammar(schema: object, field: str) -> Grammar:
    """The grammar of a JSON schema; refusals name ``field``."""
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
    check_shape(body.raw("structured_outputs"), OBJECT, "structured_outputs")
    if len(body.mapping("structured_outputs")) != 1:
        raise wrong("structured_outputs", f"takes exactly one of {', '.join(_KINDS)}")
    check_shape(body.raw("structured_outputs"), STRUCTURED_OUTPUTS, "structured_outputs")
    ((name, wanted),) = body.mapping("structured_outputs").items()
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
        parsed = json.loads(schema)
    except (ValueError, RecursionError):
        raise wrong(field, "must be a JSON schema, or its text in valid JSON") from None
    check_shape(parsed, JSON_SCHEMA, field)
    return parsed
