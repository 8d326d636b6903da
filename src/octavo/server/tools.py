"""``tools`` and ``tool_choice``: what a model is told of functions, and what binds its answer."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from octavo.core.grammar import Grammar
from octavo.errors import InvalidRequestError
from octavo.server.typed_body import TypedBody, shown_name
from octavo.text.tool_formats import MAX_PARALLEL_CALLS, Tool, ToolFormat
from octavo.text.tool_parser import Piece, ToolDelta, ToolParser

MAX_TOOLS = 128
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_KEYS = frozenset({"name", "description", "parameters", "strict"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """The functions of one request. ``grammar`` is set where the answer must be a call."""

    family: ToolFormat
    tools: Sequence[Tool]
    parallel: bool = True
    grammar: Grammar | None = None

    def parser(self) -> ToolParser:
        """A parser for one choice."""
        names = {tool["function"]["name"] for tool in self.tools}
        max_calls = MAX_PARALLEL_CALLS if self.parallel else 1
        return ToolParser(self.family, names, max_calls=max_calls)


def read_tools(body: TypedBody, family: ToolFormat) -> ToolUse | None:
    """What a chat request may call; None where it may call nothing.

    ``tool_choice`` none tells the model of no function; auto lets it choose; required, or a named
    function, binds the answer by a grammar.

    Raises:
        InvalidRequestError: naming the tool or choice and what is wrong with it.
    """
    tools = [_tool(tool, f"tools[{i}]") for i, tool in enumerate(_list(body.raw("tools")))]
    names = [tool["function"]["name"] for tool in tools]
    if len(set(names)) != len(names):
        raise InvalidRequestError("tools name a function twice", param="tools")
    parallel = body.boolean_or("parallel_tool_calls", True)
    choice = _choice(body.raw("tool_choice"), names)
    if choice == "none" or not tools:
        return None
    if any(body.raw(name) is not None for name in ("response_format", "structured_outputs")):
        raise InvalidRequestError(
            "tools cannot be combined with a structure of the answer; send tool_choice none, or "
            "leave one of them out",
            param="tools",
        )
    grammar = None
    if choice != "auto":
        chosen = [t["function"] for t in tools if choice in ("required", t["function"]["name"])]
        several = parallel and choice == "required"
        text = family.grammar(chosen, parallel=several)
        grammar = Grammar(kind="lark", text=text, field="tools")
    return ToolUse(family=family, tools=tools, parallel=parallel, grammar=grammar)


def _list(tools: object) -> list[object]:
    if tools is None:
        return []
    if not isinstance(tools, list):
        raise InvalidRequestError("tools must be a list", param="tools")
    if len(tools) > MAX_TOOLS:
        raise InvalidRequestError(
            f"tools has {len(tools)} entries; the limit is {MAX_TOOLS}", param="tools"
        )
    return tools


def _tool(tool: object, where: str) -> Tool:
    if not isinstance(tool, Mapping) or tool.get("type") != "function":
        raise InvalidRequestError(
            f"{where}.type must be function; other tools are not run here", param=f"{where}.type"
        )
    function = tool.get("function")
    where = f"{where}.function"
    if not isinstance(function, Mapping):
        raise InvalidRequestError(f"{where} must be an object", param=where)
    for key in function:
        if key not in _KEYS:
            shown = f"{where}.{shown_name(key)}"
            raise InvalidRequestError(f"{shown} is not supported", param=shown)
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequestError(
            f"{where}.name must have 1 to 64 letters, digits, _, . or -", param=f"{where}.name"
        )
    told: dict[str, object] = {"name": name}
    for key, kind in (("description", str), ("parameters", dict)):
        value = function.get(key)
        if value is not None:
            if not isinstance(value, kind):
                word = "a string" if kind is str else "a JSON schema, an object"
                raise InvalidRequestError(f"{where}.{key} must be {word}", param=f"{where}.{key}")
            told[key] = value
    return {"type": "function", "function": told}


def _choice(choice: object, names: Sequence[str]) -> str:
    """none, auto, required, or the name of the function that must be called."""
    if choice is None:
        return "auto" if names else "none"
    if choice in ("none", "auto"):
        return str(choice)
    if not names:
        raise InvalidRequestError("tool_choice needs tools", param="tool_choice")
    if choice == "required":
        return "required"
    function = choice.get("function") if isinstance(choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(choice, Mapping) or choice.get("type") != "function" or name is None:
        raise InvalidRequestError(
            "tool_choice must be none, auto, required or a function by name", param="tool_choice"
        )
    if name not in names:
        raise InvalidRequestError(
            "tool_choice names a function that tools lacks", param="tool_choice"
        )
    return str(name)


# -- what is answered ----------------------------------------------------------------------------


class ToolStream:
    """One choice's answer as the deltas of a chat: contents, and calls with their arguments."""

    def __init__(self, use: ToolUse) -> None:
        self._parser = use.parser()

    @property
    def has_calls(self) -> bool:
        """Whether a call has begun."""
        return self._parser.num_calls > 0

    def deltas(self, text: str, *, is_last: bool) -> list[dict[str, object]]:
        """What ``text`` adds, each the ``delta`` of one chunk."""
        pieces = self._parser.feed(text)
        if is_last:
            pieces = [*pieces, *self._parser.finish()]
        return [_delta(piece) for piece in pieces]


def _delta(piece: Piece) -> dict[str, object]:
    if isinstance(piece, str):
        return {"content": piece}
    call: dict[str, object] = {"index": piece.index}
    if piece.name:
        call |= {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function"}
        call["function"] = {"name": piece.name, "arguments": ""}
    else:
        call["function"] = {"arguments": piece.arguments}
    return {"tool_calls": [call]}


def tool_message(use: ToolUse, text: str) -> dict[str, object]:
    """The message of a whole answer: ``content`` (null where there is none) and ``tool_calls``."""
    parser = use.parser()
    content: list[str] = []
    calls: list[dict[str, str]] = []
    for piece in [*parser.feed(text), *parser.finish()]:
        if isinstance(piece, str):
            content.append(piece)
        elif isinstance(piece, ToolDelta) and piece.name:
            calls.append({"name": piece.name, "arguments": ""})
        else:
            calls[piece.index]["arguments"] += piece.arguments
    message: dict[str, object] = {"content": "".join(content) or None}
    if calls:
        message["tool_calls"] = [
            {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": call}
            for call in calls
        ]
    return message
