"""tools and tool_choice: what is read, what is refused, what a chat answers."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from octavo.errors import InvalidRequestError
from octavo.frontend.answer import AnswerForm, answer_message, piece_delta
from octavo.frontend.tools import CHAT_TOOLS, MESSAGES_TOOLS, RESPONSES_TOOLS, ToolDialect
from octavo.server.conversation import read_tools
from octavo.server.endpoints import Endpoint
from octavo.server.field_check import check_fields
from octavo.server.structured import read_grammar
from octavo.server.typed_body import TypedBody
from octavo.text.tool_formats import tool_format
from served import LEAST, Served

HERMES = tool_format("{{ tools }}<tool_call>")


def function(name: str = "f", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


def read(**body: Any) -> Any:
    return read_tools(TypedBody(body), HERMES, CHAT_TOOLS)


def checked_and_read(body: dict[str, Any]) -> Any:
    check_fields({**LEAST[Endpoint.CHAT], **body}, Endpoint.CHAT)
    return read(**body)


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
        ({"tools": [function() | {"extra": None}]}, "tools[0].extra"),
        ({"tools": [function()], "tool_choice": function() | {"extra": 1}}, "tool_choice.extra"),
        (
            {"tools": [function()], "tool_choice": function(strict=True)},
            "tool_choice.function.strict",
        ),
        ({"tools": [function()], "tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [function()], "tool_choice": "maybe"}, "tool_choice"),
        # The word that stands for a function by name inside.
        ({"tools": [function()], "tool_choice": "named"}, "tool_choice"),
        ({"tools": [function()], "tool_choice": function("g")}, "tool_choice"),
        ({"tools": [function()], "tool_choice": {"type": "mcp"}}, "tool_choice.type"),
        ({"tools": [function()], "parallel_tool_calls": 1}, "parallel_tool_calls"),
    ],
)
def test_refused(body: dict, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        checked_and_read(body)
    assert caught.value.param == param


def allowed(dialect: ToolDialect, mode: Any, *names: str, **more: Any) -> dict[str, Any]:
    flat = dialect is RESPONSES_TOOLS
    tools = [{"type": "function", "name": n} if flat else function(n) for n in names]
    inside = {"mode": mode, "tools": tools, **more}
    return {"type": "allowed_tools", **(inside if flat else {"allowed_tools": inside})}


@pytest.mark.parametrize("dialect", [CHAT_TOOLS, RESPONSES_TOOLS])
@pytest.mark.parametrize("mode", ["auto", "required"])
def test_allowed_tools_are_as_if_there_were_no_others(dialect: ToolDialect, mode: str) -> None:
    flat = dialect is RESPONSES_TOOLS

    def use(names: str, choice: Any) -> Any:
        tools = [{"type": "function", "name": n} if flat else function(n) for n in names]
        return read_tools(TypedBody({"tools": tools, "tool_choice": choice}), HERMES, dialect)

    one = use("fgh", allowed(dialect, mode, "h", "g"))
    assert one == use("gh", mode)
    assert (one.grammar is None) == (mode == "auto")
    assert [tool["function"]["name"] for tool in one.tools] == ["g", "h"]


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        (allowed(CHAT_TOOLS, "none", "f"), "tool_choice.allowed_tools.mode"),
        (allowed(CHAT_TOOLS, [], "f"), "tool_choice.allowed_tools.mode"),
        (allowed(CHAT_TOOLS, "auto"), "tool_choice.allowed_tools.tools"),
        (allowed(CHAT_TOOLS, "auto", *["f"] * 129), "tool_choice.allowed_tools.tools"),
        (allowed(CHAT_TOOLS, "auto", "g"), "tool_choice"),
        (allowed(CHAT_TOOLS, "auto", "f", more=1), "tool_choice.allowed_tools.more"),
        (allowed(CHAT_TOOLS, "auto", "f") | {"mode": "auto"}, "tool_choice.mode"),
        ({"type": "allowed_tools"}, "tool_choice.allowed_tools"),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": ["f"]}},
            "tool_choice.allowed_tools.tools[0]",
        ),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [function("f", strict=True)]},
            },
            "tool_choice.allowed_tools.tools[0].function.strict",
        ),
    ],
)
def test_senseless_allowed_tools(choice: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read(tools=[function()], tool_choice=choice)
    assert caught.value.param == param


FORMAT = {"response_format": {"type": "json_object"}}


def test_beside_a_structure_an_answer_is_of_it_or_a_call() -> None:
    structure = read_grammar(TypedBody(FORMAT))
    use = read(tools=[function("f"), function("g")], **FORMAT)
    calls = read(tools=[function("f"), function("g")], tool_choice="required").grammar.text
    assert use.grammar == replace(structure, calls=calls)
    one = read(tools=[function()], parallel_tool_calls=False, **FORMAT)
    assert one.grammar.calls == HERMES.grammar([{"name": "f"}], parallel=False)
    chosen = {"type": "function", "function": {"name": "f"}}
    for choice in ("required", chosen):
        bound = {"tools": [function()], "tool_choice": choice}
        assert read(**bound, **FORMAT) == read(**bound)
    assert read(tools=[function()], tool_choice="none", **FORMAT) is None


def test_a_structured_answer_and_a_call_over_http(play: Any) -> None:
    """What the mask leaves the sampler is one of the two; both come of some seed."""
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
              "additionalProperties": False}  # fmt: skip
    parameters = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"],
                  "additionalProperties": False}  # fmt: skip
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}

    async def test(here: Served) -> None:
        seen = set()
        for seed in range(12):
            body = {"tools": [function(parameters=parameters)], "response_format": form}
            answer = await here.chat(**body, seed=seed, max_tokens=200)
            (choice,) = answer.json()["choices"]
            message = choice["message"]
            seen.add(choice["finish_reason"])
            if choice["finish_reason"] == "stop":
                assert json.loads(message["content"])["ok"] in (True, False)
            else:
                calls = message["tool_calls"]
                assert message["content"] is None
                assert all(json.loads(c["function"]["arguments"])["n"] in (1, 2) for c in calls)
        assert seen == {"stop", "tool_calls"}

    play(test)


ANSWER = 'Let me see.\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


def test_an_answer_is_a_message_and_its_deltas_add_up_to_it(smollm2_text: Any) -> None:
    form = AnswerForm(tokenizer=smollm2_text[1], tools=read(tools=[function()]))
    message = form.message(ANSWER, ())
    assert message["content"] == "Let me see.\n"
    (call,) = message["tool_calls"]
    assert call["function"] == {"name": "f", "arguments": '{"a": 1}'}
    assert call["id"].startswith("call_")
    reader = form.reader()
    pieces = [p for char in ANSWER for p in reader.read_text(char, (), is_last=False)]
    deltas: list[Any] = [piece_delta(p) for p in [*pieces, *reader.read_text("", (), is_last=True)]]
    assert "".join(str(d.get("content", "")) for d in deltas) == "Let me see.\n"
    calls = [d["tool_calls"][0] for d in deltas if "tool_calls" in d]
    assert calls[0]["function"] == {"name": "f", "arguments": ""}
    assert "".join(c["function"]["arguments"] for c in calls) == '{"a": 1}'
    assert reader.num_calls == 1
    assert answer_message(["No call."]) == {"role": "assistant", "content": "No call."}


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOLD = {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}


@pytest.mark.parametrize(("text", "whole"), [
    ("Hello.", False),
    ('<tool_call>\n{"name": "f", "argum', False),
    ('<tool_call>\n{"name": "f", "arguments": {"city": "', False),
    ('<tool_call>\n{"name": "f", "arguments": {"city": {"a": 1}', False),
    ('<tool_call>\n{"name": "f", "arguments": {"city": 1}', True),
    ('<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n', True),
    ('<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call> So', True),
])  # fmt: skip
def test_a_call_that_is_cut_off_is_no_end_by_calls(
    smollm2_text: Any, text: str, whole: bool
) -> None:
    form = AnswerForm(tokenizer=smollm2_text[1], tools=read(tools=[function()]))
    reader = form.reader()
    answer_message(reader.read_text(text, (), is_last=True))
    assert reader.has_called is whole


def test_three_protocols_tell_a_model_the_same() -> None:
    named = {"name": "f", "description": "d"}
    chat = {"tools": [TOLD], "tool_choice": {"type": "function", "function": {"name": "f"}}}
    flat = {
        "tools": [{"type": "function", **named, "parameters": SCHEMA, "strict": True}],
        "tool_choice": {"type": "function", "name": "f"},
        "parallel_tool_calls": True,
    }
    shaped = {
        "tools": [{**named, "input_schema": SCHEMA, "cache_control": {"type": "ephemeral"}}],
        "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": False},
    }
    uses = [
        read_tools(TypedBody(body), HERMES, dialect)
        for body, dialect in (
            (chat, CHAT_TOOLS), (flat, RESPONSES_TOOLS), (shaped, MESSAGES_TOOLS)
        )
    ]  # fmt: skip
    assert uses[0] == uses[1] == uses[2]
    assert uses[0] is not None
    assert uses[0].tools == [TOLD]
    words = {"auto": "auto", "any": "required", "none": "none"}
    for theirs, ours in words.items():
        one = read_tools(
            TypedBody({**shaped, "tool_choice": {"type": theirs}}), HERMES, MESSAGES_TOOLS
        )
        assert one == read(tools=[TOLD], tool_choice=ours)
    alone = {**shaped, "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}
    one = read_tools(TypedBody(alone), HERMES, MESSAGES_TOOLS)
    assert one is not None
    assert one.parallel is False


def test_a_function_may_have_the_name_of_a_choice() -> None:
    use = read(
        tools=[function("none"), function("f")],
        tool_choice={"type": "function", "function": {"name": "none"}},
    )
    assert '\\"f\\"' not in use.grammar.text


@pytest.mark.parametrize(
    ("dialect", "body", "param"),
    [
        (RESPONSES_TOOLS, {"tools": [function()]}, "tools[0].function"),
        (RESPONSES_TOOLS, {"tools": [{"type": "function"}]}, "tools[0].name"),
        (MESSAGES_TOOLS, {"tools": [{"type": "bash_20250124", "name": "b"}]}, "tools[0].type"),
        (MESSAGES_TOOLS, {"tools": [{"name": "f", "input_schema": 1}]}, "tools[0].input_schema"),
        (MESSAGES_TOOLS, {"tools": [{"name": "f", "parameters": {}}]}, "tools[0].parameters"),
        (MESSAGES_TOOLS, {"tools": [{"name": "f"}], "tool_choice": "any"}, "tool_choice"),
        (MESSAGES_TOOLS, {"tools": [{"name": "f"}], "tool_choice": {"type": []}},
         "tool_choice.type"),
        (MESSAGES_TOOLS, {"tools": [{"name": "f"}],
                          "tool_choice": {"type": "auto", "name": "f"}}, "tool_choice.name"),
        (MESSAGES_TOOLS, {"tools": [{"name": "f"}],
                          "tool_choice": {"type": "tool", "name": "f", "x": 1}}, "tool_choice.x"),
        (RESPONSES_TOOLS, {"tools": [{"type": "function", "name": "f"}],
                           "tool_choice": {"type": "function", "name": "f", "x": 1}},
         "tool_choice.x"),
        (RESPONSES_TOOLS, {"tools": [{"type": "function", "name": "f"}],
                           "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
    ],
)  # fmt: skip
def test_refused_in_its_own_words(dialect: Any, body: dict, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read_tools(TypedBody(body), HERMES, dialect)
    assert caught.value.param == param


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


def test_a_call_that_is_cut_off_says_so_in_each_protocol(play: Any) -> None:
    async def test(here: Served) -> None:
        told = {"name": "population", "parameters": SCHEMA}
        ask = {"tools": [{"type": "function", "function": told}], "tool_choice": "required"}
        choice = (await here.chat(**ask, max_tokens=12)).json()["choices"][0]
        assert choice["finish_reason"] == "length"
        (call,) = choice["message"]["tool_calls"]
        assert call["function"]["arguments"].startswith("{")
        with pytest.raises(json.JSONDecodeError):
            json.loads(call["function"]["arguments"])
        early = (await here.chat(**ask, max_tokens=6)).json()["choices"][0]
        assert "tool_calls" not in early["message"]
        assert early["message"]["content"]
        flat = {"tools": [{"type": "function", **told}], "tool_choice": "required"}
        answer = (await here.respond(**flat, max_output_tokens=16)).json()
        assert answer["status"] == answer["output"][-1]["status"] == "incomplete"
        shaped = {"name": "population", "input_schema": SCHEMA}
        message = (
            await here.messages(tools=[shaped], tool_choice={"type": "any"}, max_tokens=12)
        ).json()
        assert message["stop_reason"] == "max_tokens"
        assert message["content"][-1]["input"] == {}

    play(test)
