"""The pages of the engine, and how events are sent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from octavo.server.sse import OpenAIFraming
from served import Served, check_error, served

# -- the pages of the engine -------------------------------------------------------------------


def test_debug_pages_show_the_engine(play: Any) -> None:
    async def test(here: Served) -> None:
        assert (await here.http.get("/debug/requests")).json() == {}
        running = asyncio.create_task(here.chat(max_tokens=300, n=2))
        while not (requests := (await here.http.get("/debug/requests")).json()):
            await here.settle()
        (request,) = requests
        while len((kv := (await here.http.get("/debug/kv")).json())["groups"][0]["tables"]) < 2:
            await here.settle()
        assert kv["block_size"] == 16
        (group,) = kv["groups"]
        assert all(table.startswith(request) for table in group["tables"])
        tables = group["tables"]
        assert len(tables) == 2, "a branch each"
        for block in group["blocks"]:
            holders = {
                name: table["blocks"].index(block["block"])
                for name, table in tables.items()
                if block["block"] in table["blocks"]
            }
            assert sorted(block["owners"]) == sorted(holders)
            assert block["ref_count"] == len(holders)
            fills = [
                min(16, tables[name]["num_computed"] - 16 * at) for name, at in holders.items()
            ]
            assert block["fill"] == max(fills, default=block["fill"])
        ledger = kv["ledger"]
        states = {name: count for name, count in ledger.items() if name != "orphan_blocks"}
        assert states.pop("pool") == sum(states.values())
        assert "Hello" not in json.dumps([kv, requests])
        await running

    play(test)


# -- how events are sent -----------------------------------------------------------------------


def exchange_with(send: Callable[[Any], Any]) -> Any:
    from octavo.server.replies import Exchange

    async def receive() -> Any:
        await asyncio.Event().wait()

    return Exchange({"headers": []}, receive, send)


@pytest.mark.parametrize("when", ["before the first", "in the middle"])
def test_events_are_closed_when_sending_is_cancelled(when: str) -> None:
    from octavo.server.sse import send_events

    async def main() -> None:
        closed, reached = asyncio.Event(), asyncio.Event()

        async def events() -> Any:
            try:
                if when == "in the middle":
                    yield b"data: 1\n\n"
                reached.set()
                await asyncio.Event().wait()
                yield b""
            finally:
                await asyncio.sleep(0)
                closed.set()

        async def send(_: Any) -> None:
            await asyncio.sleep(0)

        task = asyncio.create_task(
            send_events(exchange_with(send), events(), framing=OpenAIFraming(), headers=())
        )
        await reached.wait()
        task.cancel()
        await asyncio.wait({task})
        assert closed.is_set()

    asyncio.run(main())


def test_events_are_closed_when_a_send_fails() -> None:
    from octavo.server.sse import send_events

    async def main() -> None:
        closed = asyncio.Event()

        async def events() -> Any:
            try:
                while True:
                    yield b"data: 1\n\n"
            finally:
                closed.set()

        async def send(message: Any) -> None:
            if message.get("body"):
                raise ConnectionResetError

        with pytest.raises(ConnectionResetError):
            await send_events(exchange_with(send), events(), framing=OpenAIFraming(), headers=())
        assert closed.is_set()

    asyncio.run(main())


def test_a_small_pool_is_named_as_what_limits_and_a_chat_by_its_messages(
    smollm2_text: Any,
) -> None:
    async def test() -> None:
        async with served(smollm2_text, num_blocks=4, max_model_len=64) as here:
            long = [{"role": "user", "content": "word " * 100}]
            error = check_error(await here.chat(messages=long), 400, "messages")
            assert "the KV pool is 64 tokens" in error["message"]
            error = check_error(await here.complete(prompt="word " * 100), 400, "prompt")
            assert "the KV pool is 64 tokens" in error["message"]
        async with served(smollm2_text, num_blocks=128, max_model_len=64) as here:
            error = check_error(await here.chat(messages=long), 400, "messages")
            assert "the model's context is 64 tokens" in error["message"]

    asyncio.run(test())
