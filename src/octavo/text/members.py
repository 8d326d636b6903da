"""The members of a client's objects: how their names are shown, and how one is refused."""

from __future__ import annotations

from octavo.errors import InvalidRequestError


def shown_name(name: object) -> str:
    """A client's own name as it may appear in an error: short, printable ASCII."""
    short = str(name)[:64]
    if short.isascii() and short.isprintable():
        return short
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in short)


def wrong(place: str, why: str) -> InvalidRequestError:
    """The refusal of what stands at ``place``, which its words begin with."""
    return InvalidRequestError(f"{place} {why}", param=place)
