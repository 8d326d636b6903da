"""Applying the field table to a body: its names, and the types and limits of their values."""

from __future__ import annotations

from collections.abc import Mapping

from octavo.server.dialects import AsWrittenError
from octavo.server.endpoints import Endpoint
from octavo.server.fields import FIELDS, Field, Treatment
from octavo.server.request_shapes import CHAT_MESSAGES, STATE, STRUCTURED_OUTPUTS
from octavo.text.members import shown_name
from octavo.text.shape_check import check_shape, missing

_BY_ENDPOINT = {
    endpoint: {field.name: field for field in FIELDS if endpoint in field.endpoints}
    for endpoint in Endpoint
}
# What a program that has the model in itself gives too is held against its shape where both are
# read; so are objects of which the reader has more to say.
_READ_LATER = (CHAT_MESSAGES, STATE, STRUCTURED_OUTPUTS)
_READ_LATER_NAMES = ("tools", "tool_choice")


def check_fields(body: Mapping[str, object], endpoint: Endpoint) -> list[str]:
    """Apply the table to a body. Returns the ignored fields that are present.

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
    return ignored


def _is_read_later(field: Field) -> bool:
    return field.name in _READ_LATER_NAMES or any(field.shape is shape for shape in _READ_LATER)


def _asks_nothing(field: Field, value: object) -> bool:
    return value is None or any(
        type(value) is type(neutral) and value == neutral for neutral in field.neutral
    )
