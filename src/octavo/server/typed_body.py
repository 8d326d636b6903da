"""Reading the fields of a JSON object that ``check_fields`` has held against their shapes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from octavo.text.members import wrong


class TypedBody:
    """A checked body; ``null`` means absent. A reader's caller knows the type of its field."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def raw(self, name: str) -> Any:  # noqa: ANN401 - of the field's shape
        """The value as parsed, None when absent."""
        return self._values.get(name)

    def boolean(self, name: str) -> bool:
        """True or false; absent is false."""
        return self.raw(name) is True

    def boolean_or(self, name: str, default: bool) -> bool:
        """True or false, or the default when absent."""
        return default if self.raw(name) is None else self.boolean(name)

    def integer(self, name: str) -> int | None:
        """An integer.

        Raises:
            InvalidRequestError: it is longer than 64 bits.
        """
        value: int | None = self.raw(name)
        if value is not None and not -(1 << 63) <= value < 1 << 63:
            raise wrong(name, "must be an integer of at most 64 bits")
        return value

    def number(self, name: str) -> float | None:
        """A finite number as a float.

        Raises:
            InvalidRequestError: it is longer than that.
        """
        value = self.raw(name)
        return None if value is None else finite_number(value, name)

    def string(self, name: str) -> str | None:
        """A string."""
        value: str | None = self.raw(name)
        return value

    def integers(self, name: str) -> tuple[int, ...]:
        """A list of integers; absent is empty."""
        return tuple(self.raw(name) or ())

    def strings(self, name: str) -> tuple[str, ...]:
        """A string or a list of strings; absent is empty."""
        value = self.raw(name)
        return (value,) if isinstance(value, str) else tuple(value or ())

    def mapping(self, name: str) -> dict[str, Any]:
        """An object; absent is empty."""
        return self.raw(name) or {}


def check_length(value: object, name: str, at_most: int) -> None:
    """Refuse a list or an object that is too long.

    Raises:
        InvalidRequestError: naming the field ``name`` and the limit.
    """
    if isinstance(value, list | dict) and len(value) > at_most:
        raise wrong(name, f"has {len(value)} entries; the limit is {at_most}")


def finite_number(value: float, name: str) -> float:
    """A JSON number as a float.

    Raises:
        InvalidRequestError: it does not fit a float.
    """
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise wrong(name, "must be a finite number, below 1.8e308 without its sign")
    return number
