"""Holding a client's value against a shape, with the place in it of whatever does not fit.

Only the words of ``shapes`` are understood. One refusal names the place, what may stand there, and
what stands there instead.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from octavo.errors import InvalidRequestError, shown_number
from octavo.text.members import shown_name, wrong
from octavo.text.shapes import COMPONENTS, NOTHING, Shape

# In this order: a boolean is no integer, a string no list.
_TYPES: Final = {
    "null": type(None), "boolean": bool, "integer": int, "number": float, "string": str,
    "array": Sequence, "object": Mapping,
}  # fmt: skip
# What a parsed body is made of; a program may give other kinds.
_OF_JSON: Final[dict[type, str]] = {
    type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string",
    list: "array", dict: "object",
}  # fmt: skip
_WORDS: Final = {
    "null": "null", "boolean": "true or false", "integer": "an integer", "number": "a number",
    "string": "a string", "array": "a list", "object": "an object",
}  # fmt: skip
# The members by which objects are told apart, the one that says most first.
_TELLING: Final = ("type", "role")


def check_shape(value: object, shape: Shape, where: str) -> None:
    """Hold ``value``, which stands at ``where``, against ``shape``.

    Raises:
        InvalidRequestError: naming the innermost place at which something does not fit.
    """
    found: Any = _resolved(shape)
    kind = _kind(value)
    if "anyOf" in found:
        _check_any(value, list(map(_resolved, found["anyOf"])), where)
    elif (kind != found.get("type") and kind not in _kinds(found)) or (
        "enum" in found and not _is_among(value, found["enum"])
    ):
        raise wrong(where, f"must be {_told([found])}, not {_shown(value)}")
    elif kind == "object":
        assert isinstance(value, Mapping), "that is its kind"
        _check_members(value, found, where)
    elif kind == "array":
        assert isinstance(value, Sequence), "that is its kind"
        _check_count(len(value), found, ("minItems", "maxItems", "entries"), where=where)
        _check_items(value, found.get("items", {}), where)
    elif isinstance(value, str):
        _check_count(len(value), found, ("minLength", "maxLength", "characters"), where=where)
        if "pattern" in found and not re.fullmatch(found["pattern"], value):
            raise wrong(where, f"must be {found['description']}")
    elif kind in ("integer", "number"):
        assert isinstance(value, int | float), "that is its kind"
        _check_bounds(value, found, where)


def missing(where: str, shape: Shape) -> InvalidRequestError:
    """The refusal of an object that lacks what should stand at ``where``."""
    return wrong(where, f"must be {_told([_resolved(shape)])}, and is missing")


def _check_items(value: Sequence[object], items: Shape, where: str) -> None:
    # Token ids are many, and most need no more than a look.
    are_ids = items.get("type") == "integer" and "maximum" not in items
    least: Any = items.get("minimum", -math.inf)
    for i, item in enumerate(value if items else ()):
        if not (are_ids and type(item) is int and item >= least):
            check_shape(item, items, f"{where}[{i}]")


def _check_members(value: Mapping[str, object], shape: Mapping[str, Any], where: str) -> None:
    """What tells the object from others first, and last what it lacks."""
    known, others = shape.get("properties", {}), shape.get("additionalProperties", True)
    keys = shape.get("propertyNames")
    _check_count(len(value), shape, ("minProperties", "maxProperties", "members"), where=where)
    for name in sorted(value, key=lambda name: name not in _TELLING):
        place, held = f"{where}.{shown_name(name)}", value[name]
        if keys and not re.fullmatch(keys["pattern"], name):
            raise wrong(place, f"must be named by {keys['description']}")
        if name in known:
            check_shape(held, known[name], place)
        elif others is False or (others is NOTHING and held not in (None, [])):
            told = ", ".join(sorted(known))
            raise wrong(place, f"is not supported; known here are {told}")
        elif isinstance(others, dict) and others is not NOTHING:
            check_shape(held, others, place)
    for name in shape.get("required", ()):
        if name not in value:
            raise missing(f"{where}.{name}", known[name])


def _check_count(
    count: int, shape: Mapping[str, Any], words: tuple[str, str, str], *, where: str
) -> None:
    least, most, things = words
    low, high = shape.get(least, 0), shape.get(most, math.inf)
    if count > high:
        raise wrong(where, f"has {count} {things}; the limit is {high}")
    if count < low:
        raise wrong(where, f"must have at least {low} {things}" if count else "must not be empty")


def _check_bounds(value: float, shape: Mapping[str, Any], where: str) -> None:
    least, beyond = shape.get("minimum", -math.inf), shape.get("exclusiveMinimum", -math.inf)
    most = shape.get("maximum", math.inf)
    if least <= value <= most and (value > beyond or beyond == -math.inf):
        return
    bound = f"over {beyond}" if beyond > -math.inf else f"at least {least}"
    if most < math.inf:
        bound = f"{bound}, up to {most}" if beyond > -math.inf else f"between {least} and {most}"
    raise wrong(where, f"must be {bound}, not {shown_number(value)}")


def _check_any(value: object, shapes: Sequence[Shape], where: str) -> None:
    """Of the shapes of the value's kind, the one that it comes closest to says what is wrong."""
    kind = _kind(value)
    close: Sequence[Shape] = [shape for shape in shapes if kind in _kinds(shape)]
    if not close:
        raise wrong(where, f"must be {_told(shapes)}, not {_shown(value)}")
    if isinstance(value, Mapping):
        close = _closest(value, close, where)
    elif kind == "array" and value:
        assert isinstance(value, Sequence), "that is its kind"
        first = _kind(value[0])
        of_kind = [s for s in close if first in _kinds(_resolved(cast("Any", s).get("items", {})))]
        close = of_kind or close
    refusals = []
    for shape in close:
        try:
            return check_shape(value, shape, where)
        except InvalidRequestError as error:
            refusals.append(error)
    try:
        raise max(refusals, key=lambda error: len(re.findall(r"[.[]", error.param or "")))
    finally:
        refusals.clear()  # each holds this frame, which would keep the value until a collection


def _closest(value: Mapping[str, object], shapes: Sequence[Any], where: str) -> Sequence[Shape]:
    """Those whose telling members, and then whose required ones, are the value's."""
    for key in _TELLING:
        words = {i: shape.get("properties", {}).get(key, {}).get("enum")
                 for i, shape in enumerate(shapes)}  # fmt: skip
        found = [s for i, s in enumerate(shapes) if _is_among(value.get(key), words[i])]
        if not found:
            all_words = [word for some in words.values() for word in some]
            check_shape(value.get(key), {"enum": list(dict.fromkeys(all_words))}, f"{where}.{key}")
        shapes = found
    return [
        shape
        for shape in shapes
        if all(
            _kind(value.get(name)) in _kinds(_resolved(shape["properties"][name]))
            for name in shape.get("required", ())
        )
    ] or shapes


def _resolved(shape: Shape) -> Shape:
    name = shape.get("$ref")
    return COMPONENTS[name.rpartition("/")[2]] if isinstance(name, str) else shape


def _kind(value: object) -> str:
    known = _OF_JSON.get(type(value))
    return known or next((name for name, kind in _TYPES.items() if isinstance(value, kind)), "")


def _kinds(shape: Mapping[str, Any]) -> set[str]:
    if "anyOf" in shape:
        return {kind for one in shape["anyOf"] for kind in _kinds(_resolved(one))}
    if "enum" in shape:
        return set(map(_kind, shape["enum"]))
    named = shape.get("type", list(_TYPES))
    found = {named} if isinstance(named, str) else set(named)
    return found | {"integer"} if "number" in found else found


def _is_among(value: object, words: Sequence[object] | None) -> bool:
    return words is None or any(type(value) is type(word) and value == word for word in words)


def _told(shapes: Sequence[Mapping[str, Any]]) -> str:
    """What may stand there, in words; null only where nothing else may."""
    words, found = list[str](), list[str]()
    for shape in _flat(shapes):
        kinds = _kinds(shape)
        if "enum" in shape:
            named = [word for word in shape["enum"] if word not in (None, [])]
            words += [word if isinstance(word, str) else json.dumps(word) for word in named]
            kinds = set() if named else kinds
        if "pattern" in shape:
            found.append(shape["description"])
            kinds -= {"string"}
        kinds -= {"integer"} if "number" in kinds else set()
        found += [word for kind, word in _WORDS.items() if kind in kinds]
    if words:
        listed = ", ".join(dict.fromkeys(words))
        found.insert(0, f"one of {listed}" if len(set(words)) > 1 else listed)
    told = [word for word in dict.fromkeys(found) if word != "null"]
    return " or ".join(told) or "null"


def _flat(shapes: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [
        inner
        for shape in shapes
        for inner in (_flat(list(map(_resolved, shape["anyOf"]))) if "anyOf" in shape else [shape])
    ]


def _shown(value: object) -> str:
    """What stands there, by its kind; short words are shown."""
    short = isinstance(value, str) and len(value) <= 64
    return f'"{shown_name(value)}"' if short else _WORDS.get(_kind(value), "that")
