"""``tools`` and ``tool_choice``: what a model is told of functions, and what binds its answer.

chat        {"type": "function", "function": {"name", "description", "parameters", "strict"}}
Responses   {"type": "function", "name", "description", "parameters", "strict"}
Messages    {"name", "description", "input_schema"}

Inside, a function is told of as in chat.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Final

from octavo.core.grammar import Grammar
from octavo.text.members import refuse_others, wrong
from octavo.text.tool_formats import MAX_PARALLEL_CALLS, Tool, ToolFormat
from octavo.text.tool_parser import ToolParser

MAX_TOOLS = 128
_WORDS = ("none", "auto", "required")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")

# One of the words, with the names of those that are allowed, none for all; or named, with the one
# name. An empty word where it is none of them.
Choice = tuple[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDialect:
    """How a protocol spells functions: ``inside`` the member of a tool that holds one, or the tool.

    ``kinds`` are the types of tools that are functions; ``labels`` say nothing to a model. A choice
    may be a word where it ``takes_words``.
    """

    read_choice: Callable[[Mapping[str, object], ToolDialect], Choice]
    takes_words: bool = True
    inside: str = ""
    parameters: str = "parameters"
    kinds: tuple[str | None, ...] = ("function",)
    labels: frozenset[str] = frozenset({"strict"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """The functions of one request.

    ``grammar`` is set where the answer must be a call, or, beside a structure, one or the other.
    """

    family: ToolFormat
    tools: Sequence[Tool]
    parallel: bool = True
    grammar: Grammar | None = None

    def parser(self) -> ToolParser:
        """A parser for one choice."""
        names = {tool["function"]["name"] for tool in self.tools}
        max_calls = MAX_PARALLEL_CALLS if self.parallel else 1
        return ToolParser(self.family, names, max_calls=max_calls)


def choose_tools(
    tools: object,
    choice: object,
    dialect: ToolDialect,
    *,
    family: ToolFormat,
    parallel: bool = True,
    structure: Grammar | None = None,
) -> ToolUse | None:
    """What a request may call; None where it may call nothing.

    ``choice`` none tells the model of no function; auto lets it choose; required, or a named
    function, binds the answer by a grammar. Allowed tools are as if there were no others. Where the
    answer is bound by a ``structure`` and a call is free, it is one or the other.

    Raises:
        InvalidRequestError: naming the tool or choice and what is wrong with it.
    """
    given = [_tool(tool, f"tools[{i}]", dialect) for i, tool in enumerate(_list(tools))]
    mode, names = _choice(choice, [tool["function"]["name"] for tool in given], dialect)
    chosen = [tool for tool in given if not names or tool["function"]["name"] in names]
    if mode == "none" or not given:
        return None
    grammar = None
    if mode != "auto" or structure is not None:
        functions = [tool["function"] for tool in chosen]
        text = family.grammar(functions, parallel=parallel and mode != "named")
        grammar = Grammar(kind="lark", text=text, field="tools")
        if mode == "auto" and structure is not None:
            grammar = replace(structure, calls=text)
    told = given if mode == "named" else chosen
    return ToolUse(family=family, tools=told, parallel=parallel, grammar=grammar)


def _list(tools: object) -> list[object]:
    if tools is None:
        return []
    if not isinstance(tools, list):
        raise wrong("tools", "must be a list")
    if len(tools) > MAX_TOOLS:
        raise wrong("tools", f"has {len(tools)} entries; the limit is {MAX_TOOLS}")
    return tools


def _tool(tool: object, where: str, dialect: ToolDialect) -> Tool:
    if not isinstance(tool, Mapping) or tool.get("type") not in dialect.kinds:
        raise wrong(f"{where}.type", f"must be {dialect.kinds[0]}; other tools are not run here")
    known = {"name", "description", dialect.parameters} | dialect.labels
    function, where = _inside(tool, dialect.inside, known, where=where)
    told: dict[str, object] = {"name": _name(function, where)}
    for key, kind in (("description", str), (dialect.parameters, dict)):
        value = function.get(key)
        if value is not None and not isinstance(value, kind):
            word = "a string" if kind is str else "a JSON schema, an object"
            raise wrong(f"{where}.{key}", f"must be {word}")
        if value is not None:
            told["description" if kind is str else "parameters"] = value
    return {"type": "function", "function": told}


def _name(function: Mapping[str, object], where: str) -> str:
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise wrong(f"{where}.name", "must have 1 to 64 letters, digits, _, . or -")
    return name


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
        raise wrong(where, "must be an object")
    refuse_others(held, known if key else known | {"type"}, where)
    return held, where


def _choice(choice: object, names: Sequence[str], dialect: ToolDialect) -> Choice:
    if len(set(names)) != len(names):
        raise wrong("tools", "name a function twice")
    if choice is None:
        return "auto" if names else "none", ()
    mode, chosen = "", tuple[str, ...]()
    if isinstance(choice, Mapping):
        mode, chosen = dialect.read_choice(choice, dialect)
    elif isinstance(choice, str) and dialect.takes_words and choice in _WORDS:
        mode = choice
    if not mode:
        raise wrong(
            "tool_choice", "must be none, auto, required (any), a function by name or allowed_tools"
        )
    if mode in ("required", "named") and not names:
        raise wrong("tool_choice", "needs tools")
    if not set(chosen) <= set(names):
        raise wrong("tool_choice", "names a function that tools lacks")
    return mode, chosen


# -- the protocols' spellings of a choice ----------------------------------------------------


def _openai_choice(choice: Mapping[str, object], dialect: ToolDialect) -> Choice:
    if choice.get("type") == "function":
        return "named", (_reference(choice, dialect, "tool_choice"),)
    if choice.get("type") != "allowed_tools":
        return "", ()
    key = "allowed_tools" if dialect.inside else ""
    allowed, where = _inside(choice, key, {"mode", "tools"}, where="tool_choice")
    mode, tools = allowed.get("mode"), allowed.get("tools")
    if mode not in ("auto", "required"):
        raise wrong(f"{where}.mode", "must be auto or required")
    if not isinstance(tools, list) or not 1 <= len(tools) <= MAX_TOOLS:
        raise wrong(f"{where}.tools", f"must be a list of 1 to {MAX_TOOLS} functions")
    names = (_reference(tool, dialect, f"{where}.tools[{i}]") for i, tool in enumerate(tools))
    return str(mode), tuple(names)


def _reference(value: object, dialect: ToolDialect, where: str) -> str:
    """The name of a function that is spelled like a tool, but for its description."""
    if not isinstance(value, Mapping) or value.get("type") != "function":
        raise wrong(f"{where}.type", "must be function")
    return _name(*_inside(value, dialect.inside, {"name"}, where=where))


def _messages_choice(choice: Mapping[str, object], _dialect: ToolDialect) -> Choice:
    kind = choice.get("type")
    names = {"name"} if kind == "tool" else set()
    refuse_others(choice, {"type", "disable_parallel_tool_use"} | names, "tool_choice")
    if kind == "tool":
        return "named", (_name(choice, "tool_choice"),)
    words = {"auto": "auto", "any": "required", "none": "none"}
    return words.get(kind, "") if isinstance(kind, str) else "", ()


CHAT_TOOLS: Final = ToolDialect(read_choice=_openai_choice, inside="function")
RESPONSES_TOOLS: Final = ToolDialect(read_choice=_openai_choice)
MESSAGES_TOOLS: Final = ToolDialect(
    read_choice=_messages_choice,
    takes_words=False,
    parameters="input_schema",
    kinds=("custom", None),
    labels=frozenset({"strict", "cache_control", "eager_input_streaming"}),
)
