"""``tools`` and ``tool_choice``: what a model is told of functions, and what binds its answer.

chat        {"type": "function", "function": {"name", "description", "parameters", "strict"}}
Responses   {"type": "function", "name", "description", "parameters", "strict"}
Messages    {"name", "description", "input_schema"}

Inside, a function is told of as in chat.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final

from octavo.core.grammar import Grammar
from octavo.errors import InvalidRequestError
from octavo.server.structured import read_grammar
from octavo.server.typed_body import TypedBody
from octavo.text.members import refuse_others
from octavo.text.tool_formats import MAX_PARALLEL_CALLS, Tool, ToolFormat
from octavo.text.tool_parser import ToolParser

MAX_TOOLS = 128
_MODES = ("none", "auto", "required", "named")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")

# none, auto, required, or named with a function's name; empty where it is none of them.
Choice = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDialect:
    """How a protocol spells functions: ``inside`` the member of a tool that holds one, or the tool.

    ``kinds`` are the types of tools that are functions; ``labels`` say nothing to a model.
    """

    read_choice: Callable[[object], Choice]
    inside: str = ""
    parameters: str = "parameters"
    kinds: tuple[str | None, ...] = ("function",)
    labels: frozenset[str] = frozenset({"strict"})


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


def read_tools(body: TypedBody, family: ToolFormat, dialect: ToolDialect) -> ToolUse | None:
    """What a request may call; None where it may call nothing.

    ``tool_choice`` none tells the model of no function; auto lets it choose; required, or a named
    function, binds the answer by a grammar.

    Raises:
        InvalidRequestError: naming the tool or choice and what is wrong with it.
    """
    given = _list(body.raw("tools"))
    tools = [_tool(tool, f"tools[{i}]", dialect) for i, tool in enumerate(given)]
    names = [tool["function"]["name"] for tool in tools]
    if len(set(names)) != len(names):
        raise InvalidRequestError("tools name a function twice", param="tools")
    parallel = _parallel(body)
    mode, name = _choice(body.raw("tool_choice"), names, dialect)
    if mode == "none" or not tools:
        return None
    if read_grammar(body) is not None:
        raise InvalidRequestError(
            "tools cannot be combined with a structure of the answer; send tool_choice none, or "
            "leave one of them out",
            param="tools",
        )
    grammar = None
    if mode != "auto":
        chosen = [
            t["function"] for t in tools if mode == "required" or t["function"]["name"] == name
        ]
        text = family.grammar(chosen, parallel=parallel and mode == "required")
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


def _tool(tool: object, where: str, dialect: ToolDialect) -> Tool:
    if not isinstance(tool, Mapping) or tool.get("type") not in dialect.kinds:
        raise InvalidRequestError(
            f"{where}.type must be {dialect.kinds[0]}; other tools are not run here",
            param=f"{where}.type",
        )
    known = {"name", "description", dialect.parameters} | dialect.labels
    function, where = _inside(tool, dialect.inside, known, where=where)
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequestError(
            f"{where}.name must have 1 to 64 letters, digits, _, . or -", param=f"{where}.name"
        )
    told: dict[str, object] = {"name": name}
    for key, kind in (("description", str), (dialect.parameters, dict)):
        value = function.get(key)
        if value is not None and not isinstance(value, kind):
            word = "a string" if kind is str else "a JSON schema, an object"
            raise InvalidRequestError(f"{where}.{key} must be {word}", param=f"{where}.{key}")
        if value is not None:
            told["description" if kind is str else "parameters"] = value
    return {"type": "function", "function": told}


def _inside(
    value: Mapping[str, object], key: str, known: Set[str], *, where: str
) -> tuple[Mapping[str, object], str]:
    """The object under ``key``, beside a type, or ``value`` itself without one, and its place.

    Only ``known`` members may stand in it.
    """
    held: object = value
    if key:
        refuse_others(value, ("type", key), where)
        held, where = value.get(key), f"{where}.{key}"
    if not isinstance(held, Mapping):
        raise InvalidRequestError(f"{where} must be an object", param=where)
    refuse_others(held, known if key else known | {"type"}, where)
    return held, where


def _parallel(body: TypedBody) -> bool:
    """Messages says it, the other way round, in the choice."""
    choice = body.raw("tool_choice")
    if isinstance(choice, Mapping) and "disable_parallel_tool_use" in choice:
        inside = TypedBody({"tool_choice": choice["disable_parallel_tool_use"]})
        return not inside.boolean("tool_choice")
    return body.boolean_or("parallel_tool_calls", True)


def _choice(choice: object, names: Sequence[str], dialect: ToolDialect) -> Choice:
    if choice is None:
        return "auto" if names else "none", ""
    mode, name = dialect.read_choice(choice)
    if mode not in _MODES:
        raise InvalidRequestError(
            "tool_choice must be none, auto, required (any) or a function by name",
            param="tool_choice",
        )
    if mode in ("required", "named") and not names:
        raise InvalidRequestError("tool_choice needs tools", param="tool_choice")
    if mode == "named" and name not in names:
        raise InvalidRequestError(
            "tool_choice names a function that tools lacks", param="tool_choice"
        )
    return mode, name


# -- the protocols' spellings of a choice ----------------------------------------------------


def _word_or_function(choice: object, inside: str) -> Choice:
    if isinstance(choice, str):
        return choice, ""
    if not isinstance(choice, Mapping) or choice.get("type") != "function":
        return "", ""
    return _named(_inside(choice, inside, {"name"}, where="tool_choice")[0])


def _named(function: Mapping[str, object]) -> Choice:
    name = function.get("name")
    return ("named", name) if isinstance(name, str) else ("", "")


def _messages_choice(choice: object) -> Choice:
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    if not isinstance(choice, Mapping) or not isinstance(kind, str):
        return "", ""
    names = {"name"} if kind == "tool" else set()
    refuse_others(choice, {"type", "disable_parallel_tool_use"} | names, "tool_choice")
    words = {"auto": "auto", "any": "required", "none": "none"}
    return _named(choice) if kind == "tool" else (words.get(kind, ""), "")


CHAT_TOOLS: Final = ToolDialect(
    read_choice=lambda choice: _word_or_function(choice, "function"), inside="function"
)
RESPONSES_TOOLS: Final = ToolDialect(read_choice=lambda choice: _word_or_function(choice, ""))
MESSAGES_TOOLS: Final = ToolDialect(
    read_choice=_messages_choice,
    parameters="input_schema",
    kinds=("custom", None),
    labels=frozenset({"strict", "cache_control", "eager_input_streaming"}),
)
