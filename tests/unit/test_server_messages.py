"""Anthropic's protocol over a loopback engine: shapes, order, errors, disconnects."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from octavo.server.edge import ApiKeys
from octavo.server.endpoints import Endpoint
from served import HELLO, Served


def events(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.headers["content-type"].startswith("text/event-stream")
    found = []
    for part in response.text.strip().split("\n\n"):
        name, data = part.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def check_error(response: httpx.Response, status: int, kind: str, named: str) -> None:
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"type", "error", "request_id"}
    assert body["type"] == "error"
    assert body["request_id"] == response.headers["request-id"] == response.headers["x-request-id"]
    assert set(body["error"]) == {"type", "message"}
    assert body["error"]["type"] == kind
    assert named in body["error"]["message"]


def test_a_message_and_its_stream_are_one(play: Any) -> None:
    async def test(here: Served) -> None:
        whole = (await here.messages(max_tokens=20)).json()
        assert whole["type"] == "message"
        assert whole["role"] == "assistant"
        assert whole["stop_reason"] == "max_tokens"
        (block,) = whole["content"]
        usage = whole["usage"]
        assert usage["output_tokens"] == 20
        start, opened, *deltas, closed, end, stop = events(
            await here.messages(max_tokens=20, stream=True)
        )
        assert [event["type"] for event in (start, opened, closed, end, stop)] == [
            "message_start", "content_block_start", "content_block_stop", "message_delta",
            "message_stop",
        ]  # fmt: skip
        assert {event["type"] for event in deltas} == {"content_block_delta"}
        assert len(deltas) > 1
        assert "".join(event["delta"]["text"] for event in deltas) == block["text"]
        assert start["message"]["content"] == []
        assert start["message"]["stop_reason"] is None
        assert start["message"]["usage"]["output_tokens"] == 0
        assert end["delta"]["stop_reason"] == "max_tokens"
        assert end["usage"]["output_tokens"] == 20

    play(test)


def test_it_is_the_chat_of_the_same_messages(play: Any) -> None:
    """The twin: both protocols ask the engine for the same tokens."""

    async def test(here: Served) -> None:
        turns = [{"role": "user", "content": "One."}, {"role": "assistant", "content": "Two."}]
        both = {"seed": 3, "max_tokens": 12}
        blocks = [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}]
        message = await here.messages(
            system=blocks, messages=[*turns, *HELLO], stop_sequences=["zzz"], **both
        )
        system = {"role": "system", "content": "Be\nbrief."}
        chat = await here.chat(messages=[system, *turns, *HELLO], stop=["zzz"], **both)
        text = chat.json()["choices"][0]["message"]["content"]
        assert message.json()["content"][0]["text"] == text
        counted = await here.ask(
            Endpoint.COUNT_TOKENS, system=blocks, messages=[*turns, *HELLO], model="alias"
        )
        assert counted.json() == {"input_tokens": chat.json()["usage"]["prompt_tokens"]}

    play(test)


def test_the_billing_header_does_not_part_prompts(play: Any) -> None:
    async def test(here: Served) -> None:
        rest = {
            "type": "text",
            "text": "You are brief. " * 20,
            "cache_control": {"type": "ephemeral"},
        }

        async def ask(number: int) -> httpx.Response:
            billing = {"type": "text", "text": f"x-anthropic-billing-header: n={number};"}
            return await here.messages(system=[billing, rest])

        first, second = await ask(1), await ask(2)
        ignored = "system[].cache_control, system.x-anthropic-billing-header"
        assert first.headers["x-octavo-ignored"] == ignored
        cold, warm = first.json()["usage"], second.json()["usage"]
        assert cold["cache_read_input_tokens"] == 0
        assert warm["input_tokens"] < 16  # of a block
        assert warm["cache_read_input_tokens"] == cold["input_tokens"] - warm["input_tokens"]
        assert first.json()["content"] == second.json()["content"]

    play(test)


def test_stop_reasons(play: Any) -> None:
    async def test(here: Served) -> None:
        text = (await here.messages(max_tokens=40)).json()["content"][0]["text"]
        stop = text[20:24]
        stopped = (await here.messages(max_tokens=40, stop_sequences=[stop])).json()
        assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", stop)
        assert stopped["content"][0]["text"] == text[: text.index(stop)]
        full = (await here.messages(max_tokens=32_000, ignore_eos=True)).json()
        assert full["stop_reason"] == "model_context_window_exceeded"
        used = full["usage"]
        held = (used["input_tokens"], used["cache_read_input_tokens"], used["output_tokens"])
        assert sum(held) == 256
        eos = here.state.tokenizer.eos_token_ids[0]
        ended = (await here.messages(logit_bias={str(eos): 100}, temperature=0)).json()
        assert ended["stop_reason"] in {"end_turn", "max_tokens"}

    play(test, max_model_len=256)


def test_an_empty_answer_has_no_block(play: Any) -> None:
    async def test(here: Served) -> None:
        text = (await here.messages()).json()["content"][0]["text"]
        empty = (await here.messages(stop_sequences=[text[0]])).json()
        assert empty["content"] == []
        assert empty["stop_reason"] == "stop_sequence"
        kinds = [
            e["type"] for e in events(await here.messages(stop_sequences=[text[0]], stream=True))
        ]
        assert kinds == ["message_start", "message_delta", "message_stop"]

    play(test)


def test_the_assistants_last_message_is_continued(play: Any) -> None:
    async def test(here: Served) -> None:
        begun = [*HELLO, {"role": "assistant", "content": "Well, I <|im_end|> "}]
        counted = await here.ask(Endpoint.COUNT_TOKENS, messages=begun)
        prompt = here.state.template().render(HELLO)
        tokenizer = here.state.tokenizer
        ids = tokenizer.encode_rendered(prompt)
        assert counted.json()["input_tokens"] > len(ids)
        told = here.state.template().render(begun, continue_final=True)
        assert told == prompt + "Well, I <|im_end|> "
        encoded = here.state.template().encode(begun, continue_final=True)
        assert tokenizer.decode(encoded, skip_special_tokens=False) == told
        end = tokenizer.special_tokens["<|im_end|>"]
        assert encoded.count(end) == ids.count(end)

    play(test)


SCHEMA = {
    "type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"],
    "additionalProperties": False,
}  # fmt: skip
WEATHER = {"name": "weather", "description": "Of a city.", "input_schema": SCHEMA}
CALLS = {"tools": [WEATHER], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
THINKS = {"structured_outputs": {"choice": ["<think>\nHm. So.\n</think>\n\nHello."]}}


def replayed(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The content that a client gathers from events, which must stand in the protocol's order."""
    blocks: list[dict[str, Any]] = []
    is_open = False
    for event in found:
        kind = event["type"]
        if kind == "content_block_start":
            assert not is_open
            assert event["index"] == len(blocks)
            blocks.append({**event["content_block"], "partial_json": ""})
            is_open = True
        elif kind == "content_block_delta":
            assert event["index"] == len(blocks) - 1
            assert is_open
            delta = event["delta"]
            key = {
                "text_delta": "text", "thinking_delta": "thinking",
                "input_json_delta": "partial_json",
            }[delta["type"]]  # fmt: skip
            blocks[-1][key] += delta[key]
        elif kind == "content_block_stop":
            assert (event["index"], is_open) == (len(blocks) - 1, True)
            is_open = False
    assert not is_open
    for block in blocks:
        arguments = block.pop("partial_json")
        if block["type"] == "tool_use":
            block["input"] = json.loads(arguments)
    return blocks


def without_ids(blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in block.items() if key != "id"} for block in blocks]


def test_thinking_is_a_block_of_its_own(play: Any) -> None:
    async def test(here: Served) -> None:
        whole = (await here.messages(**THINKS, max_tokens=40)).json()
        assert whole["content"] == [
            {"type": "thinking", "thinking": "Hm. So.", "signature": ""},
            {"type": "text", "text": "Hello.", "citations": None},
        ]
        assert whole["stop_reason"] == "end_turn"
        thinking = whole["usage"]["output_tokens_details"]["thinking_tokens"]
        assert 5 < thinking < whole["usage"]["output_tokens"]
        found = events(await here.messages(**THINKS, max_tokens=40, stream=True))
        assert replayed(found) == whole["content"]
        assert found[-2]["usage"]["output_tokens_details"]["thinking_tokens"] == thinking
        cut = (await here.messages(**THINKS, max_tokens=3)).json()
        assert [block["type"] for block in cut["content"]] in ([], ["thinking"], ["text"])

    play(test)


def test_a_call_is_a_block_of_its_own(play: Any) -> None:
    async def test(here: Served) -> None:
        whole = (await here.messages(**CALLS, max_tokens=60)).json()
        (block,) = whole["content"]
        assert block["type"] == "tool_use"
        assert block["name"] == "weather"
        assert block["input"]["city"] in ("Oslo", "Rome")
        assert whole["stop_reason"] == "tool_use"
        found = events(await here.messages(**CALLS, max_tokens=60, stream=True))
        assert without_ids(replayed(found)) == without_ids(whole["content"])
        kinds = [event["delta"]["type"] for event in found if event["type"].endswith("block_delta")]
        assert set(kinds) == {"input_json_delta"}
        assert found[-2]["delta"]["stop_reason"] == "tool_use"
        cut = (await here.messages(**CALLS, max_tokens=12)).json()
        assert cut["stop_reason"] == "max_tokens"
        none = await here.messages(**{**CALLS, "tool_choice": {"type": "none"}})
        assert none.json()["content"] == (await here.messages()).json()["content"]

    play(test)


def test_calls_and_their_results_are_those_of_a_chat(play: Any) -> None:
    async def test(here: Served) -> None:
        told = {"type": "tool_result", "tool_use_id": "t1", "content": "Rain."}
        failed = {
            "type": "tool_result", "tool_use_id": "t2", "is_error": True,
            "content": [{"type": "text", "text": "No"}, {"type": "text", "text": "city."}],
        }  # fmt: skip
        asked = [
            {"type": "thinking", "thinking": "Hm.", "signature": ""},
            {"type": "text", "text": "Let me see."},
            {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}},
            {"type": "tool_use", "id": "t2", "name": "weather", "input": {}},
        ]
        talk = [
            *HELLO, {"role": "assistant", "content": asked},
            {"role": "user", "content": [told, failed, TEXT]},
        ]  # fmt: skip
        calls = [
            {"id": block["id"], "type": "function",
             "function": {"name": "weather", "arguments": json.dumps(block["input"])}}
            for block in asked[2:]
        ]  # fmt: skip
        chat = [
            *HELLO,
            {"role": "assistant", "content": "Let me see.", "reasoning_content": "Hm.",
             "tool_calls": calls},
            {"role": "tool", "tool_call_id": "t1", "content": "Rain."},
            {"role": "tool", "tool_call_id": "t2", "content": "Error: No\ncity."},
            {"role": "user", "content": "x"},
        ]  # fmt: skip
        function = {"name": "weather", "description": "Of a city.", "parameters": SCHEMA}
        tools = [{"type": "function", "function": function}]
        theirs = (await here.chat(messages=chat, tools=tools, max_tokens=9)).json()
        ours = (await here.messages(messages=talk, tools=[WEATHER], max_tokens=9)).json()
        assert ours["content"][0]["text"] == theirs["choices"][0]["message"]["content"]
        counted = await here.ask(Endpoint.COUNT_TOKENS, messages=talk, tools=[WEATHER])
        assert counted.json()["input_tokens"] == theirs["usage"]["prompt_tokens"]
        empty = {"type": "tool_result", "tool_use_id": "t1"}
        talk[-1] = {"role": "user", "content": [empty]}
        assert (await here.messages(messages=talk, thinking={"type": "adaptive"})).is_success

    play(test)


def said(role: str, **block: Any) -> dict[str, Any]:
    return {"messages": [*HELLO, {"role": role, "content": [block]}]}


TEXT = {"type": "text", "text": "x"}


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"max_tokens": None}, "max_tokens must be an integer, not null"),
        ({"max_tokens": 0}, "max_tokens must be between 1"),
        ({"temperature": -1}, "temperature must be"),
        ({"stop_sequences": ["x"] * 99}, "stop_sequences has 99 entries; the limit is 16"),
        ({"stop_sequences": [""]}, "stop_sequences[0] must not be empty"),
        ({"stop_sequences": [1]}, "stop_sequences[0] must be a string, not an integer"),
        ({"messages": []}, "messages must not be empty"),
        ({"messages": [1]}, "messages[0] must be"),
        ({"messages": HELLO * 5000}, "messages has 5000 entries; the limit is 4096"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": [], "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]},
         "messages[0].content[0].type must be one of text, tool_result, not"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]},
         "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": "x", "name": "me"}]}, "messages[0].name"),
        ({"messages": [{"role": "user", "content": [{**TEXT, "citations": [1]}]}]},
         "messages[0].content[0].citations"),
        ({"system": 5}, "system must be"),
        (said("user", type="tool_use"), 'type must be one of text, tool_result, not "tool_use"'),
        (said("assistant", type="redacted_thinking"), "must be one of text, thinking, tool_use"),
        (said("assistant", type="thinking"), "messages[1].content[0].thinking"),
        (said("assistant", type="tool_use", id="t", name="f"), "messages[1].content[0].input"),
        (said("assistant", type="tool_use", id="t", name="f", input={}), "the last message calls"),
        (said("assistant", type="tool_use", id="", name="f", input={}), "must not be empty"),
        (said("user", type="tool_result"), "messages[1].content[0].tool_use_id"),
        (said("user", type="tool_result", tool_use_id="t", content=[{"type": "image"}]),
         "messages[1].content[0].content[0].type must be text, not"),
        (said("user", type="tool_result", tool_use_id="t", is_error=1), "is_error"),
        ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, "tools[0].type"),
        ({"thinking": {"type": "on"}}, "thinking.type"),
        ({"system": [{"type": "text", "text": 5}]}, "system[0].text"),
        ({"messages": [{"role": "user", "content": "word " * 2000}]}, "the model's context"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_its_own_shape(play: Any, body: Any, named: str) -> None:
    async def test(here: Served) -> None:
        check_error(await here.messages(**body), 400, "invalid_request_error", named)
        assert not here.engine.engine.requests.states

    play(test)


def test_the_edge_speaks_it_too(play: Any) -> None:
    async def test(here: Served) -> None:
        check_error(await here.messages(model="claude"), 404, "not_found_error", "claude")
        check_error(await here.http.get("/v1/messages"), 405, "invalid_request_error", "POST")
        here.state.api_keys = ApiKeys(["alpha"])
        check_error(await here.messages(), 401, "authentication_error", "x-api-key")
        here.http.headers["x-api-key"] = "alpha"
        assert (await here.messages()).status_code == 200
        here.http.headers["x-api-key"] = "beta"
        check_error(await here.messages(), 401, "authentication_error", "x-api-key")
        here.http.headers["authorization"] = "Bearer alpha"
        assert (await here.messages()).status_code == 200
        here.state.draining = True
        refused = await here.messages()
        check_error(refused, 503, "overloaded_error", "shutting down")
        assert refused.headers["retry-after"]

    play(test)


def test_a_stream_that_fails_ends_with_its_error(play: Any) -> None:
    async def test(here: Served) -> None:
        here.state.request_timeout_s = 0.15
        *_, last = events(await here.messages(stream=True, max_tokens=900, ignore_eos=True))
        assert last["type"] == "error"
        assert last["error"]["type"] == "timeout_error"

    play(test, step_s=0.01)
