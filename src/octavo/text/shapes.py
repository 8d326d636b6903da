"""A few words to write JSON schemas with: the types of request fields and of replies.

A shape is a JSON schema (2020-12) as a dictionary. What is published of a request's nested objects
is what they are held against (``shape_check``); ``ref`` names one of the shared components.
"""

from __future__ import annotations

from collections.abc import Mapping

Shape = dict[str, object]

ANY: Shape = {}
NULL: Shape = {"type": "null"}
BOOLEAN: Shape = {"type": "boolean"}
OBJECT: Shape = {"type": "object"}
# The value of a member that says nothing, whatever it is called: clients send members on as they
# got them, with null for what there is not.
NOTHING: Shape = {"enum": [None, []]}

# Shapes that are published, and may refer to themselves, by name.
COMPONENTS: dict[str, Shape] = {}
IGNORED = "ignored"


def integer(low: int | None = None, high: int | None = None) -> Shape:
    """An integer, within inclusive bounds."""
    return _bounded("integer", low, high)


def number(low: float | None = None, high: float | None = None) -> Shape:
    """A number, within inclusive bounds."""
    return _bounded("number", low, high)


def over(low: float, high: float | None = None) -> Shape:
    """A number greater than ``low``, up to ``high``."""
    return {**number(high=high), "exclusiveMinimum": low}


def text(
    low: int = 0, high: int | None = None, *, pattern: str = "", said: str = "a string"
) -> Shape:
    """A string of so many characters; ``said`` is what its ``pattern`` asks for."""
    shape: Shape = {"type": "string"}
    if low:
        shape["minLength"] = low
    if high is not None:
        shape["maxLength"] = high
    if pattern:
        shape |= {"pattern": pattern, "description": said}
    return shape


def word(*values: object) -> Shape:
    """One of these values."""
    return {"enum": list(values)}


def listing(items: Shape, low: int = 0, high: int | None = None) -> Shape:
    """A list of so many items."""
    shape: Shape = {"type": "array", "items": items}
    if low:
        shape["minItems"] = low
    if high is not None:
        shape["maxItems"] = high
    return shape


def record(
    needed: Mapping[str, Shape], more: Mapping[str, Shape] | None = None, *, others: object = False
) -> Shape:
    """An object with all of ``needed`` and perhaps, or as null, some of ``more``.

    ``others`` are other members.
    """
    perhaps = {name: optional(shape) for name, shape in (more or {}).items()}
    return {
        "type": "object",
        "properties": {**needed, **perhaps},
        "required": list(needed),
        "additionalProperties": others,
    }


def table(values: Shape, *, keys: Shape | None = None, high: int | None = None) -> Shape:
    """An object whose members are all alike."""
    shape: Shape = {"type": "object", "additionalProperties": values}
    if keys is not None:
        shape["propertyNames"] = keys
    if high is not None:
        shape["maxProperties"] = high
    return shape


def either(*shapes: Shape) -> Shape:
    """One or another."""
    return {"anyOf": list(shapes)}


def optional(shape: Shape) -> Shape:
    """A shape, or null."""
    if shape in (ANY, NULL):
        return shape
    if "enum" in shape:
        values = shape["enum"]
        assert isinstance(values, list), "an enumeration is a list"
        return shape if None in values else {**shape, "enum": [*values, None]}
    if isinstance(kind := shape.get("type"), str):
        return {**shape, "type": [kind, "null"]}
    return either(shape, NULL)


def ignored(shape: Shape) -> Shape:
    """A member whose type is held against ``shape``, and which else changes nothing."""
    return {**shape, "$comment": IGNORED}


def ref(name: str) -> Shape:
    """A shared component."""
    return {"$ref": f"#/components/schemas/{name}"}


def component(name: str, shape: Shape) -> Shape:
    """Share a shape; returns what refers to it."""
    COMPONENTS[name] = shape
    return ref(name)


def _bounded(kind: str, low: float | None, high: float | None) -> Shape:
    shape: Shape = {"type": kind}
    if low is not None:
        shape["minimum"] = low
    if high is not None:
        shape["maximum"] = high
    return shape
