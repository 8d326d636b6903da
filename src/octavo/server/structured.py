"""``response_format`` and ``structured_outputs``: from a request's fields to one ``Grammar``."""

from __future__ import annotations

import json
from collections.abc import Mapping

from octavo.core.grammar import Grammar
from octavo.errors import InvalidRequestError
from octavo.server.typed_body import TypedBody
from octavo.text.members import refuse_others, wrong

_SCHEMA_KEYS = {"type", "name", "schema", "strict", "description"}
# What stands beside a format, and is read elsewhere or asks for nothing.
_BESIDE_FORMAT = {"text": {"verbosity"}, "output_config": {"effort"}}
_ANY_OBJECT = '{"type":"object"}'
# Name in structured_outputs → kind of grammar.
_KINDS = {"json": "json_schema", "regex": "regex", "choice": "choice", "grammar": "lark"}


def read_grammar(body: TypedBody) -> Grammar | None:
    """The grammar that a request asks for, if any.

    Raises:
        InvalidRequestError: naming the field: an unknown type or key, or two grammars at once.
    """
    by_format = _format(body.raw("response_format"), "response_format", inside="json_schema")
    for field in ("text", "output_config"):
        by_format = by_format or _flat_format(body.mapping(field), field)
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
    if not isinstance(schema, dict):
        raise wrong(field, "must be a JSON schema, an object")
    text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    return Grammar(kind="json_schema", text=text, field=field)


def _flat_format(value: Mapping[str, object], field: str) -> Grammar | None:
    """The newer protocols have the format beside other members."""
    refuse_others(value, {"format"} | _BESIDE_FORMAT[field], field)
    if value.get("verbosity") not in (None, "medium"):
        raise wrong(f"{field}.verbosity", "is not supported, but for medium")
    return _format(value.get("format"), f"{field}.format")


def _format(form: object, field: str, inside: str = "") -> Grammar | None:
    """A format, whose schema stands beside its type or in the object ``inside``."""
    if form is None:
        return None
    if not isinstance(form, dict):
        raise wrong(field, "must be an object")
    kind = form.get("type")
    known = ({"type", inside} if inside else _SCHEMA_KEYS) if kind == "json_schema" else {"type"}
    refuse_others(form, known, field)
    if kind == "text":
        return None
    if kind == "json_object":
        return Grammar(kind="json_schema", text=_ANY_OBJECT, field=field)
    if kind != "json_schema":
        raise wrong(f"{field}.type", "must be text, json_object or json_schema")
    if inside:
        form, field = form.get(inside), f"{field}.{inside}"
        if not isinstance(form, dict) or "schema" not in form:
            raise wrong(field, "must be an object with name and schema")
        refuse_others(form, _SCHEMA_KEYS - {"type"}, field)
    return schema_grammar(form.get("schema"), f"{field}.schema")


def _structured_outputs(body: TypedBody) -> Grammar | None:
    if body.raw("structured_outputs") is None:
        return None
    value = body.mapping("structured_outputs")
    refuse_others(value, _KINDS, "structured_outputs")
    if len(value) != 1:
        raise wrong("structured_outputs", f"takes exactly one of {', '.join(_KINDS)}")
    ((name, wanted),) = value.items()
    field = f"structured_outputs.{name}"
    if name == "json":
        return schema_grammar(_parsed(wanted, field), field)
    if name == "choice":
        if not isinstance(wanted, list) or not all(isinstance(item, str) for item in wanted):
            raise wrong(field, "must be a list of strings")
        return Grammar(kind="choice", choices=tuple(wanted), field=field)
    if not isinstance(wanted, str):
        raise wrong(field, "must be a string")
    return Grammar(kind=_KINDS[name], text=wanted, field=field)


def _parsed(schema: object, field: str) -> object:
    """A schema may come as an object or as its JSON text."""
    if not isinstance(schema, str):
        return schema
    try:
        return json.loads(schema)
    except (ValueError, RecursionError):
        raise wrong(field, "is not valid JSON") from None
