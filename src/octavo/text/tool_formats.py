"""How model families spell tool calls: one table, from which parser and grammar both come.

hermes    <tool_call>⏎{"name": "f", "arguments": {…}}⏎</tool_call>   (Qwen, Hermes), repeated
mistral   [TOOL_CALLS][{"name": "f", "arguments": {…}}, …]
llama3    {"name": "f", "parameters": {…}}, the whole answer; several joined by "; "
generic   {"name": "f", "arguments": {…}}, the whole answer, as its system text asks

Of any family an answer that as a whole is a generic call, bare or in a fence, is read as one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from octavo.text.messages import Message

MAX_PARALLEL_CALLS: Final = 16

Tool = Mapping[str, Any]


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

    @property
    def is_generic(self) -> bool:
        """Whether the model's template knows of no tools."""
        return self is _GENERIC

    def spelled(self, name: str, arguments: Mapping[str, Any]) -> str:
        """One call, as the model writes it."""
        return json.dumps({"name": name, self.key: arguments}, ensure_ascii=False)

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
        # In the pieces of a JSON schema's own grammar: where an answer may be either, a longer one
        # would swallow the begin of the other.
        name = json.dumps(function["name"], ensure_ascii=False)
        head = " ".join(map(_quoted, ("{", '"name"', ": ", name, ", ", f'"{self.key}"', ": ")))
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
# Of the begins and ends, those that are tokens of their own.
TOOL_TAGS: Final = frozenset({"<tool_call>", "</tool_call>", "[TOOL_CALLS]"})
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


def as_plain_text(
    messages: Sequence[Message], tools: Sequence[Tool], family: ToolFormat
) -> list[Message]:
    """A conversation for a template that knows no tools: what there is of them as plain text.

    The functions, and how to call one, are told by the system; calls are what the assistant wrote,
    and their answers come from the user.
    """
    plain = [_plain_message(message, family) for message in messages]
    if not tools:
        return plain
    told = _preamble(tools)
    if plain[0]["role"] == "system":
        plain[0]["content"] += f"\n\n{told}"
        return plain
    return [{"role": "system", "content": told}, *plain]


def _plain_message(message: Message, family: ToolFormat) -> Message:
    role, content = message["role"], message["content"]
    if role == "tool":
        return {"role": "user", "content": f"The function answered: {content}"}
    calls = [call["function"] for call in message.get("tool_calls", ())]
    spelled = [family.spelled(call["name"], call["arguments"]) for call in calls]
    plain = {"role": role, "content": "\n".join(filter(None, [content, *spelled]))}
    if "reasoning_content" in message:
        plain["reasoning_content"] = message["reasoning_content"]
    return plain


def _preamble(tools: Sequence[Tool]) -> str:
    listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    return (
        "You may call one of these functions:\n"
        f"{listed}\n"
        'To call one, answer with nothing but a JSON object {"name": its name, "arguments": '
        "an object of its parameters}. Otherwise answer in plain text."
    )


def _quoted(text: str) -> str:
    """A Lark string literal."""
    return json.dumps(text)
