"""Numbers have an end: a schema's open numbers get bounds before they are compiled.

A number without bounds is a loop of digits, which a small model may never leave. What a schema
leaves open is held to 15 digits before the point (a float64 tells all of those apart) and 9 behind
it, without an exponent. A schema's own bounds stay, whatever they are. What is written is always
valid by the schema as it was given.
"""

from __future__ import annotations

import math
from typing import Any

LARGEST = 10**15 - 1
STEP = 1e-9
# An interval as wide as this holds a multiple of ``STEP``.
_WIDE = 1e-6
# Members whose members are schemas by name, and those that hold plain data.
_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_DATA = frozenset({"const", "enum", "default", "examples"})


def bound_numbers(schema: Any) -> Any:  # noqa: ANN401 - any JSON
    """A copy of a JSON schema with bounds for its open numbers."""
    if isinstance(schema, list):
        return [bound_numbers(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: value if key in _DATA else _inside(key, value) for key, value in schema.items()}
    kinds = schema.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if "number" in kinds or "integer" in kinds:
        _bound(found, whole="number" not in kinds)
    return found


def _inside(key: str, value: Any) -> Any:  # noqa: ANN401 - any JSON
    if key in _MAPS and isinstance(value, dict):
        return {name: bound_numbers(part) for name, part in value.items()}
    return bound_numbers(value)


def _bound(schema: dict[str, Any], *, whole: bool) -> None:
    if {"const", "enum"} & schema.keys():
        return
    low = _own(schema, ("minimum", "exclusiveMinimum"), -math.inf)
    high = _own(schema, ("maximum", "exclusiveMaximum"), math.inf)
    if low is None or high is None:
        return
    if low == -math.inf and high >= -LARGEST:
        schema["minimum"] = -LARGEST
    if high == math.inf and low <= LARGEST:
        schema["maximum"] = LARGEST
    if not whole and "multipleOf" not in schema and high - low >= _WIDE:
        schema["multipleOf"] = STEP


def _own(schema: dict[str, Any], names: tuple[str, str], default: float) -> float | None:
    """The schema's own bound, or the default; None where it is no number."""
    values = [schema[key] for key in names if key in schema]
    if not all(type(value) in (int, float) for value in values):
        return None
    return float(values[0]) if values else default
