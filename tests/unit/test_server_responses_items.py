"""What is thought, said and called in a response is an item each, and comes back as one."""

from __future__ import annotations

import json
from typing import Any

from responses import (
    CALL,
    INCLUDE,
    RESPONSES,
    THINKS,
    WEATHER,
    check_error,
    checked,
    events,
    kinds_of,
    replayed,
    text_of,
    without_ids,
)
from served import Served


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
        assert answer.headers["x-octavo-ignored"] == "tools[].strict, tools.web_search"
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
        for query in (
            "limit=0", "limit=x", "after=nothing", "colour=red", "order=up", "order=",
            "limit=5&limit=6", "limit[]=5",
        ):  # fmt: skip
            check_error(await here.http.get(f"{path}?{query}"), 400, query.partition("=")[0])
        check_error(await here.http.get(f"{RESPONSES}/{kept['id']}?stream=yes"), 400, "stream")
        # What clients have included is not here; a query of any length is answered as one.
        everything = "&".join(["include[]=a", "include=b"] * 200)
        assert (await here.http.get(f"{path}?{everything}")).status_code == 200
        check_error(await here.http.get(f"{path}?{'limit=5&' * 200}"), 400, "limit")

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
