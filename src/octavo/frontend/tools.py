"""``tools`` and ``tool_choice``: what a model is told of functions, and what binds its answer.

chat        {"type": "function", "function": {"name", "description", "parameters", "strict"}}
Responses   {"type": "function", "name", "description", "parameters", "strict"}
Messages    {"name", "description", "input_schema"}

Inside, a function is told of as in chat.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from octavo.core.grammar import Grammar
from octavo.text.members import wrong
from octavo.text.shape_check import check_shape
from octavo.text.shapes import (
    ANY,
    BOOLEAN,
    Shape,
    component,
    either,
    ignored,
    integer,
    listing,
    number,
    over,
    record,
    ref,
    table,
    text,
    word,
)
from octavo.text.tool_formats import MAX_PARALLEL_CALLS, Tool, ToolFormat
from octavo.text.tool_parser import ToolParser

MAX_TOOLS = 128

# One of the words, with the names of those that are allowed, none for all; or named, with the one
# name.
Choice = tuple[str, tuple[str, ...]]

# -- shapes ----------------------------------------------------------------------------------

_NAME: Final = text(
    pattern="^[A-Za-z0-9_.-]{1,64}$", said="1 to 64 letters, digits, underscores, dots or dashes"
)
_SUBSCHEMA: Final = either(ref("JsonSchema"), BOOLEAN)
_TYPE: Final = word("null", "boolean", "object", "array", "number", "string", "integer")
_KEYWORDS: Final[tuple[tuple[Shape, tuple[str, ...]], ...]] = (
    (_SUBSCHEMA, ("not", "if", "then", "else", "contains", "propertyNames", "additionalProperties",
                  "additionalItems", "unevaluatedItems", "unevaluatedProperties")),
    (table(_SUBSCHEMA), ("properties", "patternProperties", "dependentSchemas", "$defs",
                         "definitions")),
    (listing(_SUBSCHEMA, 1), ("anyOf", "allOf", "oneOf", "prefixItems")),
    (number(), ("minimum", "maximum")),
    (either(number(), BOOLEAN), ("exclusiveMinimum", "exclusiveMaximum")),
    (integer(0), ("minLength", "maxLength", "minItems", "maxItems", "minProperties",
                  "maxProperties", "minContains", "maxContains")),
    (text(), ("title", "description", "format", "pattern", "$ref", "$id", "$schema", "$anchor",
              "$comment", "contentEncoding", "contentMediaType")),
    (BOOLEAN, ("uniqueItems", "deprecated", "readOnly", "writeOnly")),
    (either(_SUBSCHEMA, listing(_SUBSCHEMA)), ("items",)),
    (either(_TYPE, listing(_TYPE, 1)), ("type",)),
    (over(0), ("multipleOf",)), (listing(text()), ("required",)), (listing(ANY), ("enum",)),
    (table(listing(text())), ("dependentRequired",)), (listing(ANY), ("examples",)),
)  # fmt: skip
# A JSON schema of the standard's own words (2020-12, and its forerunners'); others say nothing.
JSON_SCHEMA: Final = component(
    "JsonSchema",
    {"type": "object", "properties": {key: shape for shape, keys in _KEYWORDS for key in keys}},
)
_TOLD: Final[dict[str, Shape]] = {"description": text(), "strict": ignored(BOOLEAN)}
CACHE_CONTROL: Final = record(
    {"type": word("ephemeral")}, {"ttl": word("5m", "1h"), "scope": text()}
)
_FUNCTION: Final = word("function")
_MODE: Final = word("none", "auto", "required")
_PARALLEL: Final[dict[str, Shape]] = {"disable_parallel_tool_use": BOOLEAN}


def _openai_choice_shape(named: Shape, *, inside: str) -> Shape:
    allowed: dict[str, Shape] = {
        "mode": word("auto", "required"), "tools": listing(named, 1, MAX_TOOLS)
    }  # fmt: skip
    members = {inside: record(allowed)} if inside else allowed
    return either(_MODE, named, record({"type": word("allowed_tools"), **members}))


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDialect:
    """How a protocol spells functions: ``inside`` the member of a tool that holds one, or the tool.

    ``tool`` and ``choice`` are the shapes of one and of ``tool_choice``.
    """

    tool: Shape
    choice: Shape
    read_choice: Callable[[Mapping[str, Any], str], Choice]
    inside: str = ""
    parameters: str = "parameters"


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
    check_shape(tools if tools is not None else [], listing(dialect.tool, high=MAX_TOOLS), "tools")
    given = [_tool(tool, dialect) for tool in cast("Sequence[Any]", tools or ())]
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


def _tool(tool: Mapping[str, Any], dialect: ToolDialect) -> Tool:
    function = tool[dialect.inside] if dialect.inside else tool
    members = {
        "name": function["name"],
        "description": function.get("description"),
        "parameters": function.get(dialect.parameters),
    }
    told = {key: value for key, value in members.items() if value is not None}
    return {"type": "function", "function": told}


def _choice(choice: object, names: Sequence[str], dialect: ToolDialect) -> Choice:
    if len(set(names)) != len(names):
        raise wrong("tools", "name a function twice")
    if choice is None:
        return "auto" if names else "none", ()
    check_shape(choice, dialect.choice, "tool_choice")
    if isinstance(choice, str):
        mode, chosen = choice, tuple[str, ...]()
    else:
        mode, chosen = dialect.read_choice(cast("Mapping[str, Any]", choice), dialect.inside)
    if mode in ("required", "named") and not names:
        raise wrong("tool_choice", "needs tools")
    if not set(chosen) <= set(names):
        raise wrong("tool_choice", "names a function that tools lacks")
    return mode, chosen


# -- the protocols' spellings of a choice ----------------------------------------------------


def _openai_choice(choice: Mapping[str, Any], inside: str) -> Choice:
    def name(tool: Mapping[str, Any]) -> str:
        return str((tool[inside] if inside else tool)["name"])

    if choice["type"] == "function":
        return "named", (name(choice),)
    allowed = choice["allowed_tools"] if inside else choice
    return str(allowed["mode"]), tuple(map(name, allowed["tools"]))


def _messages_choice(choice: Mapping[str, Any], _inside: str) -> Choice:
    if choice["type"] == "tool":
        return "named", (str(choice["name"]),)
    return {"auto": "auto", "any": "required", "none": "none"}[choice["type"]], ()


_NAMED: Final = record({"type": _FUNCTION, "function": record({"name": _NAME})})
_NAMED_FLAT: Final = record({"type": _FUNCTION, "name": _NAME})
CHAT_TOOLS: Final = ToolDialect(
    tool=record(
        {
            "type": _FUNCTION,
            "function": record({"name": _NAME}, {**_TOLD, "parameters": JSON_SCHEMA}),
        }
    ),
    choice=_openai_choice_shape(_NAMED, inside="allowed_tools"),
    read_choice=_openai_choice,
    inside="function",
)
RESPONSES_TOOLS: Final = ToolDialect(
    tool=record({"type": _FUNCTION, "name": _NAME}, {**_TOLD, "parameters": JSON_SCHEMA}),
    choice=_openai_choice_shape(_NAMED_FLAT, inside=""),
    read_choice=_openai_choice,
)
MESSAGES_TOOLS: Final = ToolDialect(
    tool=record(
        {"name": _NAME},
        {
            **_TOLD, "type": word("custom"), "input_schema": JSON_SCHEMA,
            "cache_control": ignored(CACHE_CONTROL), "eager_input_streaming": ignored(BOOLEAN),
        },
    ),
    choice=either(
        record({"type": word("none", "auto", "any")}, _PARALLEL),
        record({"type": word("tool"), "name": _NAME}, _PARALLEL),
    ),
    read_choice=_messages_choice,
    parameters="input_schema",
)  # fmt: skip
