"""The Responses protocol over a loopback engine: objects, order of events, the store, errors."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from openresponses_types import types as official
from pydantic import TypeAdapter

from octavo.server.edge import ApiKeys
from octavo.server.endpoints import Endpoint
from octavo.server.response_store import ResponseStore, StoredResponse
from served import PATHS, Served

RESPONSES = PATHS[Endpoint.RESPONSES]
RESOURCE = TypeAdapter(official.ResponseResource)
INCLUDE = {"include": ["message.output_text.logprobs"]}


def checked(response: httpx.Response) -> dict[str, Any]:
    """The body of a response, which is what the published types say."""
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    RESOURCE.validate_python(body)
    return body


def text_of(body: dict[str, Any]) -> str:
    (item,) = body["output"]
    (part,) = item["content"]
    text: str = part["text"]
    return text


def events(response: httpx.Response, *, first: int = 0) -> list[dict[str, Any]]:
    assert response.headers["content-type"].startswith("text/event-stream")
    found = []
    for number, part in enumerate(response.text.strip().split("\n\n"), first):
        name, data = part.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
        assert found[-1]["sequence_number"] == number
    return found


def check_error(response: httpx.Response, status: int, param: str | None) -> str:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param
    message: str = error["message"]
    return message


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


THINKS = {"structured_outputs": {"choice": ["<think>\nHm. So.\n</think>\n\nHello."]}}
CALL = {
    "type": "function_call",
    "call_id": "c1",
    "name": "weather",
    "arguments": '{"city": "Oslo"}',
}
WEATHER: dict[str, Any] = {
    "type": "function", "name": "weather", "description": "Of a city.", "strict": True,
    "parameters": {
        "type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}},
        "required": ["city"], "additionalProperties": False,
    },
}  # fmt: skip


def replayed(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The output that a client gathers from events, each of them in its place."""
    output: list[dict[str, Any]] = []
    text = ""
    for event in found:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert event["output_index"] == len(output)
            assert event["item"]["status"] == "in_progress"
            output.append(event["item"])
            text = ""
            continue
        if "output_index" in event:
            assert event["output_index"] == len(output) - 1
            assert event.get("item_id", output[-1]["id"]) == output[-1]["id"]
        if kind.endswith(".delta"):
            text += event["delta"]
        elif kind in ("output_text.done", "reasoning_text.done"):
            assert event["text"] == text
        elif kind == "function_call_arguments.done":
            assert (event["arguments"], event["name"]) == (text, output[-1]["name"])
        elif kind == "content_part.done":
            assert event["part"]["text"] == text
        elif kind == "output_item.done":
            output[-1] = event["item"]
    return output


def without_ids(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in output]


def kinds_of(found: list[dict[str, Any]]) -> list[str]:
    """The events' types, a run of deltas as one."""
    kinds = [event["type"].removeprefix("response.") for event in found]
    return [k for i, k in enumerate(kinds) if not i or k != kinds[i - 1]]


def test_reasoning_is_an_item_of_its_own(play: Any) -> None:
    async def test(here: Served) -> None:
        ask = {**THINKS, **INCLUDE, "max_output_tokens": 40}
        whole = checked(await here.respond(**ask))
        reasoning, message = whole["output"]
        assert reasoning["content"] == [{"type": "reasoning_text", "text": "Hm. So."}]
        assert reasoning["summary"] == []
        assert message["content"][0]["text"] == "Hello."
        counted = whole["usage"]["output_tokens_details"]["reasoning_tokens"]
        logprobs = message["content"][0]["logprobs"]
        assert counted + len(logprobs) == whole["usage"]["output_tokens"]
        found = events(await here.respond(**ask, stream=True))
        assert without_ids(replayed(found)) == without_ids(whole["output"])
        assert replayed(found) == found[-1]["response"]["output"]
        assert kinds_of(found) == [
            "created", "in_progress",
            "output_item.added", "content_part.added", "reasoning_text.delta",
            "reasoning_text.done", "content_part.done", "output_item.done",
            "output_item.added", "content_part.added", "output_text.delta",
            "output_text.done", "content_part.done", "output_item.done", "completed",
        ]  # fmt: skip
        told = [e for event in found for e in event.get("logprobs", ()) if "delta" in event]
        assert told == logprobs
        after = checked(await here.respond(input="So?", previous_response_id=whole["id"]))
        items = (await here.http.get(f"{RESPONSES}/{after['id']}/input_items?order=asc")).json()
        assert [item["type"] for item in items["data"]] == [
            "message", "reasoning", "message", "message",
        ]  # fmt: skip
        cut = checked(await here.respond(**{**ask, "max_output_tokens": 3}))
        assert cut["status"] == cut["output"][-1]["status"] == "incomplete"

    play(test)


def test_a_call_is_an_item_of_its_own_and_its_result_comes_back(play: Any) -> None:
    async def test(here: Served) -> None:
        ask = {"tools": [WEATHER, {"type": "web_search"}], "tool_choice": "required",
               "parallel_tool_calls": False, "max_output_tokens": 60}  # fmt: skip
        answer = await here.respond(**ask)
        whole = checked(answer)
        assert answer.headers["x-octavo-ignored"] == "tools.web_search"
        assert whole["status"] == "completed"
        assert whole["tools"] == [WEATHER]
        (call,) = whole["output"]
        assert json.loads(call["arguments"])["city"] in ("Oslo", "Rome")
        found = events(await here.respond(**ask, stream=True))
        assert without_ids(replayed(found)) == without_ids(whole["output"])
        assert kinds_of(found) == [
            "created", "in_progress", "output_item.added", "function_call_arguments.delta",
            "function_call_arguments.done", "output_item.done", "completed",
        ]  # fmt: skip
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "Rain."}
        after = checked(await here.respond(input=[result], previous_response_id=whole["id"]))
        hello = {"role": "user", "content": "Hello there."}
        calls = [{"id": call["call_id"], "type": "function",
                  "function": {"name": "weather", "arguments": call["arguments"]}}]  # fmt: skip
        chat = await here.chat(
            messages=[
                hello, {"role": "assistant", "tool_calls": calls, "content": None},
                {"role": "tool", "tool_call_id": call["call_id"], "content": "Rain."},
            ]
        )  # fmt: skip
        assert text_of(after) == chat.json()["choices"][0]["message"]["content"]
        inline = checked(await here.respond(input=[hello, call, result]))
        assert text_of(inline) == text_of(after)
        # A call that was cut off is a text of the conversation that goes on from it.
        cut = checked(await here.respond(**{**ask, "max_output_tokens": 14}))
        assert cut["status"] == "incomplete"
        assert checked(await here.respond(input="So?", previous_response_id=cut["id"]))

    play(test)


def test_what_is_thought_said_and_called_is_one_message(play: Any) -> None:
    async def test(here: Served) -> None:
        thought = {"type": "reasoning", "id": "rs_1", "summary": [],
                   "content": [{"type": "reasoning_text", "text": "Hm."}]}  # fmt: skip
        said = {"type": "message", "role": "assistant", "content": "Let me see."}
        items = [{"role": "user", "content": "Hi"}, thought, said, CALL, {**CALL, "call_id": "c2"},
                 {"type": "function_call_output", "call_id": "c1", "output": "Rain."}]  # fmt: skip
        kept = checked(await here.respond(input=items))
        entry = here.state.responses.get(kept["id"], "default")
        assert [message["role"] for message in entry.messages] == [
            "user", "assistant", "tool", "assistant",
        ]  # fmt: skip
        one = entry.messages[1]
        assert (one["content"], one["reasoning_content"]) == ("Let me see.", "Hm.")
        assert [call["id"] for call in one["tool_calls"]] == ["c1", "c2"]

    play(test)


def test_input_items_are_listed_by_pages(play: Any) -> None:
    async def test(here: Served) -> None:
        turns = [{"role": "user", "content": str(number)} for number in range(25)]
        kept = checked(await here.respond(input=[*turns, {**CALL}, {**turns[0]}]))
        path = f"{RESPONSES}/{kept['id']}/input_items"
        newest = (await here.http.get(path)).json()
        assert len(newest["data"]) == 20
        assert newest["has_more"] is True
        assert newest["data"][1]["arguments"] == CALL["arguments"]
        assert newest["last_id"] == newest["data"][-1]["id"]
        rest = (await here.http.get(f"{path}?after={newest['last_id']}&limit=9")).json()
        assert rest["has_more"] is False
        oldest = (await here.http.get(f"{path}?order=asc&limit=100")).json()["data"]
        assert oldest == [*rest["data"][::-1], *newest["data"][::-1]]
        assert oldest[0]["content"] == [{"type": "input_text", "text": "0"}]
        for query in ("limit=0", "limit=x", "after=nothing", "colour=red"):
            check_error(await here.http.get(f"{path}?{query}"), 400, query.partition("=")[0])

    play(test)


def test_a_stream_in_the_background_can_be_read_again_from_anywhere(play: Any) -> None:
    async def test(here: Served) -> None:
        ask = {"background": True, "stream": True, "max_output_tokens": 30, **INCLUDE}
        found = events(await here.respond(**ask))
        assert found[0]["response"]["status"] == "queued"
        last = found[-1]["response"]
        path = f"{RESPONSES}/{last['id']}"
        assert checked(await here.http.get(path)) == last
        assert replayed(found) == last["output"]
        assert events(await here.http.get(f"{path}?stream=true")) == found
        for after in (0, 7, len(found) - 2):
            again = await here.http.get(f"{path}?stream=true&starting_after={after}")
            assert events(again, first=after + 1) == found[after + 1 :]
        (entry,) = here.state.responses._entries.values()
        assert here.state.responses.num_bytes == entry.num_bytes
        assert entry.num_bytes > len(str(found))
        nothing = await here.http.get(f"{path}?stream=true&starting_after={len(found)}")
        assert nothing.status_code == 200
        assert "data:" not in nothing.text
        check_error(await here.http.get(f"{path}?starting_after=x"), 400, "starting_after")

    play(test)


def test_who_reads_a_background_stream_does_not_keep_it_alive(play: Any) -> None:
    async def test(here: Served) -> None:
        ask = {"background": True, "stream": True, "max_output_tokens": 200, "ignore_eos": True}
        reader = asyncio.create_task(here.respond(**ask))
        while not here.engine.engine.requests.states:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        reader.cancel()
        (response_id,) = here.state.responses._entries
        path = f"{RESPONSES}/{response_id}"
        found = events(await here.http.get(f"{path}?stream=true"))
        assert found[-1]["type"] == "response.incomplete"
        assert found[-1]["response"]["usage"]["output_tokens"] == 200

    play(test, step_s=0.001)


def test_a_background_stream_that_is_cancelled_ends(play: Any) -> None:
    async def test(here: Served) -> None:
        ask = {"background": True, "stream": True, "max_output_tokens": 900, "ignore_eos": True}
        reader = asyncio.create_task(here.respond(**ask))
        while not here.engine.engine.requests.states:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        (response_id,) = here.state.responses._entries
        stopped = await here.http.post(f"{RESPONSES}/{response_id}/cancel")
        assert checked(stopped)["status"] == "cancelled"
        assert events(await reader)[0]["type"] == "response.created"
        assert here.state.responses.num_bytes == sum(
            one.num_bytes for one in here.state.responses._entries.values()
        )

    play(test, step_s=0.001)


_RUNS = {"queued", "in_progress"}


async def ended(here: Served, path: str) -> dict[str, Any]:
    while (body := checked(await here.http.get(path)))["status"] in _RUNS:  # noqa: ASYNC110
        await asyncio.sleep(0)
    return body


def test_a_background_response_is_made_after_it_was_promised(play: Any) -> None:
    async def test(here: Served) -> None:
        now = checked(await here.respond())
        queued = checked(await here.respond(background=True))
        assert queued["status"] == "queued"
        assert queued["output"] == []
        check_error(
            await here.respond(previous_response_id=queued["id"]), 400, "previous_response_id"
        )
        body = await ended(here, f"{RESPONSES}/{queued['id']}")
        assert text_of(body) == text_of(now)
        assert body["background"] is True
        again = await here.http.post(f"{RESPONSES}/{queued['id']}/cancel")
        assert checked(again) == body
        check_error(await here.http.post(f"{RESPONSES}/{now['id']}/cancel"), 400, "response_id")

    play(test)


@pytest.mark.parametrize("verb", ["cancel", "delete"])
def test_what_runs_in_the_background_can_be_stopped(play: Any, verb: str) -> None:
    async def test(here: Served) -> None:
        queued = checked(
            await here.respond(background=True, max_output_tokens=900, ignore_eos=True)
        )
        path = f"{RESPONSES}/{queued['id']}"
        while not here.engine.engine.requests.states:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        if verb == "cancel":
            assert checked(await here.http.post(f"{path}/cancel"))["status"] == "cancelled"
            assert checked(await here.http.get(path))["status"] == "cancelled"
        else:
            await here.http.delete(path)
            check_error(await here.http.get(path), 404, "response_id")
        while here.engine.engine.requests.states or here.client.num_active:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert len(here.state.responses) == (verb == "cancel")

    play(test, step_s=0.001)


def test_a_background_response_that_fails_says_so(play: Any) -> None:
    async def test(here: Served) -> None:
        here.state.request_timeout_s = 0.1
        queued = checked(
            await here.respond(background=True, max_output_tokens=900, ignore_eos=True)
        )
        body = await ended(here, f"{RESPONSES}/{queued['id']}")
        assert body["status"] == "failed"
        assert body["error"]["code"] == "server_error"
        assert "deadline" in body["error"]["message"]

    play(test, step_s=0.01)


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
        ({"input": []}, "input", "input must be"),
        ({"input": [1]}, "input[0]", "must be an object"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role", "must be one of"),
        ({"input": [{"role": "user"}]}, "input[0].content", "must be a text"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
         "input[0].content[0]", "only text is read"),
        ({"input": [{"role": "user", "content": [{"type": [1], "text": "x"}]}]},
         "input[0].content[0]", "only text is read"),
        ({"input": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
         "input[0].content[0].text", "must be a string"),
        ({"input": [{"role": "user", "content": "x", "name": "me"}]}, "input[0].name", "supported"),
        ({"input": [{"type": "web_search_call"}]}, "input[0]", "web_search_call"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id", "must"),
        ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output", "must"),
        ({"input": [{**CALL, "arguments": "{"}]}, "input[0].arguments", "a JSON object"),
        ({"input": [{**CALL, "extra": 1}]}, "input[0].extra", "not supported"),
        ({"input": [{"type": "reasoning", "summary": [], "mood": 1}]}, "input[0].mood", "not supp"),
        ({"input": [{"type": {}}]}, "input[0]", "not supported"),
        ({"input": [{"role": "user", "content": "x"}] * 5000}, "input", "the limit is 4096"),
        ({"input": "word " * 2000}, "input", "the model's context"),
        ({"max_output_tokens": 0}, "max_output_tokens", "max_output_tokens must be"),
        ({"max_output_tokens": 5000}, "max_output_tokens", "max_output_tokens is 5000"),
        ({"top_logprobs": 3}, "top_logprobs", "needs include"),
        ({**INCLUDE, "top_logprobs": 21}, "top_logprobs", "between 0 and 20"),
        ({"include": ["file_search_call.results"]}, "include", "file_search_call.results"),
        ({"metadata": {"a": 1}}, "metadata", "at most 16 strings"),
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
        assert named in check_error(await here.respond(**body), 400, param)
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


def test_tools_of_other_hosts_are_skipped_and_named(play: Any) -> None:
    async def test(here: Served) -> None:
        answer = await here.respond(tools=[{"type": "web_search"}, {"type": "mcp"}])
        assert checked(answer)["tools"] == []
        assert answer.headers["x-octavo-ignored"] == "tools.web_search, tools.mcp"
        many = [{"type": f"odd{number % 50}\r\n"} for number in range(2000)]
        named = (await here.respond(tools=many)).headers["x-octavo-ignored"]
        assert named.startswith("tools.odd0??, tools.odd1??, ")
        assert named.endswith(", and 18 more")
        assert len(named) < 1000

    play(test)


# -- the store -----------------------------------------------------------------------------------


def entry(text: str = "x", *, running: bool = False) -> StoredResponse:
    status = "in_progress" if running else "completed"
    return StoredResponse(
        owner="", body={"status": status}, messages=[{"role": "user", "content": text}]
    )


def test_the_oldest_make_room_and_the_sum_holds() -> None:
    store = ResponseStore(max_responses=3, max_bytes=4000)
    for number in range(5):
        store.put(str(number), entry())
    assert [name for name in "01234" if present(store, name)] == ["2", "3", "4"]
    store.put("2", entry("y" * 10))
    store.put("5", entry())
    assert [name for name in "012345" if present(store, name)] == ["2", "4", "5"]
    store.put("6", entry("z" * 900))
    assert store.num_bytes == sum(
        store.get(n, "").num_bytes for n in "0123456" if present(store, n)
    )
    assert store.num_bytes <= 4000
    for name in "0123456":
        if present(store, name):
            store.delete(name, "")
    assert (len(store), store.num_bytes) == (0, 0)


def present(store: ResponseStore, name: str) -> bool:
    try:
        store.get(name, "")
    except Exception:
        return False
    return True


def test_what_runs_stays_and_is_bounded() -> None:
    from octavo.errors import OverloadedError
    from octavo.server.response_store import MAX_BACKGROUND

    store = ResponseStore(max_responses=2)
    for number in range(MAX_BACKGROUND):
        store.put(str(number), entry(running=True))
    assert len(store) == MAX_BACKGROUND
    with pytest.raises(OverloadedError, match="background"):
        store.put("more", entry(running=True))
    store.put("0", entry())
    assert not present(store, "0")
    store.put("more", entry(running=True))
