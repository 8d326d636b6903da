"""Server-sent events: a status while it can still be chosen, comments in silence, a clean end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from octavo.errors import EngineError, OctavoError
from octavo.server.dialects import OPENAI
from octavo.server.replies import Exchange, encode_json

FIRST_EVENT_S = 10.0
PING_S = 15.0
PING = b": ping\n\n"
END_OF_EVENT = b"\n\n"
DONE = b"data: [DONE]\n\n"

logger = logging.getLogger(__name__)


class Framing(Protocol):
    """What a protocol sends around its events: in silence, at the end, and in place of it."""

    @property
    def ping(self) -> bytes:
        """Sent when nothing else was for a while."""

    @property
    def done(self) -> bytes:
        """Sent after the last event."""

    def failure(self, error: OctavoError) -> bytes:
        """The last event of a stream that failed."""


def event(value: object) -> bytes:
    """One ``data:`` event."""
    return b"data: " + encode_json(value) + END_OF_EVENT


def named_event(name: str, value: object) -> bytes:
    """One event with a name, for protocols whose events have types."""
    return b"event: " + name.encode() + b"\n" + event(value)


class OpenAIFraming:
    """The framing of both older OpenAI protocols."""

    ping = PING
    done = DONE

    def failure(self, error: OctavoError) -> bytes:
        """See ``Framing``."""
        return event(OPENAI.error(error))


async def send_events(
    http: Exchange,
    events: AsyncGenerator[bytes, None],
    *,
    framing: Framing,
    headers: Sequence[tuple[bytes, bytes]],
) -> None:
    """Send events until they end, then the end's mark; ``events`` is closed in any case.

    The response starts with the first event, so that an error before it keeps its HTTP status;
    after ``FIRST_EVENT_S`` of waiting it starts without one. A later error becomes an event, and
    the connection closes after it.
    """
    async with contextlib.aclosing(events):
        first = asyncio.ensure_future(anext(events))
        try:
            await asyncio.wait({first}, timeout=FIRST_EVENT_S)
            if first.done() and isinstance(first.exception(), StopAsyncIteration):
                return  # the client left before there was anything to say
            if first.done() and first.exception() is not None:
                first.result()
            # A task of its own: otherwise every event would wake the whole chain of coroutines
            # from the server down to here, which costs as much as making the event.
            await asyncio.create_task(_Stream(http, framing).run(first, events, headers))
        finally:
            # A generator that still runs cannot be closed.
            first.cancel()
            await asyncio.wait({first})


class _Stream:
    def __init__(self, http: Exchange, framing: Framing) -> None:
        self._http = http
        self._framing = framing
        self._send = http.send
        self._time = asyncio.get_running_loop().time
        self._sent_at = 0.0

    async def run(
        self,
        first: asyncio.Future[bytes],
        events: AsyncGenerator[bytes, None],
        headers: Sequence[tuple[bytes, bytes]],
    ) -> None:
        await self._send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [
                    (b"content-type", b"text/event-stream; charset=utf-8"),
                    (b"cache-control", b"no-cache"),
                    (b"x-accel-buffering", b"no"),
                    *headers,
                ],
            }
        )
        pinger = asyncio.create_task(self._ping())
        try:
            await self._write(await first)
            async for data in events:
                await self._write(data)
            await self._write(self._framing.done)
        except OctavoError as error:
            await self._fail(error)
        except StopAsyncIteration:
            pass
        except Exception:
            logger.exception("a stream failed")
            await self._fail(EngineError("internal error; see the server's log"))
        finally:
            pinger.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await pinger
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _fail(self, error: OctavoError) -> None:
        self._http.end_connection()
        await self._write(self._framing.failure(error))

    async def _write(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
        self._sent_at = self._time()

    async def _ping(self) -> None:
        self._sent_at = self._time()
        while True:
            silence = self._time() - self._sent_at
            if silence >= PING_S:
                await self._write(self._framing.ping)
                silence = 0.0
            await asyncio.sleep(PING_S - silence)
