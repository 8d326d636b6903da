"""The members of a client's objects: how their names are shown, and how one is refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from octavo.errors import InvalidRequestError


def shown_name(name: object) -> str:
    """A client's own name as it may appear in an error: short, printable ASCII."""
    return "".join(c if c.isascii() and c.isprintable() else "?" for c in str(name)[:64])


def wrong(place: str, why: str) -> InvalidRequestError:
    """The refusal of what stands at ``place``, which its words begin with."""
    return InvalidRequestError(f"{place} {why}", param=place)


def refuse_others(
    value: Mapping[str, object], known: Collection[str], where: str, *, unless_empty: bool = False
) -> None:
    """Hold an object's members against the names that are read there.

    ``unless_empty``: one that is null or an empty list says nothing, and passes.

    Raises:
        InvalidRequestError: naming the first of another name, and the known ones.
    """
    for name, held in value.items():
        if name in known or (unless_empty and held in (None, [])):
            continue
        told = ", ".join(sorted(known))
        raise wrong(f"{where}.{shown_name(name)}", f"is not supported; known here are {told}")
