"""A value against a shape: the innermost place, and a JSON schema as the standard has it."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import jsonschema_rs
import pytest

from nested_bodies import CHAT, SCHEMA, TOOL, mutations
from octavo.errors import InvalidRequestError
from octavo.frontend.tools import CHAT_TOOLS, JSON_SCHEMA, choose_tools
from octavo.text.messages import read_messages
from octavo.text.shape_check import check_shape
from octavo.text.tool_formats import tool_format


def refusal(value: Any, shape: Any = JSON_SCHEMA) -> InvalidRequestError | None:
    try:
        check_shape(value, shape, "schema")
    except InvalidRequestError as error:
        return error
    return None


def test_a_schema_is_refused_where_the_standard_has_none() -> None:
    assert refusal(SCHEMA) is None
    count = 0
    for path, kind, changed in mutations(SCHEMA):
        valid = jsonschema_rs.meta.is_valid(changed)
        # What forerunners of the standard had.
        older = (path.endswith(".items") and kind.startswith("list")) or (
            path.endswith(".exclusiveMaximum") and kind == "boolean"
        )
        count += not valid
        assert (refusal(changed) is None) == (valid or older), (path, kind, changed)
    assert count > 100


def test_a_program_is_refused_as_a_client_is() -> None:
    """``LLM.chat`` reads by these, without a server before them."""
    for path, kind, changed in mutations({"messages": CHAT}):
        if kind == "unknown" and "parsed" not in path:
            with pytest.raises(InvalidRequestError) as caught:
                read_messages(changed["messages"])
            assert caught.value.param == path
    for path, kind, changed in mutations({"tools": [TOOL]}):
        if kind == "unknown" and "parameters" not in path:
            with pytest.raises(InvalidRequestError) as caught:
                choose_tools(changed["tools"], None, CHAT_TOOLS, family=tool_format(""))
            assert caught.value.param == path


class Ids(list[int]):
    """A list that a test may watch."""


def test_a_refused_value_is_held_by_nothing() -> None:
    """Many long prompts at once do not wait for the garbage collector."""
    ids = Ids([1] * 10 + [-1])
    lists = [{"type": "array", "items": {"type": "integer", "minimum": i}} for i in range(2)]
    watched = weakref.ref(ids)
    gc.disable()
    try:
        with pytest.raises(InvalidRequestError):
            check_shape(ids, {"anyOf": lists}, "prompt")
        del ids
        assert watched() is None
    finally:
        gc.enable()
