"""Strict JSON: what is ambiguous or hostile is refused, with the reason, before it is built up."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from octavo.errors import InvalidRequestError
from octavo.text.members import shown_name

MAX_DEPTH = 32
MAX_STRUCTURE = 65_536
# Strings with no bracket between them: the parser builds a list or object of them in one go, in
# which no other thread runs.
MAX_RUN = 16_384

# The closing quote is optional: an open string must not be tried again from each quote inside it,
# which would take a time quadratic in its length.
_STRUCTURE = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)
_DEEPER = dict.fromkeys(b"[{", 1) | dict.fromkeys(b"]}", -1)
# The name of what begins behind it.
_NAME_BEFORE = re.compile(rb'"(\w{1,64})"\s{0,8}:\s{0,8}$')
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


def parse_json_object(body: bytes) -> dict[str, object]:
    """The one object that ``body`` holds.

    Raises:
        InvalidRequestError: not UTF-8, not JSON, no object, a duplicate key, NaN or an infinity,
            a number of absurd length, nesting past ``MAX_DEPTH``, more than ``MAX_STRUCTURE``
            strings and brackets or ``MAX_RUN`` strings in a row, a lone surrogate.
    """
    _check_structure(body)
    try:
        parsed, has_misfits = _read(body.decode("utf-8"))
    except UnicodeDecodeError:
        raise InvalidRequestError("the body is not valid UTF-8") from None
    except RecursionError:
        raise InvalidRequestError("the body is nested too deep") from None
    except json.JSONDecodeError as error:
        raise InvalidRequestError(
            f"the body is not valid JSON: {error.msg} at character {error.pos}"
        ) from None
    if not isinstance(parsed, dict):
        raise InvalidRequestError("the body must be a JSON object")
    if has_misfits or _SURROGATE_ESCAPE.search(body):
        _check_value(parsed, "")
    return parsed


@dataclass(frozen=True, slots=True)
class _Misfit:
    """Stands where a value was that JSON, or Python, does not know."""

    reason: str


def _read(text: str) -> tuple[object, bool]:
    """What ``text`` holds, and whether misfits stand in it."""
    misfits: list[_Misfit] = []

    def misfit(reason: str) -> _Misfit:
        misfits.append(_Misfit(reason))
        return misfits[-1]

    def constant(name: str) -> _Misfit:
        return misfit(f"{name} is not a JSON number")

    def integer(digits: str) -> int | _Misfit:
        try:
            return int(digits)
        except ValueError:
            return misfit("the body holds a number with too many digits")

    try:
        parsed = json.loads(
            text, object_pairs_hook=partial(_unique, misfit), parse_constant=constant
        )
    except json.JSONDecodeError:
        raise
    except ValueError:
        # A number that Python does not read: once more, to tell where it is.
        parsed = json.loads(text, parse_int=integer, parse_constant=constant)
    return parsed, bool(misfits)


def _unique(misfit: Callable[[str], _Misfit], pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        for key, count in Counter(key for key, _ in pairs).items():
            if count > 1:
                result[key] = misfit(f"duplicate key {_quoted(key)}")
    return result


def _check_structure(body: bytes) -> None:
    brackets = body.count(b"[") + body.count(b"{")
    if brackets <= MAX_DEPTH and body.count(b'"') <= MAX_RUN:
        # Whatever of them stands in strings, there cannot be too much: prompts are looked at once.
        return
    depth = run = opened = field = 0
    for count, match in enumerate(_STRUCTURE.finditer(body), 1):
        if count > MAX_STRUCTURE:
            raise InvalidRequestError(
                f"the body holds more than {MAX_STRUCTURE} values; send fewer",
                param=_name_before(body, field) if depth > 1 else None,
            )
        step = _DEEPER.get(body[match.start()])
        if step is None:
            run += 1
        else:
            run, depth, opened = 0, depth + step, match.start()
            if depth == 2 and step == 1:
                field = opened
        if run > MAX_RUN:
            raise InvalidRequestError(
                f"the body holds a list or object of more than {MAX_RUN} strings; send fewer",
                param=_name_before(body, opened),
            )
        if depth > MAX_DEPTH:
            raise InvalidRequestError(
                f"the body is nested too deep; the limit is {MAX_DEPTH} levels"
            )


def _name_before(body: bytes, at: int) -> str | None:
    """The name of the member whose value begins there, if it has a plain one."""
    named = _NAME_BEFORE.search(body[max(0, at - 82) : at])
    return named[1].decode("ascii", "replace") if named else None


def _check_value(value: object, where: str) -> None:
    """Refuse the first misfit or lone surrogate, by its place."""
    if isinstance(value, _Misfit):
        raise InvalidRequestError(value.reason, param=where or None)
    if isinstance(value, str):
        _check_surrogates(value, where)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check_value(item, f"{where}[{index}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            place = f"{where}.{shown_name(key)}" if where else shown_name(key)
            _check_surrogates(key, place)
            _check_value(item, place)


def _check_surrogates(text: str, where: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidRequestError("the body holds a lone surrogate escape", param=where) from None


def _quoted(key: str) -> str:
    return '"' + shown_name(key) + '"'
