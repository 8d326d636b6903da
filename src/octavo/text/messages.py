"""Conversations as clients write them, checked and brought into the shape that templates read.

{"role": "user", "content": "…"}                 content a text, or text parts
{"role": "assistant", "content": …, "tool_calls": [{"id", "type", "function": {"name",
    "arguments"}}]}                              arguments a JSON text
{"role": "assistant", "content": …, "reasoning_content": "…"}
{"role": "tool", "tool_call_id": "…", "content": "…"}
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from octavo.text.members import wrong
from octavo.text.shape_check import check_shape
from octavo.text.shapes import (
    ANY,
    NOTHING,
    NULL,
    Shape,
    component,
    either,
    ignored,
    integer,
    listing,
    record,
    text,
    word,
)

# What a client may call a role → what templates call it.
ROLES: Final = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
MAX_CALLS: Final = 128
MAX_NAME_CHARS: Final = 256

Message = dict[str, Any]

_CONTENT: Final = either(text(), listing(record({"type": word("text"), "text": text()}), 1))
NAME: Final = text(1, MAX_NAME_CHARS)
# A client's library may add the arguments as it read them, and a stream's index.
_CALLS: Final = listing(
    record(
        {
            "id": NAME,
            "function": record(
                {"name": NAME, "arguments": text()}, {"parsed_arguments": ignored(ANY)},
                others=NOTHING,
            ),
        }, {"type": word("function"), "index": ignored(integer(0))}, others=NOTHING,
    ), 1, MAX_CALLS,
)  # fmt: skip
# The content as a client's library read it.
_OF_ASSISTANT: dict[str, Shape] = {"reasoning_content": text(), "parsed": ignored(ANY)}
CHAT_MESSAGE: Final = component(
    "ChatMessage",
    either(
        record(
            {"role": word("system", "developer", "user"), "content": _CONTENT},
            {"tool_calls": NULL}, others=NOTHING,
        ),
        record(
            {"role": word("assistant"), "content": _CONTENT},
            {"tool_calls": _CALLS, **_OF_ASSISTANT}, others=NOTHING,
        ),
        record(
            {"role": word("assistant"), "tool_calls": _CALLS},
            {"content": either(_CONTENT, NOTHING), **_OF_ASSISTANT}, others=NOTHING,
        ),
        record(
            {"role": word("tool"), "tool_call_id": NAME, "content": _CONTENT},
            {"name": NAME, "tool_calls": NULL}, others=NOTHING,
        ),
    ),
)  # fmt: skip


class CallIds:
    """The ids of a conversation's calls so far, each of which may have one result."""

    def __init__(self) -> None:
        self._open: set[str] = set()

    def called(self, call_id: str, where: str) -> None:
        """A call is made.

        Raises:
            InvalidRequestError: its result could not be told from another call's.
        """
        if call_id in self._open:
            raise wrong(where, "is an earlier call's, which has no result yet; use another id")
        self._open.add(call_id)

    def answered(self, call_id: str, where: str) -> None:
        """A call's result is told.

        Raises:
            InvalidRequestError: there is no such call, or it has its result.
        """
        if call_id not in self._open:
            why = "is no earlier call's, or of one that has its result; send it behind its call"
            raise wrong(where, why)
        self._open.remove(call_id)


def read_messages(messages: object) -> list[Message]:
    """A conversation as templates take it: {"role", "content"} and what belongs to tools.

    ``messages`` is a non-empty list of {"role", "content"}. A role is one of ``ROLES``; a content
    is a text, or a non-empty list of {"type": "text", "text"} parts, which are joined by a line
    end. An assistant's message may carry ``tool_calls`` and then needs no content; a tool's names
    an earlier call. Other keys of a message (``name`` …) are refused unless null or empty.

    Raises:
        InvalidRequestError: naming the message and what is wrong with it.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise wrong("messages", "must be a non-empty list")
    ids = CallIds()
    return [_normal_message(message, f"messages[{i}]", ids) for i, message in enumerate(messages)]


def texts_of(value: object) -> list[str]:
    """Every text in a message, or in anything made of lists and objects."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [text for item in [*value, *value.values()] for text in texts_of(item)]
    if isinstance(value, list):
        return [text for item in value for text in texts_of(item)]
    return []


def _normal_message(message: Any, where: str, ids: CallIds) -> Message:  # noqa: ANN401
    if isinstance(message, Mapping) and message.get("role") == "function":
        raise wrong(
            f"{where}.role", "is function, which tool has replaced; send tool and tool_call_id"
        )
    check_shape(message, CHAT_MESSAGE, where)
    normal: Message = {"role": ROLES[message["role"]]}
    for key in ("tool_call_id", "name", "reasoning_content"):
        if message.get(key) not in (None, []):
            normal[key] = message[key]
    if "tool_call_id" in normal:
        ids.answered(normal["tool_call_id"], f"{where}.tool_call_id")
    if calls := message.get("tool_calls"):
        normal["tool_calls"] = [
            _call(call, f"{where}.tool_calls[{i}]", ids) for i, call in enumerate(calls)
        ]
    normal["content"] = text_of(message.get("content"))
    return normal


def _call(call: Mapping[str, Any], where: str, ids: CallIds) -> Message:
    ids.called(call["id"], f"{where}.id")
    function = {key: call["function"][key] for key in ("name", "arguments")}
    check_arguments(function["arguments"], f"{where}.function.arguments")
    return {"id": call["id"], "type": "function", "function": function}


def check_arguments(arguments: str, where: str) -> None:
    """Hold the text of a call's arguments against what templates take.

    Raises:
        InvalidRequestError: it is no JSON object.
    """
    if json_object(arguments) is None:
        raise wrong(where, "must be a JSON object as a string")


def with_objects(message: Message) -> Message:
    """A message as templates read it: the arguments of its calls as objects."""
    calls = [
        {**call, "function": {**call["function"], "arguments": json.loads(found)}}
        for call in message.get("tool_calls", ())
        for found in (call["function"]["arguments"],)
    ]
    return {**message, **({"tool_calls": calls} if calls else {})}


def text_of(content: str | Sequence[Mapping[str, str]] | None) -> str:
    """A text, or the texts of parts joined by a line end."""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content or ())


def json_object(text: str) -> dict[str, Any] | None:
    """A JSON object; None where the text is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
