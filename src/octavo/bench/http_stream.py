"""A small HTTP/1.1 client for event streams: one request per connection, stamps on arrival.

On the machine that also serves, the client's own work shows in the figures. So this one only
stamps and stores what arrives; JSON is read when the run is over.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

import httptools

from octavo.errors import ConfigError

MAX_EVENT_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server listens. ``prefix`` is the path that its API's paths are added to."""

    host: str
    port: int
    is_tls: bool
    prefix: str

    @classmethod
    def parse(cls, url: str) -> Endpoint:
        """Read ``http://host:port``, with or without ``/v1``.

        Raises:
            ConfigError: it is no HTTP URL.
        """
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"'{url}' is no HTTP URL; write for example http://127.0.0.1:8000")
        is_tls = parts.scheme == "https"
        prefix = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.hostname, port or (443 if is_tls else 80), is_tls, prefix)

    @property
    def netloc(self) -> str:
        """The ``Host`` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(slots=True)
class Exchange:
    """What came back. ``events`` are (arrival, payload of a ``data:`` line) in order.

    ``body`` holds a response that is no event stream. ``fault`` names what broke, or is "".
    """

    status: int = 0
    is_event_stream: bool = False
    events: list[tuple[float, bytes]] = field(default_factory=list)
    body: bytearray = field(default_factory=bytearray)
    start_s: float = field(default_factory=time.perf_counter)
    end_s: float = 0.0
    fault: str = ""
    was_cancelled: bool = False


class _Reader(asyncio.Protocol):
    """Feeds one response to a parser; ``finished`` is resolved when nothing more can come."""

    def __init__(self, request: bytes, cancel_after: int) -> None:
        loop = asyncio.get_running_loop()
        self.exchange = Exchange()
        self.finished: asyncio.Future[None] = loop.create_future()
        self._request = request
        self._cancel_after = cancel_after
        self._parser = httptools.HttpResponseParser(self)
        self._buffer = bytearray()
        self._now = 0.0
        self._has_end = False
        self._transport: asyncio.Transport | None = None

    # -- asyncio -----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the interface but not the base class.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._now = time.perf_counter()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.finish(f"malformed response: {type(error).__name__}")
            return
        if 0 < self._cancel_after <= len(self.exchange.events) and not self.finished.done():
            self.exchange.was_cancelled = True
            self.finish("")

    def connection_lost(self, exc: Exception | None) -> None:
        # Without a length or chunks, the end of the connection is the end of the body.
        ended_by_close = self.exchange.status and not self._has_end and exc is None
        count = len(self.exchange.events)
        self.finish("" if ended_by_close else f"connection lost after {count} events")

    # -- httptools ---------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        lowered = name.lower()
        if lowered == b"content-type":
            self.exchange.is_event_stream = value.lower().startswith(b"text/event-stream")
        elif lowered in (b"content-length", b"transfer-encoding"):
            self._has_end = True

    def on_headers_complete(self) -> None:
        self.exchange.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        if not self.exchange.is_event_stream:
            self.exchange.body += data
            return
        self._buffer += data
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self.exchange.events.append((self._now, bytes(line[5:].strip())))
        if len(self._buffer) > MAX_EVENT_BYTES:
            self.finish(f"an event exceeds {MAX_EVENT_BYTES >> 20} MiB")

    def on_message_complete(self) -> None:
        self.finish("")

    # -- the end -----------------------------------------------------------------------------

    def finish(self, fault: str) -> None:
        """End the exchange once; later calls change nothing."""
        if self.finished.done():
            return
        self.exchange.fault = fault
        self.exchange.end_s = time.perf_counter()
        self.finished.set_result(None)
        if self._transport is not None:
            self._transport.close()


class HttpClient:
    """Sends requests to one endpoint, each over a connection of its own."""

    def __init__(self, endpoint: Endpoint, *, headers: Mapping[str, str], timeout_s: float) -> None:
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        lines = {"Host": endpoint.netloc, "Connection": "close", **headers}
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self._tls = ssl.create_default_context() if endpoint.is_tls else None

    async def post(self, path: str, body: bytes, *, cancel_after: int = 0) -> Exchange:
        """Send JSON. With ``cancel_after`` > 0 the connection is closed after so many events."""
        head = (
            f"POST {self._endpoint.prefix}{path} HTTP/1.1\r\n{self._headers}"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return await self._exchange(head.encode() + body, cancel_after)

    async def get(self, path: str) -> Exchange:
        """Fetch a page."""
        head = f"GET {self._endpoint.prefix}{path} HTTP/1.1\r\n{self._headers}\r\n"
        return await self._exchange(head.encode(), 0)

    async def _exchange(self, request: bytes, cancel_after: int) -> Exchange:
        loop = asyncio.get_running_loop()
        reader = _Reader(request, cancel_after)
        try:
            async with asyncio.timeout(self._timeout_s):
                await loop.create_connection(
                    lambda: reader, self._endpoint.host, self._endpoint.port, ssl=self._tls
                )
                # Shielded: a timeout must leave it open for `finish` to end the exchange.
                await asyncio.shield(reader.finished)
        except TimeoutError:
            reader.finish("timed out")
        except OSError as error:
            reader.finish(f"cannot connect: {type(error).__name__}")
        return reader.exchange
