"""Applying the field table to a body's names."""

from __future__ import annotations

from collections.abc import Mapping

from octavo.server.dialects import AsWrittenError
from octavo.server.endpoints import Endpoint
from octavo.server.fields import FIELDS, Field, Treatment
from octavo.text.members import shown_name

_BY_ENDPOINT = {
    endpoint: {field.name: field for field in FIELDS if endpoint in field.endpoints}
    for endpoint in Endpoint
}


def check_fields(body: Mapping[str, object], endpoint: Endpoint) -> list[str]:
    """Apply the table to a body's names. Returns the ignored fields that are present.

    Raises:
        InvalidRequestError: an unknown field, or a refused one that asks for something.
    """
    table = _BY_ENDPOINT[endpoint]
    ignored = []
    for name, value in body.items():
        field = table.get(name)
        if field is None:
            shown = shown_name(name)
            raise AsWrittenError(f'unknown field "{shown}"', param=shown)
        if field.treatment is Treatment.REFUSED and not _asks_nothing(field, value):
            raise AsWrittenError(f"{name} is refused: {field.note}", param=name)
        if field.treatment is Treatment.IGNORED:
            ignored.append(name)
    return ignored


def _asks_nothing(field: Field, value: object) -> bool:
    return value is None or any(
        type(value) is type(neutral) and value == neutral for neutral in field.neutral
    )
