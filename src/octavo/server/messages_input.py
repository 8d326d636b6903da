"""A Messages request's conversation: its blocks become messages as templates read them.

user        text, tool_result      → the user's texts, a tool's message per result
assistant   text, thinking, tool_use → one message with its reasoning and calls
system      text
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from octavo.errors import InvalidRequestError
from octavo.frontend.conversation import Conversation
from octavo.frontend.tools import MESSAGES_TOOLS
from octavo.server.conversation import read_tools
from octavo.server.prompts import MAX_MESSAGES
from octavo.server.reasoning_effort import effort_variables, read_effort
from octavo.server.typed_body import TypedBody, check_length
from octavo.text import ChatTemplate, Message
from octavo.text.members import refuse_others, wrong

ROLES = ("user", "assistant", "system")
# Changes with every request of some clients, and would part prompts that are otherwise the same.
BILLING_HEADER = "x-anthropic-billing-header"

Block = Mapping[str, Any]


def read_conversation(body: TypedBody, template: ChatTemplate) -> tuple[Conversation, list[str]]:
    """The conversation, and what of it was left out or ignored, by name.

    Raises:
        InvalidRequestError: naming the message or block and what is wrong with it.
    """
    dropped: list[str] = []
    found: list[Message] = []
    if text := _system(body.raw("system"), dropped):
        found.append({"role": "system", "content": text})
    entries = body.raw("messages")
    if not isinstance(entries, list) or not entries:
        raise wrong("messages", "must be a non-empty list")
    check_length(entries, "messages", MAX_MESSAGES)
    for i, entry in enumerate(entries):
        found += _messages(entry, f"messages[{i}]", dropped)
    if "tool_calls" in found[-1]:
        raise InvalidRequestError(
            "the last message calls tools; send their results after it", param="messages"
        )
    variables, ignored = effort_variables(read_effort(body), template)
    conversation = Conversation(
        messages=found,
        continue_final=found[-1]["role"] == "assistant",
        variables=variables,
        tools=read_tools(body, template.tool_format, MESSAGES_TOOLS),
    )
    return conversation, sorted({*dropped, *ignored})


def _system(system: object, dropped: list[str]) -> str:
    if system is None:
        return ""
    if isinstance(system, list):
        kept = [block for block in system if not _is_billing(block)]
        if len(kept) < len(system):
            dropped.append(f"system.{BILLING_HEADER}")
        return _texts(kept, "system", dropped) if kept else ""
    return _texts(system, "system", dropped)


def _is_billing(block: object) -> bool:
    text = block.get("text") if isinstance(block, Mapping) else None
    return isinstance(text, str) and text.startswith(BILLING_HEADER)


def _messages(entry: object, where: str, dropped: list[str]) -> list[Message]:
    if not isinstance(entry, Mapping):
        raise wrong(where, "must be an object")
    role = entry.get("role")
    if role not in ROLES:
        raise wrong(f"{where}.role", f"must be one of {', '.join(ROLES)}")
    refuse_others(entry, ("role", "content"), where)
    content, where = entry.get("content"), f"{where}.content"
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    found: list[Message] = []
    for i, block in enumerate(_list(content, where)):
        _add_block(found, role, _read_block(block, role, f"{where}[{i}]", dropped=dropped))
    for message in found:
        for key in ("content", "reasoning_content"):
            if isinstance(message.get(key), list):
                message[key] = "\n".join(message[key])
    return found


def _add_block(found: list[Message], role: str, part: Message) -> None:
    """A tool's result is a message of its own; all else joins the one of its role."""
    if "role" in part:
        found.append(part)
        return
    if not found or found[-1]["role"] != role:
        found.append({"role": role, "content": []})
    for key, value in part.items():
        found[-1].setdefault(key, []).append(value)


def _list(content: object, where: str) -> list[object]:
    if not isinstance(content, list) or not content:
        raise wrong(where, "must be a string or a non-empty list of blocks")
    return content


def _texts(content: object, where: str, dropped: list[str]) -> str:
    """A text, or text blocks joined by line ends."""
    if isinstance(content, str):
        return content
    blocks = _list(content, where)
    parts = [
        _read_block(b, "system", f"{where}[{i}]", dropped=dropped) for i, b in enumerate(blocks)
    ]
    return "\n".join(part["content"] for part in parts)


# -- blocks: each the part that it adds to its message, or a message ----------------------------


def _read_block(block: object, role: str, where: str, *, dropped: list[str]) -> Message:
    kind = block.get("type") if isinstance(block, Mapping) else None
    if not isinstance(block, Mapping) or not isinstance(kind, str) or kind not in _BLOCKS[role]:
        allowed = " or ".join(_BLOCKS[role])
        raise wrong(where, f"must be a block of type {allowed}")
    read, known = _BLOCKS[role][kind]
    refuse_others(block, known | {"cache_control"}, where, unless_empty=True)
    dropped += {"cache_control"} & block.keys()
    return read(block, where, dropped)


def _text(block: Block, where: str, _dropped: list[str]) -> Message:
    return {"content": _string(block, "text", where)}


def _thinking(block: Block, where: str, _dropped: list[str]) -> Message:
    return {"reasoning_content": _string(block, "thinking", where)}


def _tool_use(block: Block, where: str, _dropped: list[str]) -> Message:
    if not isinstance(block.get("input"), dict):
        raise wrong(f"{where}.input", "must be an object")
    function = {"name": _string(block, "name", where), "arguments": block["input"]}
    call = {"id": _string(block, "id", where), "type": "function", "function": function}
    return {"tool_calls": call}


def _tool_result(block: Block, where: str, dropped: list[str]) -> Message:
    content = block.get("content")
    text = "" if content in (None, []) else _texts(content, f"{where}.content", dropped)
    if TypedBody({f"{where}.is_error": block.get("is_error")}).boolean(f"{where}.is_error"):
        text = f"Error: {text}"
    return {
        "role": "tool",
        "tool_call_id": _string(block, "tool_use_id", where),
        "content": text,
    }


def _string(block: Block, key: str, where: str) -> str:
    value = block.get(key)
    if not isinstance(value, str):
        raise wrong(f"{where}.{key}", "must be a string")
    return value


_Reader = tuple[Callable[[Block, str, list[str]], Message], frozenset[str]]
_TEXT: Final[_Reader] = (_text, frozenset({"type", "text"}))
_BLOCKS: Final[dict[str, dict[str, _Reader]]] = {
    "system": {"text": _TEXT},
    "user": {
        "text": _TEXT,
        "tool_result": (
            _tool_result, frozenset({"type", "tool_use_id", "content", "is_error"})
        ),
    },
    "assistant": {
        "text": _TEXT,
        "thinking": (_thinking, frozenset({"type", "thinking", "signature"})),
        "tool_use": (_tool_use, frozenset({"type", "id", "name", "input", "caller"})),
    },
}  # fmt: skip
