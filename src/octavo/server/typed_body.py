"""Typed reading of a JSON object's fields: strict types, ``null`` means absent, errors name it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

from octavo.text.members import wrong
from octavo.text.shape_check import check_shape
from octavo.text.shapes import Shape


class TypedBody:
    """A parsed body. Every reader raises ``InvalidRequestError`` naming the field."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = values

    def raw(self, name: str) -> object:
        """The value as parsed, None when absent."""
        return self._values.get(name)

    def boolean(self, name: str) -> bool:
        """True or false; absent is false."""
        value = self.raw(name)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise wrong(name, "must be true or false")
        return value

    def boolean_or(self, name: str, default: bool) -> bool:
        """True or false, or the default when absent."""
        return default if self.raw(name) is None else self.boolean(name)

    def integer(self, name: str) -> int | None:
        """An integer; a boolean or a fraction is none."""
        value = self.raw(name)
        if value is not None and not is_integer(value):
            fits = " that fits 64 bits" if type(value) is int else ""
            raise wrong(name, f"must be an integer{fits}")
        return value if isinstance(value, int) else None

    def number(self, name: str) -> float | None:
        """A finite number; a boolean or a string is none."""
        value = self.raw(name)
        if value is None:
            return None
        return finite_number(value, name)

    def string(self, name: str) -> str | None:
        """A string."""
        value = self.raw(name)
        if value is not None and not isinstance(value, str):
            raise wrong(name, "must be a string")
        return value

    def integers(self, name: str, *, at_most: int) -> tuple[int, ...]:
        """A list of integers; absent is empty. A longer one is refused before it is looked at."""
        value = self.raw(name)
        if value is None:
            return ()
        check_length(value, name, at_most)
        if not isinstance(value, list) or not all(is_integer(item) for item in value):
            raise wrong(name, "must be a list of integers")
        return tuple(value)

    def strings(self, name: str, *, at_most: int) -> tuple[str, ...]:
        """A string or a list of strings; absent is empty. A longer one is refused unseen."""
        value = self.raw(name)
        if value is None:
            return ()
        if isinstance(value, str):
            return (value,)
        check_length(value, name, at_most)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise wrong(name, "must be a string or a list of strings")
        return tuple(value)

    def shaped(self, name: str, shape: Shape) -> dict[str, Any]:
        """An object of a shape; absent is empty."""
        value = self.raw(name)
        if value is not None:
            check_shape(value, shape, name)
        return cast("dict[str, Any]", value or {})

    def mapping(self, name: str) -> dict[str, object]:
        """An object; absent is empty."""
        value = self.raw(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise wrong(name, "must be an object")
        return value


def check_length(value: object, name: str, at_most: int) -> None:
    """Refuse a list or an object that is too long.

    Raises:
        InvalidRequestError: naming the field ``name`` and the limit.
    """
    if isinstance(value, list | dict) and len(value) > at_most:
        raise wrong(name, f"has {len(value)} entries; the limit is {at_most}")


def is_integer(value: object) -> bool:
    """Whether a JSON value is an integer that fits 64 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and -(1 << 63) <= value < 1 << 63


def finite_number(value: object, name: str) -> float:
    """A JSON number as a float.

    Raises:
        InvalidRequestError: it is none, or does not fit a float.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise wrong(name, "must be a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise wrong(name, "must be a finite number")
    return number
