"""Applying the field table to a body: its names, and the types and limits of their values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from octavo.server.dialects import AsWrittenError
from octavo.server.endpoints import Endpoint
from octavo.server.fields import FIELDS, Field, Treatment, ignored_places
from octavo.server.request_shapes import CHAT_MESSAGES, STATE, STRUCTURED_OUTPUTS
from octavo.text.members import shown_name
from octavo.text.shape_check import check_shape, missing

_BY_ENDPOINT = {
    endpoint: {field.name: field for field in FIELDS if endpoint in field.endpoints}
    for endpoint in Endpoint
}
# Per field at an endpoint: the steps to each member that is ignored in it, "[]" into a list.
_IGNORED_INSIDE = {
    (endpoint, field.name): [
        (place, re.findall(r"\[\]|\w+", place)[1:])
        for place in dict.fromkeys(ignored_places(field.shape, field.name))
    ]
    for field in FIELDS
    for endpoint in field.endpoints
}
# What a program that has the model in itself gives too is held against its shape where both are
# read; so are objects of which the reader has more to say.
_READ_LATER = (CHAT_MESSAGES, STATE, STRUCTURED_OUTPUTS)
_READ_LATER_NAMES = ("tools", "tool_choice")


def check_fields(body: Mapping[str, object], endpoint: Endpoint) -> list[str]:
    """Apply the table to a body. Returns the names of ignored fields, and of members ignored inside
    fields, that were sent.

    Raises:
        InvalidRequestError: an unknown field, a refused one that asks for something, a value that
            does not fit its field's shape, or that a required field is missing.
    """
    table = _BY_ENDPOINT[endpoint]
    ignored = []
    for name, value in body.items():
        field = table.get(name)
        if field is None:
            shown = shown_name(name)
            raise AsWrittenError(f'unknown field "{shown}"; leave it out', param=shown)
        if field.treatment is Treatment.REFUSED and not _asks_nothing(field, value):
            remedy = "" if field.note.startswith("use ") else "; leave it out"
            raise AsWrittenError(f"{name} is refused: {field.note}{remedy}", param=name)
        if field.treatment is Treatment.IGNORED:
            ignored.append(name)
        if (value is not None or endpoint in field.required) and not _is_read_later(field):
            check_shape(value, field.shape, name)
    for name, field in table.items():
        if endpoint in field.required and name not in body:
            raise missing(name, field.shape)
    for name, value in body.items():
        places = _IGNORED_INSIDE[endpoint, name]
        ignored += [place for place, steps in places if _is_sent(value, steps)]
    return ignored


def _is_sent(value: object, steps: Sequence[str]) -> bool:
    """Whether something stands there, in one item of each list at least."""
    if not steps:
        return value is not None
    if steps[0] == "[]":
        return isinstance(value, list) and any(_is_sent(item, steps[1:]) for item in value)
    return isinstance(value, dict) and _is_sent(value.get(steps[0]), steps[1:])


def _is_read_later(field: Field) -> bool:
    return field.name in _READ_LATER_NAMES or any(field.shape is shape for shape in _READ_LATER)


def _asks_nothing(field: Field, value: object) -> bool:
    return value is None or any(
        type(value) is type(neutral) and value == neutral for neutral in field.neutral
    )
