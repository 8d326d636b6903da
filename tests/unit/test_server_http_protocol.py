"""The guarded protocol on real sockets, with its deadlines shortened."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import pytest
import uvloop

from listening import GET, App, Listening, healthy, listening, play, reads_first
from octavo.server import lingering
from octavo.server.app import build_app
from octavo.server.http_protocol import MAX_PIPELINED, GuardedProtocol
from octavo.server.http_server import ACCEPTS_PER_TURN
from served import Served, served


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GuardedProtocol, "head_timeout_s", 0.2)
    monkeypatch.setattr(GuardedProtocol, "body_timeout_s", 0.4)
    monkeypatch.setattr(GuardedProtocol, "write_timeout_s", 0.4)


def test_connections_that_wait_are_taken_many_at_a_turn() -> None:
    async def main() -> None:
        async with asyncio.timeout(20), listening(healthy) as here:
            address = ("127.0.0.1", here.port)
            waiting = [socket.create_connection(address) for _ in range(10 * ACCEPTS_PER_TURN)]
            turns = 0
            while here.server.num_connections < len(waiting):
                await asyncio.sleep(0)
                turns += 1
            assert turns <= 20
            for connection in waiting:
                connection.close()

    # The loop of the API process; another may take them all at once.
    uvloop.run(main())


@pytest.mark.parametrize("crumb", [b"\r\n", b"\r\n\r\n", b"\n", b"G", b"GET / HTTP/1.1\r\nHost:"])
def test_crumbs_between_requests_keep_no_socket_open(crumb: bytes) -> None:
    async def test(here: Listening) -> None:
        reader, writer = await here.connect()
        writer.write(GET)
        assert b"ok" in await reader.readuntil(b"ok")
        writer.write(crumb)
        rest = await reader.read()
        assert not rest or b" 408 " in rest
        writer.close()
        await here.wait_no_connection()

    play(healthy, test)


def test_a_crumb_for_ever_does_not_renew_the_clock() -> None:
    async def test(here: Listening) -> None:
        reader, writer = await here.connect()
        writer.write(GET)
        await reader.readuntil(b"ok")
        ended = asyncio.ensure_future(reader.read())
        while not ended.done():
            writer.write(b"\r\n")
            await asyncio.sleep(0.05)
        assert not ended.result() or b" 408 " in ended.result()
        writer.close()
        await here.wait_no_connection()

    play(healthy, test)


@pytest.mark.parametrize("trickle", [False, True])
def test_a_body_has_a_deadline(trickle: bool) -> None:
    async def test(here: Listening) -> None:
        reader, writer = await here.connect()
        writer.write(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{")
        answer = asyncio.ensure_future(reader.read())
        while not answer.done():
            if trickle:
                writer.write(b" ")
            await asyncio.sleep(0.02)
        head, _, body = answer.result().partition(b"\r\n\r\n")
        assert b" 408 " in head
        assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}
        writer.close()
        await here.wait_no_connection()

    play(reads_first, test)


async def endless(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while True:
        body = {"type": "http.response.body", "body": b"x" * 65536, "more_body": True}
        await send(body)
        if (await asyncio.wait_for(receive_or_go(receive), 5)) == "http.disconnect":
            return


async def receive_or_go(receive: Any) -> str:
    task = asyncio.ensure_future(receive())
    done, _ = await asyncio.wait({task}, timeout=0)
    if done:
        return str(task.result()["type"])
    task.cancel()
    return ""


async def long_answer(scope: Any, receive: Any, send: Any) -> None:
    length = 8 << 20
    headers = [(b"content-length", str(length).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"x" * length})


async def breaks_off(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    body = {"type": "http.response.body", "body": b"x" * (8 << 20), "more_body": True}
    await send(body)
    raise ConnectionAbortedError


@pytest.mark.parametrize("app", [endless, long_answer, breaks_off], ids=lambda app: app.__name__)
@pytest.mark.parametrize("close", [b"", b"Connection: close\r\n"])
def test_who_never_reads_is_dropped(app: App, close: bytes) -> None:
    async def test(here: Listening) -> None:
        _, writer = await here.connect(receive_buffer=4096)
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + close + b"\r\n")
        while not here.server.num_connections:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await here.wait_no_connection()
        await here.wait_no_handler()
        assert here.server.num_connections == here.server.num_handlers == 0
        writer.transport.abort()

    play(app, test)


def test_a_slow_reader_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(here: Listening) -> None:
        reader, writer = await here.connect(receive_buffer=4096)
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        size = 0
        while data := await reader.read(1 << 16):
            size += len(data)
            await asyncio.sleep(0)
        assert size > 8 << 20
        writer.close()

    monkeypatch.setattr(GuardedProtocol, "write_timeout_s", 10.0)
    play(long_answer, test)


def gated(gate: asyncio.Event) -> App:
    """Begins each answer at once and ends it when the gate opens."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["more_body"]:
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        await gate.wait()
        await send({"type": "http.response.body", "body": b"whole"})

    return app


CUT_BODY = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"
BEHIND = {
    "garbage": (b"\x00\x01garbage\r\n\r\n", b" 400 "),
    "garbage in a head": (b"GET / HTTP/1.1\r\nHost localhost\r\n\r\n", b" 400 "),
    "a head without end": (b"GET / HTTP/1.1\r\nX: " + b"a" * 200_000, b" 431 "),
    "many headers": (b"GET / HTTP/1.1\r\n" + b"X: 1\r\n" * 200, b" 431 "),
    "a body that does not come": (CUT_BODY, b" 408 "),
    "a bad chunk": (
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b" 400 "),
    "another coding": (
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b" 501 "),
    "chunk extensions": (
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"a" * 20_000,
        b" 413 "),
    "garbage behind another": (GET + b"\x00\x01\r\n\r\n", b" 400 "),
}  # fmt: skip


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("name", BEHIND)
def test_what_is_refused_behind_a_request_does_not_spoil_its_answer(
    name: str, together: bool
) -> None:
    behind, status = BEHIND[name]
    gate = asyncio.Event()

    async def test(here: Listening) -> None:
        reader, writer = await here.connect()
        writer.write(GET + (behind if together else b""))
        answer = await reader.readuntil(b"half")
        writer.write(b"" if together else behind)
        # Longer than any deadline that is running.
        await asyncio.sleep(0.5 if status == b" 408 " else 0.1)
        gate.set()
        answer += await reader.read()
        good = 1 + behind.startswith(GET)
        assert answer.count(b"whole") == good
        assert answer.count(b" 200 OK") == good
        last = answer.rpartition(b"HTTP/1.1")[2]
        assert status in last
        assert b"connection: close" in last
        assert set(json.loads(last.partition(b"\r\n\r\n")[2])["error"]) >= {"message", "type"}
        writer.close()
        await here.wait_no_connection()

    play(gated(gate), test)


@pytest.mark.parametrize("count", [90, 20_000])
def test_a_flood_of_pipelined_requests_is_answered_up_to_the_cap(count: int) -> None:
    async def test(here: Listening) -> None:
        reader, writer = await here.connect()
        writer.write(GET * count)
        answer = b""
        while answer.count(b"ok") < min(count, MAX_PIPELINED):
            answer += await reader.read(1 << 16)
        if count > MAX_PIPELINED:
            answer += await reader.read()
            assert b" 429 " in answer.rpartition(b"HTTP/1.1")[2]
            assert answer.count(b" 200 OK") == answer.count(b"HTTP/1.1") - 1 < count
        writer.transport.abort()
        await here.wait_no_connection()

    play(healthy, test)


def listens_until_left(told: asyncio.Event) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        told.set()

    return app


def test_who_leaves_with_more_in_the_pipeline_is_noticed() -> None:
    told = asyncio.Event()

    async def test(here: Listening) -> None:
        _, writer = await here.connect()
        writer.write(GET * 3)
        while not here.server.num_handlers:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        writer.transport.abort()
        await asyncio.wait_for(told.wait(), 20)
        await here.wait_no_handler()
        assert told.is_set()
        assert here.server.num_handlers == 0

    play(listens_until_left(told), test)


def test_who_closes_for_sending_has_left() -> None:
    told = asyncio.Event()

    async def test(here: Listening) -> None:
        reader, writer = await here.connect()
        writer.write(GET)
        while not here.server.num_handlers:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        writer.write_eof()
        await told.wait()
        assert await reader.read() == b""
        writer.close()

    play(listens_until_left(told), test)


def test_a_stalled_stream_is_cancelled_in_the_engine(smollm2_text: Any) -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(30),
            served(smollm2_text, num_blocks=1024) as engine,
            listening(build_app(engine.state)) as here,
        ):
            await stall(engine, here)

    async def stall(engine: Served, here: Listening) -> None:
        _, writer = await here.connect(receive_buffer=4096)
        body = json.dumps(
            {"prompt": "x", "max_tokens": 900, "stream": True, "n": 8, "logprobs": 20,
             "ignore_eos": True}
        ).encode()  # fmt: skip
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        while not engine.client.num_active:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await here.wait_no_connection()
        while engine.client.num_active:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await here.wait_no_handler()
        core = engine.engine.engine
        assert core is not None
        while core.requests.states:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        writer.transport.abort()

    asyncio.run(main())


def test_an_error_in_mid_stream_closes_the_connection(smollm2_text: Any) -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(30),
            served(smollm2_text, step_s=0.01) as engine,
            listening(build_app(engine.state)) as here,
        ):
            engine.state.request_timeout_s = 0.15
            reader, writer = await here.connect()
            body = json.dumps({"prompt": "x", "max_tokens": 900, "stream": True}).encode()
            writer.write(
                b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
                % (len(body), body)
            )
            answer = await reader.read()
            assert b'data: {"error"' in answer
            assert answer.endswith(b"0\r\n\r\n")
            assert b"[DONE]" not in answer
            writer.close()

    # Longer than the test waits: only the server's own close ends the read.
    GuardedProtocol.head_timeout_s = 60.0
    asyncio.run(main())


def test_chunk_framing_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(here: Listening) -> None:
        reader, writer = await here.connect()
        writer.write(b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        while not here.server.num_handlers:  # noqa: ASYNC110 - the head has been read alone
            await asyncio.sleep(0.01)
        writer.write(b"1;" + b"a" * 20_000)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        assert b" 413 " in head
        assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}
        writer.close()
        await here.wait_no_connection()

    monkeypatch.setattr("octavo.server.http_protocol.MAX_RAW_BODY_BYTES", 10_000)
    play(reads_first, test)


async def refuses_unread(scope: Any, receive: Any, send: Any) -> None:
    headers = [(b"content-length", b"2"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": 413, "headers": headers})
    await send({"type": "http.response.body", "body": b"no"})


def test_a_refusal_is_heard_by_who_keeps_sending() -> None:
    """All that was sent is taken, so that no reset overtakes the answer."""

    async def test(here: Listening) -> None:
        reader, writer = await here.connect()
        writer.write(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4000000\r\n\r\n")
        for _ in range(40):
            writer.write(b" " * 100_000)
            await writer.drain()
            await asyncio.sleep(0.002)
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 413")
        writer.close()
        await here.wait_no_connection()

    play(refuses_unread, test)


@pytest.mark.parametrize("cap", ["LINGER_S", "LINGER_BYTES"])
def test_lingering_ends_at_a_cap(monkeypatch: pytest.MonkeyPatch, cap: str) -> None:
    monkeypatch.setattr(lingering, cap, 0.2)

    async def test(here: Listening) -> None:
        reader, writer = await here.connect()
        writer.write(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4000000\r\n\r\n")
        writer.write(b" " * 100)
        await here.wait_no_handler()
        writer.write(b" " * 100)
        await here.wait_no_connection()
        # It heard why, although most of what it declared was never read.
        assert (await reader.readline()).startswith(b"HTTP/1.1 4")
        assert here.server.num_connections == 0
        writer.close()

    play(refuses_unread, test)


def test_an_upgrade_is_not_offered_and_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def test(here: Listening) -> None:
        reader, writer = await here.connect()
        writer.write(GET[:-2] + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()

    play(healthy, test)
    assert caplog.records == []


def test_requests_in_a_row_keep_their_own_ids(smollm2_text: Any) -> None:
    """They are answered in one another's tasks, but not in one another's name."""

    async def main() -> None:
        async with (
            asyncio.timeout(30),
            served(smollm2_text) as engine,
            listening(build_app(engine.state)) as here,
        ):
            reader, writer = await here.connect()
            for name in (b"one", b"", b"three"):
                given = b"X-Request-Id: %s\r\n" % name if name else b""
                writer.write(
                    b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\n" + given
                    + b"Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
                )  # fmt: skip
            ids = []
            for _ in range(3):
                head = await reader.readuntil(b"\r\n\r\n")
                named = dict(line.split(": ", 1) for line in head.decode().splitlines()[1:-1])
                body = json.loads(await reader.readexactly(int(named["content-length"])))
                ids.append(body["request_id"])
                assert named["request-id"] == named["x-request-id"] == body["request_id"]
            assert ids[::2] == ["one", "three"]
            assert ids[1].startswith("req_")
            writer.close()

    asyncio.run(main())
