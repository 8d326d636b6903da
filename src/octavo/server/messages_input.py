"""A Messages request's conversation: its blocks become messages as templates read them.

user        text, tool_result      → the user's texts, a tool's message per result
assistant   text, thinking, tool_use → one message with its reasoning and calls
system      text
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from octavo.errors import InvalidRequestError
from octavo.frontend.conversation import Conversation
from octavo.frontend.tools import MESSAGES_TOOLS
from octavo.server.conversation import read_tools
from octavo.server.reasoning_effort import effort_variables, read_effort
from octavo.server.typed_body import TypedBody
from octavo.text import ChatTemplate, Message
from octavo.text.messages import CallIds, text_of

# Changes with every request of some clients, and would part prompts that are otherwise the same.
BILLING_HEADER = "x-anthropic-billing-header"

Block = Mapping[str, Any]


def read_conversation(body: TypedBody, template: ChatTemplate) -> tuple[Conversation, list[str]]:
    """The conversation, and what of it was left out or ignored, by name.

    Raises:
        InvalidRequestError: naming the message or block and what is wrong with it.
    """
    read = _Reading()
    text = read.system(body.raw("system"))
    found = [{"role": "system", "content": text}] if text else []
    for i, entry in enumerate(body.raw("messages")):
        found += read.messages(entry, f"messages[{i}].content")
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
    return conversation, sorted({*read.dropped, *ignored})


def _is_billing(block: Block) -> bool:
    return str(block["text"]).startswith(BILLING_HEADER)


class _Reading:
    """What is read of one body. ``dropped`` are the names of what was left out or ignored."""

    def __init__(self) -> None:
        self.dropped: set[str] = set()
        self._ids = CallIds()

    def system(self, system: Any) -> str:  # noqa: ANN401 - of its shape
        """The text for the system, without what changes from request to request."""
        kept = system or ""
        if isinstance(system, list):
            kept = [block for block in system if not _is_billing(block)]
            if len(kept) < len(system):
                self.dropped.add(f"system.{BILLING_HEADER}")
        return text_of(kept)

    def messages(self, entry: Mapping[str, Any], where: str) -> list[Message]:
        """An entry's messages, of which the content stands at ``where``."""
        role, content = entry["role"], entry["content"]
        if isinstance(content, str):
            return [{"role": role, "content": content}]
        found: list[Message] = []
        for i, block in enumerate(content):
            _add_block(found, role, self._block(block, f"{where}[{i}]"))
        for message in found:
            for key in ("content", "reasoning_content"):
                if isinstance(message.get(key), list):
                    message[key] = "\n".join(message[key])
        return found

    def _block(self, block: Block, where: str) -> Message:
        """The part that a block adds to its message, or a message."""
        if block["type"] == "text":
            return {"content": block["text"]}
        if block["type"] == "thinking":
            return {"reasoning_content": block["thinking"]}
        if block["type"] == "tool_use":
            self._ids.called(block["id"], f"{where}.id")
            function = {"name": block["name"], "arguments": json.dumps(block["input"])}
            return {"tool_calls": {"id": block["id"], "type": "function", "function": function}}
        self._ids.answered(block["tool_use_id"], f"{where}.tool_use_id")
        text = text_of(block.get("content"))
        if block.get("is_error"):
            text = f"Error: {text}"
        return {"role": "tool", "tool_call_id": block["tool_use_id"], "content": text}


def _add_block(found: list[Message], role: str, part: Message) -> None:
    """A tool's result is a message of its own; all else joins the one of its role."""
    if "role" in part:
        found.append(part)
        return
    if not found or found[-1]["role"] != role:
        found.append({"role": role, "content": []})
    for key, value in part.items():
        found[-1].setdefault(key, []).append(value)
