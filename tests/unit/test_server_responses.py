"""The Responses protocol over a loopback engine: objects, conversations, what is kept, errors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from octavo.server.edge import ApiKeys
from octavo.server.endpoints import Endpoint
from responses import (
    CALL,
    INCLUDE,
    RESOURCE,
    RESPONSES,
    WEATHER,
    check_error,
    checked,
    events,
    text_of,
)
from served import Served


def test_a_response_and_its_stream_are_one(play: Any) -> None:
    async def test(here: Served) -> None:
        whole = checked(await here.respond(max_output_tokens=12, **INCLUDE, top_logprobs=2))
        assert whole["status"] == "incomplete"
        assert whole["incomplete_details"] == {"reason": "max_output_tokens"}
        assert whole["usage"]["output_tokens"] == 12
        assert len(whole["output"][0]["content"][0]["logprobs"]) == 12
        found = events(
            await here.respond(max_output_tokens=12, **INCLUDE, top_logprobs=2, stream=True)
        )
        kinds = [event["type"].removeprefix("response.") for event in found]
        assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
        assert kinds[-4:] == [
            "output_text.done", "content_part.done", "output_item.done", "incomplete",
        ]  # fmt: skip
        deltas = found[4:-4]
        assert {event["type"] for event in deltas} == {"response.output_text.delta"}
        assert len(deltas) > 1
        assert "".join(event["delta"] for event in deltas) == text_of(whole)
        logprobs = [entry for event in deltas for entry in event["logprobs"]]
        assert logprobs == whole["output"][0]["content"][0]["logprobs"]
        last = found[-1]["response"]
        RESOURCE.validate_python(last)
        same = ("output", "usage", "id", "created_at", "completed_at", "timings")
        assert {k: v for k, v in last.items() if k not in same} == {
            k: v for k, v in whole.items() if k not in same
        }
        assert {event["item_id"] for event in found[3:-2]} == {last["output"][0]["id"]}
        assert found[-2]["item"] == last["output"][0]

    play(test)


def test_it_is_the_chat_of_the_same_messages(play: Any) -> None:
    """The twin: both protocols ask the engine for the same tokens."""

    async def test(here: Served) -> None:
        turns = [
            {"role": "developer", "content": "Be kind."},
            {"role": "user", "content": "One."},
            {"role": "assistant", "content": "Two."},
            {"role": "user", "content": "Three."},
        ]
        system = {"role": "system", "content": "Be brief."}
        chat = (await here.chat(messages=[system, *turns], max_tokens=12)).json()
        parts = [{"type": "input_text", "text": "One."}]
        items = [turns[0], {**turns[1], "type": "message", "content": parts}, *turns[2:]]
        asked = {"input": items, "instructions": "Be brief."}
        body = checked(await here.respond(**asked, max_output_tokens=12))
        assert text_of(body) == chat["choices"][0]["message"]["content"]
        counted = (await here.ask(Endpoint.INPUT_TOKENS, **asked)).json()
        assert counted["input_tokens"] == chat["usage"]["prompt_tokens"]
        assert body["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]

    play(test)


def test_a_previous_response_is_continued_without_its_instructions(play: Any) -> None:
    async def test(here: Served) -> None:
        first = checked(await here.respond(input="One.", instructions="Be brief."))
        second = checked(await here.respond(input="Two.", previous_response_id=first["id"], seed=5))
        third = checked(
            await here.respond(input="Three.", previous_response_id=second["id"], seed=6)
        )
        turns = [
            {"role": "user", "content": "One."},
            {"role": "assistant", "content": text_of(first)},
            {"role": "user", "content": "Two."},
            {"role": "assistant", "content": text_of(second)},
            {"role": "user", "content": "Three."},
        ]
        alone = (await here.chat(messages=turns, seed=6)).json()
        assert text_of(third) == alone["choices"][0]["message"]["content"]
        assert third["previous_response_id"] == second["id"]

    play(test)


def test_what_is_stored_can_be_read_and_deleted(play: Any) -> None:
    async def test(here: Served) -> None:
        kept = checked(await here.respond(metadata={"a": "b"}, user="me"))
        path = f"{RESPONSES}/{kept['id']}"
        assert checked(await here.http.get(path)) == kept
        assert kept["metadata"] == {"a": "b"}
        streamed = events(await here.respond(stream=True))[-1]["response"]
        assert checked(await here.http.get(f"{RESPONSES}/{streamed['id']}")) == streamed
        assert (await here.http.delete(path)).json()["deleted"] is True
        check_error(await here.http.get(path), 404, "response_id")
        check_error(await here.http.delete(path), 404, "response_id")
        check_error(
            await here.respond(previous_response_id=kept["id"]), 400, "previous_response_id"
        )
        lost = checked(await here.respond(store=False))
        check_error(await here.http.get(f"{RESPONSES}/{lost['id']}"), 404, "response_id")
        check_error(await here.http.get(f"{RESPONSES}/{streamed['id']}?stream=true"), 400, "stream")

    play(test)


def test_a_tenant_sees_its_own_responses_only(play: Any) -> None:
    async def test(here: Served) -> None:
        here.state.api_keys = ApiKeys(["a=alpha", "b=beta", "a=another"])
        here.http.headers["authorization"] = "Bearer alpha"
        kept = checked(await here.respond())
        path = f"{RESPONSES}/{kept['id']}"
        here.http.headers["authorization"] = "Bearer beta"
        for answer in (
            await here.http.get(path), await here.http.get(f"{path}/input_items"),
            await here.http.get(f"{path}?stream=true"), await here.http.post(f"{path}/cancel"),
            await here.http.delete(path),
        ):  # fmt: skip
            check_error(answer, 404, "response_id")
        check_error(
            await here.respond(previous_response_id=kept["id"]), 400, "previous_response_id"
        )
        for key in ("alpha", "another"):
            here.http.headers["authorization"] = f"Bearer {key}"
            assert checked(await here.http.get(path)) == kept

    play(test)


def test_a_stream_that_fails_ends_with_a_failed_response(play: Any) -> None:
    async def test(here: Served) -> None:
        here.state.request_timeout_s = 0.15
        found = events(await here.respond(stream=True, max_output_tokens=900, ignore_eos=True))
        last = found[-1]
        assert last["type"] == "response.failed"
        RESOURCE.validate_python(last["response"])
        sent = "".join(event.get("delta", "") for event in found)
        assert text_of(last["response"]) == sent != ""

    play(test, step_s=0.01)


@pytest.mark.parametrize(
    ("body", "param", "named"),
    [
        ({"input": None}, "input", "input must be"),
        ({"input": []}, "input", "input must not be empty"),
        ({"input": [1]}, "input[0]", "must be an object"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role", "must be one of"),
        ({"input": [{"role": "user"}]}, "input[0].content", "must be a string or a list"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
         "input[0].content[0].type", "must be one of input_text"),
        ({"input": [{"role": "user", "content": [{"type": [1], "text": "x"}]}]},
         "input[0].content[0].type", "must be one of input_text"),
        ({"input": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
         "input[0].content[0].text", "must be a string"),
        ({"input": [{"role": "user", "content": "x", "name": "me"}]}, "input[0].name", "supported"),
        ({"input": [{"type": "web_search_call"}]}, "input[0].type", "web_search_call"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id", "must"),
        ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output", "must"),
        ({"input": [{**CALL, "arguments": "{"}]}, "input[0].arguments", "a JSON object"),
        ({"input": [{**CALL, "extra": 1}]}, "input[0].extra", "not supported"),
        ({"input": [{"type": "reasoning", "summary": [], "mood": 1}]}, "input[0].mood", "not supp"),
        ({"input": [{"type": {}}]}, "input[0].type", "must be one of message, "),
        ({"input": [{"role": "user", "content": "x"}] * 5000}, "input", "the limit is 4096"),
        ({"input": "word " * 2000}, "input", "the model's context"),
        ({"max_output_tokens": 0}, "max_output_tokens", "max_output_tokens must be"),
        ({"max_output_tokens": 5000}, "max_output_tokens", "max_output_tokens is 5000"),
        ({"top_logprobs": 3}, "top_logprobs", "needs include"),
        ({**INCLUDE, "top_logprobs": 21}, "top_logprobs", "between 0 and 20"),
        ({"include": ["file_search_call.results"]}, "include[0]", "file_search_call.results"),
        ({"metadata": {"a": 1}}, "metadata.a", "must be a string"),
        ({"background": True, "store": False}, "background", "needs store: true"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "no such response"),
        ({"tools": [{"type": "function", "name": "f g"}]}, "tools[0].name", "letters"),
        ({"tools": [WEATHER], **INCLUDE}, "include", "cannot be combined with tools"),
        ({"tool_choice": "required"}, "tool_choice", "needs tools"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort", "one of"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(play: Any, body: Any, param: str, named: str) -> None:
    async def test(here: Served) -> None:
        response = await here.respond(**body)
        assert named in check_error(response, 400, param)
        if param == "previous_response_id":
            assert response.json()["error"]["code"] == "response_not_found"
        assert not here.engine.engine.requests.states
        assert len(here.state.responses) == 0

    play(test)


def test_a_format_binds_the_text_and_is_repeated(play: Any) -> None:
    async def test(here: Served) -> None:
        schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"],
                  "additionalProperties": False}  # fmt: skip
        form = {"type": "json_schema", "name": "n", "schema": schema}
        # Unchecked: the published types know no schema here, the SDK wants it.
        body = (await here.respond(text={"format": form}, max_output_tokens=64)).json()
        assert set(json.loads(text_of(body))) == {"a"}
        assert body["status"] == "completed"
        assert body["text"]["format"]["schema"] == schema
        message = await here.messages(output_config={"format": form}, max_tokens=64)
        assert set(json.loads(message.json()["content"][0]["text"])) == {"a"}

    play(test)
