"""How model families spell tool calls: one table, from which parser and grammar both come.

hermes    <tool_call>⏎{"name": "f", "arguments": {…}}⏎</tool_call>   (Qwen, Hermes), repeated
mistral   [TOOL_CALLS][{"name": "f", "arguments": {…}}, …]
llama3    {"name": "f", "parameters": {…}}, the whole answer; several joined by "; "
generic   {"name": "f", "arguments": {…}}, the whole answer, as its system text asks
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

MAX_PARALLEL_CALLS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """One family. ``begin`` opens a call, or the list of them; empty: the answer is the call.

    A call is ``before`` name ``between`` arguments ``after``; ``joint`` stands between calls and
    ``end`` closes what ``begin`` opened. ``repeats`` says that each call has its own begin and end.
    """

    name: str
    key: str = "arguments"
    begin: str = ""
    end: str = ""
    joint: str = ""
    repeats: bool = False

    def grammar(self, functions: Sequence[Mapping[str, Any]], *, parallel: bool) -> str:
        """A Lark grammar of one call, or several, of ``functions`` ({"name", "parameters"})."""
        calls = " | ".join(self._call(function) for function in functions)
        call = f"call: {calls}"
        more = f"({_quoted(self.joint)} call){{0,{MAX_PARALLEL_CALLS - 1}}}" if parallel else ""
        if self.repeats:
            opened = f"{_quoted(self.begin)} call {_quoted(self.end)}"
            again = f'("\\n" {opened}){{0,{MAX_PARALLEL_CALLS - 1}}}' if parallel else ""
            return f"start: {opened} {again}\n{call}"
        ends = (_quoted(text) if text else "" for text in (self.begin, self.end))
        begin, end = ends
        return f"start: {begin} call {more} {end}\n{call}"

    def _call(self, function: Mapping[str, Any]) -> str:
        name = json.dumps(function["name"])
        head = _quoted(f'{{"name": {name}, "{self.key}": ')
        schema = {
            **(function.get("parameters") or {"type": "object"}),
            "x-guidance": {
                "item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False,
            },
        }  # fmt: skip
        return f"{head} %json {json.dumps(schema)} {_quoted('}')}"


_HERMES: Final = ToolFormat(
    name="hermes", begin="<tool_call>\n", end="\n</tool_call>", repeats=True
)
_MISTRAL: Final = ToolFormat(name="mistral", begin="[TOOL_CALLS][", end="]", joint=", ")
_LLAMA3: Final = ToolFormat(name="llama3", key="parameters", joint="; ")
_GENERIC: Final = ToolFormat(name="generic", joint="\n")
# What a family's chat template cannot do without, first match.
_SIGNS: Final = (
    ("<tool_call>", _HERMES),
    ("[TOOL_CALLS]", _MISTRAL),
    ("<|python_tag|>", _LLAMA3),
    ('"parameters": ', _LLAMA3),
)


def tool_format(template_source: str) -> ToolFormat:
    """The family of a chat template; generic where it does not know of tools."""
    if "tools" in template_source:
        for sign, found in _SIGNS:
            if sign in template_source:
                return found
    return _GENERIC


def generic_preamble(tools: Sequence[Mapping[str, Any]]) -> str:
    """System text that tells a model whose template knows no tools what it may call, and how."""
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return (
        "You may call one of these functions:\n"
        f"{listed}\n"
        'To call one, answer with nothing but a JSON object {"name": its name, "arguments": '
        "an object of its parameters}. Otherwise answer in plain text."
    )


def _quoted(text: str) -> str:
    """A Lark string literal."""
    return json.dumps(text)
