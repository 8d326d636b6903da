"""What HTTP itself refuses, in which words, and what it only seems to: sent as bytes."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from listening import GET, App, Listening, healthy, listening, play, reads_first
from octavo.server.app import build_app
from octavo.server.http_protocol import (
    MAX_EXTENSION_BYTES,
    MAX_HEAD_BYTES,
    MAX_HEADERS,
    MAX_PIPELINED,
    MAX_RAW_BODY_BYTES,
    PIECE_BYTES,
    GuardedProtocol,
)
from octavo.server.replies import send_json
from served import served

CHUNKED = b"Transfer-Encoding: chunked\r\n"
CHUNKS = b"2\r\nhi\r\n0\r\n\r\n"


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GuardedProtocol, "head_timeout_s", 0.3)
    monkeypatch.setattr(GuardedProtocol, "body_timeout_s", 0.3)
    monkeypatch.setattr("octavo.server.http_server.KEEP_ALIVE_S", 0.2)


def post(*headers: bytes, version: bytes = b"1.1") -> bytes:
    return b"POST / HTTP/" + version + b"\r\nHost: localhost\r\n" + b"".join(headers) + b"\r\n"


async def shows(scope: Any, receive: Any, send: Any) -> None:
    """Answers with what came."""
    body = b""
    while (message := await receive())["type"] == "http.request":
        body += message["body"]
        if not message["more_body"]:
            break
    names = [name.decode() for name, _ in scope["headers"]]
    told = {"path": scope["path"], "headers": names, "body": body.decode()}
    await send_json(send, told)


def sent(data: bytes, app: App = shows) -> bytes:
    """All that comes back until the server closes."""
    found: list[bytes] = []

    async def test(here: Listening) -> None:
        reader, writer = await here.connect()
        writer.write(data)
        found.append(await reader.read())
        writer.close()
        await here.wait_no_connection()

    play(app, test)
    return found[0]


def answers(data: bytes, app: App = shows) -> list[tuple[int, Any]]:
    """Status and body of each answer."""
    parts = sent(data, app).split(b"HTTP/1.1 ")[1:]
    return [(int(part[:3]), json.loads(part.partition(b"\r\n\r\n")[2])) for part in parts]


@pytest.mark.parametrize(
    ("data", "status", "words"),
    [
        (b"\x16\x03\x01\x02\x00", 400, ["no valid HTTP/1 request", "without TLS"]),
        (b"GET /\xff HTTP/1.1\r\n\r\n", 400, ["percent-encoded"]),
        (b"GET / HTTP/1.1\r\nHost:", 408, ["10 s", "60 s"]),
        (post(CHUNKED) + b"1;" + b"a" * 20_000, 413,
         [str(MAX_EXTENSION_BYTES), str(MAX_RAW_BODY_BYTES), "without extensions"]),
        (post(CHUNKED) + b"0\r\nX: " + b"a" * 20_000, 413, [str(MAX_EXTENSION_BYTES)]),
        (GET * (MAX_PIPELINED + 5), 429, [str(MAX_PIPELINED), "open more connections"]),
        (b"GET / HTTP/1.1\r\n" + b"X: 1\r\n" * 200, 431,
         [str(MAX_HEADERS), str(MAX_HEAD_BYTES), "send fewer"]),
        (post(b"Transfer-Encoding: gzip\r\n"), 501, ["chunked", "as it is"]),
    ],
)  # fmt: skip
def test_a_refusal_says_limit_and_remedy(
    data: bytes, status: int, words: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    last = sent(data).rpartition(b"HTTP/1.1 ")[2]
    head, _, body = last.partition(b"\r\n\r\n")
    assert int(head[:3]) == status
    assert b"connection: close" in head
    error = json.loads(body)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert [word for word in words if word not in error["message"]] == []
    # A log would be the peer's to fill.
    assert [one for one in caplog.records if one.name != "asyncio"] == []


@pytest.mark.parametrize(
    "headers",
    [
        b"Transfer-Encoding: identity\r\n",
        b"Transfer-Encoding: gzip, chunked\r\n",
        b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked, chunked\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"Transfer-Encoding: ,chunked\r\n",
        b"Transfer-Encoding: \r\n",
        b"Transfer-Encoding: \x0bchunked\r\n",
        b"Transfer-Encoding: chunked\t\r\n",
        b"Transfer-Encoding : chunked\r\n",
        b"Transfer-Encoding:\r\n chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n",
        b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: 0\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: 3\r\nTransfer-Encoding: identity\r\n",
        b"Content-Length: 3\r\nContent-Length: 3\r\n",
        b"Content-Length: +3\r\n",
    ],
)
def test_what_two_parsers_may_frame_otherwise_is_the_connections_last(headers: bytes) -> None:
    [(status, _)] = answers(post(headers) + CHUNKS + GET)
    assert status in (400, 501)


@pytest.mark.parametrize(
    "header",
    [
        b"Transfer-Encoding: chunked\r\n",
        b"TRANSFER-ENCODING: CHUNKED\r\n",
        b"Transfer-Encoding:   chunked  \r\n",
        b"Transfer-Encoding:\tchunked\r\n",
    ],
)
def test_chunked_is_taken_however_it_is_written(header: bytes) -> None:
    first, second = answers(post(header) + CHUNKS + GET)
    assert first[1]["body"] == "hi"
    assert second[1]["path"] == "/health"


def test_nothing_follows_a_chunked_body_in_the_older_protocol() -> None:
    [(status, told)] = answers(
        post(CHUNKED, b"Connection: keep-alive\r\n", version=b"1.0") + CHUNKS + GET
    )
    assert (status, told["body"]) == (200, "hi")


def test_small_extensions_pass_whatever_the_body() -> None:
    chunk = b"3e8;name=value\r\n" + b"a" * 1000 + b"\r\n"
    body = chunk * 20 + b"1;" + b"e" * 2000 + b"\r\nb\r\n0;last\r\n\r\n"
    [(status, told)] = answers(post(CHUNKED) + body)
    assert (status, told["body"]) == (200, "a" * 20_000 + "b")


def test_extensions_of_all_chunks_are_counted_together() -> None:
    chunk = b"1;" + b"e" * 200 + b"\r\na\r\n"
    assert answers(post(CHUNKED) + chunk * 15 + b"0\r\n\r\n")[0][0] == 200
    many = (MAX_EXTENSION_BYTES + PIECE_BYTES) // len(chunk) * 2
    assert answers(post(CHUNKED) + chunk * many + b"0\r\n\r\n")[0][0] == 413


def test_each_request_may_have_extensions_anew() -> None:
    one = post(CHUNKED) + b"1;" + b"e" * 3000 + b"\r\na\r\n0\r\n\r\n"
    assert [status for status, _ in answers(one * 8)] == [200] * 8


def test_small_chunks_are_no_extensions() -> None:
    chunks = b"1\r\na\r\n" * 20_000
    [(status, told)] = answers(post(CHUNKED) + chunks + b"0\r\n\r\n")
    assert (status, told["body"]) == (200, "a" * 20_000)


def test_a_trailer_is_no_header() -> None:
    """Who puts keys into heads, or takes them out, does not see a trailer."""
    trailer = b"X-Api-Key: secret\r\nHost: evil\r\n"
    first, second = answers(post(CHUNKED) + b"2\r\nhi\r\n0\r\n" + trailer + b"\r\n" + GET)
    assert first[1]["headers"] == ["host", "transfer-encoding"]
    assert second[1]["headers"] == ["host"]


def test_space_around_a_value_is_no_part_of_it() -> None:
    [(status, told)] = answers(post(b"Content-Length: \t 2 \t\r\n") + b"hi")
    assert (status, told["body"]) == (200, "hi")


UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"


@pytest.mark.parametrize("pieces", [1, 7, 1000])
def test_an_upgrade_that_is_not_offered_is_as_if_it_had_not_been_asked_for(pieces: int) -> None:
    """Some clients ask for HTTP/2 with every first request, and send its body right away."""
    data = (
        post(UPGRADE, b"Content-Length: 5\r\n") + b"hello"
        + post(UPGRADE, CHUNKED) + CHUNKS
        + post(UPGRADE, b"Content-Length: 0\r\n") + post(UPGRADE) + GET
    )  # fmt: skip
    found: list[bytes] = []

    async def test(here: Listening) -> None:
        reader, writer = await here.connect()
        size = -(-len(data) // pieces)
        for start in range(0, len(data), size):
            writer.write(data[start : start + size])
            await asyncio.sleep(0)
        found.append(await reader.read())
        writer.close()
        await here.wait_no_connection()

    play(shows, test)
    told = [json.loads(part.partition(b"\r\n\r\n")[2]) for part in found[0].split(b"HTTP/1.1 ")[1:]]
    assert [one["body"] for one in told] == ["hello", "hi", "", "", ""]
    assert told[-1]["path"] == "/health"
    assert told[0]["headers"] == ["host", "connection", "http2-settings", "content-length"]


def test_what_is_wrong_with_an_upgrade_is_wrong_without_it() -> None:
    gzip = b"Transfer-Encoding: gzip\r\n"
    assert [status for status, _ in answers(post(UPGRADE, gzip) + CHUNKS)] == [501]
    both = CHUNKED + b"Content-Length: 3\r\n"
    assert [status for status, _ in answers(post(UPGRADE, both) + CHUNKS)] == [400]
    much = UPGRADE + b"X: 1\r\n" * 200
    assert [status for status, _ in answers(post(much))] == [431]
    connect = b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n" + UPGRADE + b"\r\n"
    assert [status for status, _ in answers(connect)] == [400]


@pytest.mark.parametrize(
    ("head", "rest"),
    [
        (b"Content-Length: 1000\r\n", b"{"),
        (b"Content-Length: 12000000\r\n", b" " * (MAX_RAW_BODY_BYTES + (1 << 20))),
        (CHUNKED, b"zz\r\n"),
        (CHUNKED, b"1;" + b"a" * 20_000),
    ],
    ids=["late", "long", "no chunk", "extensions"],
)
def test_who_has_an_answer_gets_no_second_one(head: bytes, rest: bytes) -> None:
    """It would be read as the answer to the next request."""

    async def test(here: Listening) -> None:
        reader, writer = await here.connect()
        writer.write(post(head))
        answer = await reader.readuntil(b"ok")
        for start in range(0, len(rest), 1 << 18):
            writer.write(rest[start : start + (1 << 18)])
            await asyncio.sleep(0)
        answer += await reader.read()
        assert answer.count(b"HTTP/1.1") == 1
        writer.close()
        await here.wait_no_connection()

    play(healthy, test)


def test_what_is_wrong_behind_an_answered_body_is_said() -> None:
    """The body was not read, but it ended: the fault is another message's."""

    async def test(here: Listening) -> None:
        reader, writer = await here.connect()
        writer.write(post(b"Content-Length: 2\r\n"))
        assert b" 200 " in await reader.readuntil(b"ok")
        writer.write(b"{}\x00\r\n\r\n")
        assert b" 400 " in await reader.read()
        writer.close()
        await here.wait_no_connection()

    play(healthy, test)


def test_a_refused_body_is_read_to_no_end() -> None:
    data = post(CHUNKED) + b"5\r\nhello\r\nzz\r\n"
    [(status, error)] = answers(data, reads_first)
    assert status == 400
    assert "HTTP/1" in error["error"]["message"]


def test_a_body_that_nobody_asked_for_spoils_nothing(smollm2_text: Any) -> None:
    """Of a GET, a DELETE, or where none is read: the next request is answered all the same."""
    host = b" HTTP/1.1\r\nHost: localhost\r\n"
    odd = b"Content-Length: 5\r\n\r\n{\x00\xff]]"
    stored = b" /v1/responses/none"
    asked = [
        (b"HEAD /version" + host + b"\r\n", 200),
        (b"GET /version" + host + odd, 200),
        (b"HEAD /version" + host + odd, 200),
        (b"DELETE" + stored + host + CHUNKED + b"\r\n" + CHUNKS, 404),
        (b"POST" + stored + b"/cancel" + host + odd, 404),
        (b"GET" + stored + b"/input_items" + host + b"\r\n", 404),
        (b"OPTIONS /version" + host + odd, 405),
    ]

    async def main() -> None:
        async with (
            asyncio.timeout(30),
            served(smollm2_text) as engine,
            listening(build_app(engine.state)) as here,
        ):
            reader, writer = await here.connect()
            writer.write(b"".join(data for data, _ in asked))
            parts = (await reader.read()).split(b"HTTP/1.1 ")[1:]
            assert [int(part[:3]) for part in parts] == [status for _, status in asked]
            bodies = [part.partition(b"\r\n\r\n")[2] for part in parts]
            assert bodies[0] == bodies[2] == b""
            assert all(json.loads(body) for body in bodies[1:2] + bodies[3:])
            assert b"allow: GET, HEAD\r\n" in parts[-1]
            writer.close()

    asyncio.run(main())
