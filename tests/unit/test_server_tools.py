"""tools and tool_choice: what is read, what is refused, what a chat answers."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.errors import InvalidRequestError
from octavo.server.tools import ToolStream, read_tools, tool_message
from octavo.server.typed_body import TypedBody
from octavo.text.tool_formats import tool_format
from served import Served

HERMES = tool_format("{{ tools }}<tool_call>")


def function(name: str = "f", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


def read(**body: Any) -> Any:
    return read_tools(TypedBody(body), HERMES)


@pytest.mark.parametrize(
    "body", [{}, {"tools": []}, {"tools": None}, {"tools": [function()], "tool_choice": "none"}]
)
def test_nothing_may_be_called(body: dict) -> None:
    assert read(**body) is None


def test_what_binds_the_answer() -> None:
    tools = [function("f"), function("g", parameters={"type": "object"}, strict=True)]
    assert read(tools=tools).grammar is None
    assert read(tools=tools, tool_choice="auto").grammar is None
    bound = read(tools=tools, tool_choice="required").grammar.text
    assert '\\"f\\"' in bound
    assert '\\"g\\"' in bound
    chosen = {"type": "function", "function": {"name": "g"}}
    named = read(tools=tools, tool_choice=chosen).grammar.text
    assert '\\"f\\"' not in named
    assert read(tools=tools, parallel_tool_calls=False).parallel is False
    # What a client says of strictness changes nothing: a bound answer is always strict.
    assert read(tools=tools).tools[1]["function"] == {
        "name": "g", "parameters": {"type": "object"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": "f"}, "tools"),
        ({"tools": [function()] * 129}, "tools"),
        ({"tools": [function(), function()]}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [function("a b")]}, "tools[0].function.name"),
        ({"tools": [function(parameters=[])]}, "tools[0].function.parameters"),
        ({"tools": [function(description=3)]}, "tools[0].function.description"),
        ({"tools": [function(extra=1)]}, "tools[0].function.extra"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [function()], "tool_choice": "maybe"}, "tool_choice"),
        ({"tools": [function()], "tool_choice": function("g")}, "tool_choice"),
        ({"tools": [function()], "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"tools": [function()], "parallel_tool_calls": 1}, "parallel_tool_calls"),
        ({"tools": [function()], "response_format": {"type": "json_object"}}, "tools"),
        ({"tools": [function()], "structured_outputs": {"regex": "a"}}, "tools"),
    ],
)
def test_refused(body: dict, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read(**body)
    assert caught.value.param == param


ANSWER = 'Let me see.\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


def test_an_answer_is_a_message_and_its_deltas_add_up_to_it() -> None:
    use = read(tools=[function()])
    message = tool_message(use, ANSWER)
    assert message["content"] == "Let me see.\n"
    (call,) = message["tool_calls"]
    assert call["function"] == {"name": "f", "arguments": '{"a": 1}'}
    assert call["id"].startswith("call_")
    stream = ToolStream(use)
    deltas = [d for char in ANSWER for d in stream.deltas(char, is_last=False)]
    deltas += stream.deltas("", is_last=True)
    assert "".join(str(d.get("content", "")) for d in deltas) == "Let me see.\n"
    calls = [d["tool_calls"][0] for d in deltas if "tool_calls" in d]
    assert calls[0]["function"] == {"name": "f", "arguments": ""}
    assert "".join(c["function"]["arguments"] for c in calls) == '{"a": 1}'
    assert stream.has_calls is True
    assert tool_message(use, "No call.") == {"content": "No call."}


def test_a_chat_with_tools_that_calls_none(play: Any) -> None:
    async def test(here: Served) -> None:
        plain = (await here.chat(logprobs=True)).json()["choices"][0]
        body = {"tools": [function()], "tool_choice": "none", "logprobs": True}
        none = (await here.chat(**body)).json()["choices"][0]
        assert none["message"] == plain["message"]
        told = (await here.chat(tools=[function()], logprobs=True)).json()
        assert told["usage"]["prompt_tokens"] > 40
        assert len(told["choices"][0]["logprobs"]["content"]) == 5

    play(test)
