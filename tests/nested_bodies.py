"""Bodies that together have every nested object that an endpoint reads, and what may vary in them.

A path is written as errors write it, with the numbers of list items left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from octavo.server.endpoints import Endpoint
from served import HELLO, QUESTIONS

SCHEMA: dict[str, Any] = {
    "type": "object", "title": "T", "description": "d", "additionalProperties": False,
    "required": ["a"], "$defs": {"d": {"type": ["string", "null"]}},
    "properties": {
        "a": {"type": "integer", "minimum": 0, "exclusiveMaximum": 9},
        "b": {"anyOf": [{"$ref": "#/$defs/d"}, {"enum": ["x"]}]},
        "c": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2},
    },
}  # fmt: skip


def called(call_id: str) -> dict[str, Any]:
    function = {"name": "f", "arguments": '{"a": 1}', "parsed_arguments": {"a": 1}}
    return {"id": call_id, "type": "function", "index": 0, "function": function}


CHAT: list[Any] = [
    {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
    *HELLO,
    {"role": "assistant", "content": [{"type": "text", "text": "Hm."}], "reasoning_content": "So",
     "tool_calls": [called("c1"), called("c2")], "parsed": {"a": 1}},
    {"role": "tool", "tool_call_id": "c1", "name": "f", "content": [{"type": "text", "text": "1"}]},
    {"role": "tool", "tool_call_id": "c2", "content": "2"},
    {"role": "assistant", "content": None, "tool_calls": [called("c1")]},
    {"role": "tool", "tool_call_id": "c1", "content": "3"},
    *HELLO,
]  # fmt: skip
TOLD = {"name": "f", "description": "d", "strict": True, "parameters": SCHEMA}
TOOL = {"type": "function", "function": TOLD}
NAMED = {"type": "function", "function": {"name": "f"}}
FORMAT = {"name": "n", "strict": True, "description": "d", "schema": SCHEMA}
TEMPLATED: list[dict[str, Any]] = [
    {"messages": CHAT, "tools": [TOOL]},
    {"messages": HELLO, "tools": [TOOL], "tool_choice": NAMED},
    {"messages": HELLO, "tools": [TOOL], "tool_choice": {
        "type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}},
]  # fmt: skip
STRUCTURES: list[dict[str, Any]] = [
    {"structured_outputs": one}
    for one in ({"json": SCHEMA}, {"regex": "a"}, {"choice": ["a"]}, {"grammar": 'start: "a"'})
]
CACHED = {"cache_control": {"type": "ephemeral", "ttl": "5m", "scope": "global"}}
BLOCK = {"type": "text", "text": "Rain.", **CACHED}
MESSAGES: list[dict[str, Any]] = [
    {
        "system": [BLOCK],
        "tools": [{"name": "f", "description": "d", "strict": True, "type": "custom",
                   "input_schema": SCHEMA, "eager_input_streaming": True, **CACHED}],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "thinking": {"type": "enabled", "budget_tokens": 2000, "display": "omitted"},
        "output_config": {"effort": "low"},
        "messages": [
            {"role": "user", "content": [BLOCK]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "s"}, BLOCK,
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1},
                 "caller": {"type": "direct"}, **CACHED},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t1", "is_error": False,
                 "content": [BLOCK], **CACHED},
            ]},
        ],
    },
    {"messages": HELLO, "tools": [{"name": "f"}], "tool_choice": {"type": "tool", "name": "f"}},
    {"messages": HELLO, "output_config": {"format": {"type": "json_schema", **FORMAT}}},
]  # fmt: skip
ITEM = {"id": "i1", "status": "completed"}
PART = {"type": "output_text", "text": "Hm.", "annotations": [{"a": 1}], "logprobs": [{"a": 1}]}
FLAT = {"type": "function", **TOLD}
RESPONSES: list[dict[str, Any]] = [
    {
        "tools": [FLAT],
        "reasoning": {"effort": "low", "summary": "auto", "generate_summary": "auto",
                      "context": "auto"},
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
            {"type": "reasoning", **ITEM, "encrypted_content": "e",
             "summary": [{"type": "summary_text", "text": "s"}],
             "content": [{"type": "reasoning_text", "text": "So"}]},
            {"type": "message", "role": "assistant", "phase": "commentary", **ITEM,
             "content": [PART]},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}", **ITEM},
            {"type": "function_call_output", "call_id": "c1", **ITEM,
             "output": [{"type": "input_text", "text": "1"}]},
        ],
    },
    {"input": "Hi", "tools": [FLAT], "tool_choice": {"type": "function", "name": "f"}},
    {"input": "Hi", "tools": [FLAT], "tool_choice": {
        "type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]}},
]  # fmt: skip
BODIES: dict[Endpoint, list[dict[str, Any]]] = {
    Endpoint.CHAT: [
        *TEMPLATED, *STRUCTURES,
        {"response_format": {"type": "json_schema", "json_schema": FORMAT}},
        {"response_format": {"type": "json_object"}},
        {"stream": True, "stream_options": {"include_usage": True}},
    ],
    Endpoint.TOKENIZE: TEMPLATED,
    Endpoint.APPLY_TEMPLATE: TEMPLATED,
    Endpoint.COMPLETIONS: STRUCTURES,
    Endpoint.MESSAGES: [*MESSAGES, *STRUCTURES[:1]],
    Endpoint.COUNT_TOKENS: MESSAGES,
    Endpoint.RESPONSES: [
        *RESPONSES, {"text": {"format": {"type": "json_schema", **FORMAT}, "verbosity": "medium"}},
        {"text": {"format": {"type": "text"}}, "metadata": {"a": "b"}},
    ],
    Endpoint.INPUT_TOKENS: RESPONSES,
    Endpoint.SYSTEMONE: [{"state": CHAT, "questions": QUESTIONS}],
}  # fmt: skip

KINDS: dict[str, Any] = {
    "null": None, "boolean": True, "integer": 7, "number": 1.5, "string": "odd \U0001f986",
    "list": [], "object": {}, "listed": [True], "member": {"odd \U0001f986": 7},
}  # fmt: skip
ODD = "surprise"


def kind_of(value: Any) -> str:
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "list"}
    return "null" if value is None else kinds.get(type(value), "object")


def mutations(body: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(path, what stands there now, the body), for all that is inside a body's fields."""
    for name, value in body.items():
        for path, kind, changed in _changes(value, name):
            yield path, kind, {**body, name: changed}


def _changes(value: Any, path: str) -> Iterator[tuple[str, str, Any]]:
    if isinstance(value, dict):
        yield f"{path}.{ODD}", "unknown", {**value, ODD: 7}
        for key, held in value.items():
            yield from (
                (at, kind, {**value, key: new}) for at, kind, new in _each(held, f"{path}.{key}")
            )
    if isinstance(value, list):
        for i, held in enumerate(value):
            yield from (
                (at, kind, [*value[:i], new, *value[i + 1 :]])
                for at, kind, new in _each(held, f"{path}[{i}]")
            )


def _each(held: Any, path: str) -> Iterator[tuple[str, str, Any]]:
    """Another kind of value instead of one, and what changes inside it."""
    for kind, other in KINDS.items():
        if kind != kind_of(held):
            yield path, kind, other
    yield from _changes(held, path)
