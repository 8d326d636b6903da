"""What the edge refuses of heads that one parser might read otherwise than another."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

import httpx
import pytest

from octavo.server.edge import Edge
from octavo.server.prompts import MAX_PROMPT_IDS
from octavo.server.replies import send_json
from served import CHAT, HELLO, Served, served


@pytest.fixture
def play(smollm2_text: Any) -> Callable[[Callable[[Served], Coroutine[Any, Any, None]]], None]:
    def run(test: Callable[[Served], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            async with asyncio.timeout(30), served(smollm2_text) as here:
                await test(here)

        asyncio.run(main())

    return run


def status_of(host: bytes, target: bytes = b"/version") -> int:
    """What the edge alone answers."""
    seen: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send_json(send, {})

    async def send(message: Any) -> None:
        if "status" in message:
            seen.append(message["status"])

    async def receive() -> Any:
        raise AssertionError("the edge reads no body")

    scope = {
        "type": "http", "path": "/version", "headers": [(b"host", host)], "octavo.target": target,
    }  # fmt: skip
    asyncio.run(Edge(app, allowed_hosts=["ok.example"])(scope, receive, send))
    return seen[0]


@pytest.mark.parametrize(
    ("host", "target"),
    [
        (b"localhost:80@evil.example", b"/version"),
        (b"localhost@evil.example", b"/version"),
        (b"localhost:80:90", b"/version"),
        (b"localhost:evil", b"/version"),
        (b"localhost/evil", b"/version"),
        (b"localhost evil", b"/version"),
        (b"localhost,evil", b"/version"),
        (b"[::1]evil", b"/version"),
        (b"[::1", b"/version"),
        (b"localhost\xa0", b"/version"),
        (b"localhost", b"http://evil.example/version"),
        (b"localhost", b"HTTPS://evil.example:80/version"),
        (b"localhost", b"http://localhost@evil.example/version"),
        (b"localhost", b"http://evil.example?x=localhost"),
        (b"localhost", b"http:///version"),
        (b"evil.example", b"http://localhost/version"),
    ],
)
def test_a_host_that_is_more_than_a_host_is_refused(host: bytes, target: bytes) -> None:
    assert status_of(host, target) == 403


@pytest.mark.parametrize(
    ("host", "target"),
    [
        (b"localhost:80", b"/version?at=http://evil.example/"),
        (b"[::1]:80", b"http://[::1]:80/version"),
        (b"OK.example", b"http://ok.example/version"),
        (b"localhost", b"//evil.example/version"),
    ],
)
def test_a_target_may_name_a_host_that_is_allowed(host: bytes, target: bytes) -> None:
    assert status_of(host, target) == 200


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("application/json", 200),
        ('application/json; charset="UTF-8"', 200),
        ("application/json;charset=utf8; profile=x", 200),
        ("application/json; charset=latin-1", 415),
        ("application/json; charset=utf-16", 415),
        ("application/json; x=y; CharSet=us-ascii", 415),
        ("application/json; charset=", 415),
    ],
)
def test_json_is_utf_8(play: Any, kind: str, status: int) -> None:
    async def test(here: Served) -> None:
        body = json.dumps({"messages": HELLO, "max_tokens": 1}).encode()
        answer = await here.http.post(CHAT, content=body, headers={"content-type": kind})
        assert answer.status_code == status

    play(test)


def test_what_is_missing_is_named(play: Any) -> None:
    async def test(here: Served) -> None:
        for body in ({}, {"tokens": None}):
            answer = await here.post("/detokenize", **body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tokens")
        assert (await here.post("/detokenize", tokens=[])).json() == {"prompt": ""}
        many = await here.post("/detokenize", tokens=[7] * (MAX_PROMPT_IDS + 1))
        assert (many.status_code, many.json()["error"]["param"]) == (400, "tokens")
        assert str(MAX_PROMPT_IDS) in many.json()["error"]["message"]

    play(test)


@pytest.mark.parametrize("path", ["/detokenize", "/v1/completions"])
def test_the_ids_of_a_large_list_are_looked_at_beside_the_loop(play: Any, path: str) -> None:
    ids = {"/detokenize": "tokens", "/v1/completions": "prompt"}[path]

    async def test(here: Served) -> None:
        body = json.dumps({ids: [7] * 260_000}).encode()
        headers = {"content-type": "application/json"}
        reader = asyncio.create_task(here.http.post(path, content=body, headers=headers))
        turns, longest, before = 0, 0.0, time.monotonic()
        while not reader.done():
            await asyncio.sleep(0)
            now = time.monotonic()
            turns, longest, before = turns + 1, max(longest, now - before), now
        answer: httpx.Response = reader.result()
        assert answer.status_code == (200 if path == "/detokenize" else 400)
        assert turns > 10, longest

    # A thread that holds the interpreter gives it up this often: more turns, if there is a thread.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)
    try:
        play(test)
    finally:
        sys.setswitchinterval(interval)
