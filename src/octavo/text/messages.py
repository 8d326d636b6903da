"""Conversations as clients write them, checked and brought into the shape that templates read.

{"role": "user", "content": "…"}                 content a text, or text parts
{"role": "assistant", "content": …, "tool_calls": [{"id", "type", "function": {"name",
    "arguments"}}]}                              arguments a JSON text or object, here an object
{"role": "assistant", "content": …, "reasoning_content": "…"}
{"role": "tool", "tool_call_id": "…", "content": "…"}
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from octavo.text.members import refuse_others, shown_name, wrong

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
# Beside role and content.
_KEYS: Final = {"assistant": ("tool_calls", "reasoning_content"), "tool": ("tool_call_id", "name")}

Message = dict[str, Any]


def read_messages(messages: object) -> list[Message]:
    """A conversation as templates take it: {"role", "content"} and what belongs to tools.

    ``messages`` is a non-empty list of {"role", "content"}. A role is one of ``ROLES``; a content
    is a text, or a non-empty list of {"type": "text", "text"} parts, which are joined by a line
    end. An assistant's message may carry ``tool_calls`` and then needs no content; a tool's names
    its call. Other keys of a message (``name`` …) are refused unless null or empty.

    Raises:
        InvalidRequestError: naming the message and what is wrong with it.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise wrong("messages", "must be a non-empty list")
    return [_normal_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def texts_of(value: object) -> list[str]:
    """Every text in a message, or in anything made of lists and objects."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [text for item in [*value, *value.values()] for text in texts_of(item)]
    if isinstance(value, list):
        return [text for item in value for text in texts_of(item)]
    return []


def _normal_message(message: object, where: str) -> Message:
    if not isinstance(message, Mapping):
        raise wrong(where, "must be an object")
    role = message.get("role")
    if role == "function":
        raise wrong(
            f"{where}.role", "is function, which tool has replaced; send tool and tool_call_id"
        )
    if not isinstance(role, str) or role not in ROLES:
        raise wrong(f"{where}.role", f"must be one of {', '.join(ROLES)}")
    known = ("role", "content", *_KEYS.get(role, ()))
    for key, value in message.items():
        if key not in known and (value not in (None, []) or (key == "tool_calls" and value == [])):
            shown = f"{where}.{shown_name(key)}"
            raise wrong(shown, "is not supported here")
    normal: Message = {"role": ROLES[role]}
    if role == "tool":
        normal |= _names(message, where)
    thought = message.get("reasoning_content")
    if role == "assistant" and thought is not None:
        if not isinstance(thought, str):
            name = f"{where}.reasoning_content"
            raise wrong(name, "must be a string")
        normal["reasoning_content"] = thought
    calls = message.get("tool_calls")
    if calls is not None:
        normal["tool_calls"] = _calls(calls, f"{where}.tool_calls")
    content = message.get("content")
    may_be_empty = calls is not None and content in (None, [])
    normal["content"] = "" if may_be_empty else text_of(content, f"{where}.content")
    return normal


def _names(message: Mapping[str, object], where: str) -> Message:
    found = {"tool_call_id": _name(message.get("tool_call_id"), f"{where}.tool_call_id")}
    if message.get("name") is not None:
        found["name"] = _name(message.get("name"), f"{where}.name")
    return found


def _calls(calls: object, where: str) -> list[Message]:
    if not isinstance(calls, list) or not 1 <= len(calls) <= MAX_CALLS:
        raise wrong(where, f"must be a list of 1 to {MAX_CALLS} calls, or be left out")
    return [_call(call, f"{where}[{i}]") for i, call in enumerate(calls)]


def _call(call: object, where: str) -> Message:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping):
        raise wrong(where, "must be a call with a function")
    if call.get("type", "function") != "function":
        raise wrong(f"{where}.type", "must be function")
    return {
        "id": _name(call.get("id"), f"{where}.id"),
        "type": "function",
        "function": {
            "name": _name(function.get("name"), f"{where}.function.name"),
            "arguments": _arguments(function.get("arguments"), f"{where}.function.arguments"),
        },
    }


def _arguments(text: object, where: str) -> Message:
    try:
        value = json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise wrong(where, "must be a JSON object, best as a string")
    return value


def _name(value: object, where: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME_CHARS:
        raise wrong(where, f"must be a string of 1 to {MAX_NAME_CHARS} characters")
    return value


def text_of(
    content: object,
    where: str,
    *,
    kinds: Collection[str] = ("text",),
    labels: Collection[str] = (),
) -> str:
    """A text, or text parts joined by a line end.

    ``kinds`` are the types of a part. Beside its text it may have ``labels``; where there are some,
    also other members that are empty.

    Raises:
        InvalidRequestError: naming the part and what is wrong with it.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise wrong(where, "must be a text or a non-empty list of text parts")
    found = []
    for place, part in ((f"{where}[{i}]", part) for i, part in enumerate(content)):
        if not isinstance(part, Mapping) or part.get("type") not in kinds:
            raise wrong(place, "must be a text part; only text is read")
        text = part.get("text")
        if not isinstance(text, str):
            raise wrong(f"{place}.text", "must be a string")
        refuse_others(part, {"type", "text", *labels}, place, unless_empty=bool(labels))
        found.append(text)
    return "\n".join(found)
