"""Responses that are made after the answer: polled, read again, stopped, failed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from responses import (
    INCLUDE,
    RESPONSES,
    check_error,
    checked,
    events,
    replayed,
    text_of,
)
from served import Served


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
        for query, said in (
            ("stream=true&starting_after=x", "must be an integer between -1 and"),
            ("starting_after=3", "needs stream=true"),
            ("stream=false&starting_after=-1", "needs stream=true"),
        ):
            refused = await here.http.get(f"{path}?{query}")
            assert said in check_error(refused, 400, "starting_after")

    play(test)


async def begin(here: Served, *, max_output_tokens: int) -> asyncio.Task[Any]:
    """Somebody reads a background stream that runs by now."""
    ask = {"background": True, "stream": True, "ignore_eos": True}
    reader = asyncio.create_task(here.respond(**ask, max_output_tokens=max_output_tokens))
    while not here.engine.engine.requests.states:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    return reader


def test_who_reads_a_background_stream_does_not_keep_it_alive(play: Any) -> None:
    async def test(here: Served) -> None:
        reader = await begin(here, max_output_tokens=200)
        reader.cancel()
        (response_id,) = here.state.responses._entries
        path = f"{RESPONSES}/{response_id}"
        found = events(await here.http.get(f"{path}?stream=true"))
        assert found[-1]["type"] == "response.incomplete"
        assert found[-1]["response"]["usage"]["output_tokens"] == 200

    play(test, step_s=0.001)


def test_a_background_stream_that_is_cancelled_ends(play: Any) -> None:
    async def test(here: Served) -> None:
        reader = await begin(here, max_output_tokens=900)
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
