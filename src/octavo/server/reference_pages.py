"""``python -m octavo.server.reference_pages docs``: the pages that are generated from tables."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from octavo.server.fields import FIELDS, Field, Treatment, ignored_places
from octavo.server.limits import PER_REQUEST, RESOURCES, Limit
from octavo.server.replies import encode_json
from octavo.text.shapes import Shape

_COMMAND = "python -m octavo.server.reference_pages docs"

_FIELDS = f"""# Request fields

Generated from the table in `octavo/server/fields.py`, which is what the server goes by:
`{_COMMAND}`.

`GET /openapi.json` has the same table, with every detail, as an OpenAPI 3.1 document.

A field that is not here is refused by name, and so is a refused one, unless its value asks for
nothing: `null`, or one of those named. Ignored fields cannot change the text; a response names
those that it ignored in the header `x-octavo-ignored`.
"""

_LIMITS = f"""# Limits

Generated from the table in `octavo/server/limits.py`: `{_COMMAND}`.

Everything that can grow has a bound; what lies beyond it is refused or waits, and says so.

## Shared by all requests

`/metrics` shows `octavo_limit{{resource="…"}}` and `octavo_limit_used{{resource="…"}}` for each.
"""

_PER_REQUEST = """
## Of one request or connection
"""


_INSIDE = """
## Ignored inside a field

Their types are checked, and the header `x-octavo-ignored` names those that were sent, as they are
written here. A member that is `null` or an empty list says nothing: in messages, blocks and items
it is ignored, whatever it is called, and not named.

"""


def pages() -> dict[str, str]:
    """File name → text."""
    return {"fields.md": _fields_page(), "limits.md": _limits_page()}


def _fields_page() -> str:
    parts = [_FIELDS]
    for treatment in Treatment:
        rows = [
            (f"`{field.name}`", ", ".join(sorted(field.endpoints)), *_told(field, treatment))
            for field in FIELDS
            if field.treatment is treatment
        ]
        parts.append(f"\n## {treatment.value.capitalize()}\n\n")
        if treatment is Treatment.REFUSED:
            parts.append(_table(("field", "endpoints", "asks for nothing", "why"), rows))
        else:
            parts.append(_table(("field", "endpoints", "value", ""), rows))
    inside = [
        (f"`{place}`", ", ".join(sorted(field.endpoints)))
        for field in FIELDS
        for place in dict.fromkeys(ignored_places(field.shape, field.name))
    ]
    return "".join([*parts, _INSIDE, _table(("member", "endpoints"), inside)])


def _told(field: Field, treatment: Treatment) -> tuple[str, str]:
    if treatment is Treatment.REFUSED:
        return ", ".join(map(_code, field.neutral)), field.note
    return shown_shape(field.shape), field.note


def shown_shape(shape: Shape) -> str:
    """A schema in a few words; the document at ``/openapi.json`` has it whole."""
    match shape:
        case {"enum": list(values)}:
            return ", ".join(map(_code, values))
        case {"anyOf": list(kinds)}:
            return " or ".join(dict.fromkeys(map(shown_shape, kinds)))
        case {"type": "boolean"}:
            return "true or false"
        case {"type": "integer" | "number" | "array" as kind}:
            return _WORDS[kind] + _bounds(shape)
        case {"type": "object" | "string" as kind}:
            return _WORDS[kind]
    return "any"


_WORDS = {"integer": "integer", "number": "number", "array": "list", "object": "object",
          "string": "text"}  # fmt: skip


def _bounds(shape: Shape) -> str:
    words = {"exclusiveMinimum": "over", "minimum": "≥", "maximum": "≤", "maxItems": "of at most"}
    found = [f"{word} {shape[key]:,}" for key, word in words.items() if key in shape]
    return " " + ", ".join(found) if found else ""


def _code(value: object) -> str:
    return f"`{encode_json(value).decode()}`"


def _limits_page() -> str:
    heads = ("limit", "value", "beyond it", "option")
    shared = _table(("resource", *heads[1:]), [_limit_row(limit, "`") for limit in RESOURCES])
    single = _table(heads, [_limit_row(limit, "") for limit in PER_REQUEST])
    return f"{_LIMITS}\n{shared}{_PER_REQUEST}\n{single}"


def _limit_row(limit: Limit, quote: str) -> tuple[str, ...]:
    value = limit.value if isinstance(limit.value, str) else f"{limit.value:,.0f}"
    shown = f"{value} {limit.unit}".strip() if isinstance(limit.value, float | int) else value
    option = f"`{limit.option}`" if limit.option else ""
    return f"{quote}{limit.name}{quote}", shown, limit.beyond, option


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def main(folder: str) -> None:
    """Write the pages into a folder."""
    for name, text in pages().items():
        (Path(folder) / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
