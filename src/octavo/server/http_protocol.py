"""uvicorn's HTTP protocol with what it lacks: a header cap, and deadlines for reading and writing.

connection made ─ head timer ─▶ headers complete ─ body timer ─▶ message complete
    too many bytes or too late ▶ an error in the API's shape, and the connection closes (lingering)
bytes that the peer does not take ─ write timer ─▶ the connection is dropped

One request is answered at a time; ``MAX_PIPELINED`` more may wait for their turn. What comes after
them, or is no request, is answered too, last, and then the connection closes.

So an open connection always has a clock running, or a handler that owes it an answer.
"""

from __future__ import annotations

import asyncio
import http
from functools import partial
from typing import cast

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from octavo.server.dialects import error_body
from octavo.server.lingering import LingeringTransport
from octavo.server.replies import encode_json

MAX_HEAD_BYTES = 32 << 10
MAX_HEADERS = 100
# Of one message as it comes over the wire, the read that holds its head aside: bodies are smaller,
# chunk framing may not be.
MAX_RAW_BODY_BYTES = 8 << 20
# Of one body, beside what it carries and the plain framing of its chunks: extensions, mostly.
MAX_EXTENSION_BYTES = 4 << 10
PLAIN_CHUNK_BYTES = 16
HEAD_TIMEOUT_S = 10.0
BODY_TIMEOUT_S = 60.0
WRITE_TIMEOUT_S = 30.0
MAX_CONNECTIONS = 12_000
MAX_PIPELINED = 100
# Larger reads are parsed piece by piece, so that what is counted is of the message at hand.
PIECE_BYTES = 4 << 10
_REMEDIES = {
    400: "this is no valid HTTP/1 request; send it without TLS, its target percent-encoded",
    408: f"a head must come within {HEAD_TIMEOUT_S:g} s, a body within {BODY_TIMEOUT_S:g} s more",
    413: f"chunks may have {MAX_EXTENSION_BYTES} bytes of extensions, and with their framing "
    f"{MAX_RAW_BODY_BYTES} bytes; send larger chunks without extensions, or a Content-Length",
    429: f"no more than {MAX_PIPELINED} requests may wait for their turn; open more connections",
    431: f"a head may have {MAX_HEAD_BYTES} bytes and {MAX_HEADERS} headers; send fewer",
    501: "the only Transfer-Encoding is chunked; send the body as it is",
}


class _RefusedError(Exception):
    """Raised inside the parser to stop it."""


class GuardedProtocol(HttpToolsProtocol):
    """One connection. Bytes before the end of the headers and time to read them are bounded."""

    head_timeout_s = HEAD_TIMEOUT_S
    body_timeout_s = BODY_TIMEOUT_S
    write_timeout_s = WRITE_TIMEOUT_S

    _timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _in_head = True
    _in_body = False
    _began_here = False
    _raw_head_bytes = 0
    _raw_body_bytes = 0
    _spare_bytes = 0
    _parsed_head_bytes = 0
    _reject_status = 400
    _running: RequestResponseCycle | None = None
    _last_words = b""
    _head_again = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock of the first request."""
        self._lingering = LingeringTransport(transport, self.loop)
        super().connection_made(cast("asyncio.Transport", self._lingering))
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
            return
        # Every byte that the peer has not taken pauses writing, so that each has a deadline, also
        # what is left when the connection is closed.
        transport.set_write_buffer_limits(high=0)
        self._arm(self.head_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clocks."""
        self._disarm()
        self._disarm_write()
        self._lingering.lost()
        running = self._running
        if running is not None and not running.response_complete:
            # uvicorn tells the newest request only, which may still wait behind this one.
            running.disconnected = True
            running.message_event.set()
        self.pipeline.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Feed the parser until something is refused."""
        if self._lingering.lingers:
            self._lingering.discard(data)
            return
        for start in range(0, len(data), PIECE_BYTES):
            if self.transport.is_closing() or self._last_words:
                return
            self._lingering.unread = True
            self._feed(data[start : start + PIECE_BYTES])
        if self._is_unwatched():
            # What came was no part of a message (empty lines), but it stopped uvicorn's clock.
            self._arm(self.head_timeout_s)

    def _feed(self, data: bytes) -> None:
        self._raw_body_bytes += len(data)
        self._spare_bytes -= len(data)
        self._began_here = False
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            # Said to the peer alone: a log would be the peer's to fill.
            self._reject(self._reject_status)
        except httptools.HttpParserUpgrade as upgrade:
            # Nobody offers one: the request is read again, as if it had not been asked for.
            head, self._head_again = self._head_again, b""
            self._feed(head + data[upgrade.args[0] :])
        if self._in_body:
            # Chunk framing that outweighs what it carries; the body itself is counted elsewhere.
            if self._raw_body_bytes > MAX_RAW_BODY_BYTES or self._spare_bytes < 0:
                self._reject(413)
        elif self._in_head and not self._began_here:
            # A header that never ends is not parsed yet: count what came in.
            self._raw_head_bytes += len(data)
            if self._raw_head_bytes > MAX_HEAD_BYTES:
                self._reject(431)

    def _is_unwatched(self) -> bool:
        """Whether nothing would ever end this connection."""
        return (
            self._timer is None
            and self.timeout_keep_alive_task is None
            and not self.transport.is_closing()
            and (self.cycle is None or self.cycle.response_complete)
        )

    def pause_writing(self) -> None:
        """The peer does not take what was written: it has so long."""
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(self.write_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        """The peer has taken everything."""
        self._disarm_write()
        super().resume_writing()

    def on_message_begin(self) -> None:
        """A request line begins."""
        self._lingering.unread = True
        super().on_message_begin()
        self._in_head = self._began_here = True
        self._raw_head_bytes = self._parsed_head_bytes = self._raw_body_bytes = 0
        self._arm(self.head_timeout_s)

    def on_url(self, url: bytes) -> None:
        """Count the target."""
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count the header, or trailer; a trailer is dropped, as a proxy looks for no key there."""
        if not self._in_body:
            super().on_header(name, value.rstrip(b" \t"))
        self._count(len(name) + len(value) + 4)
        if len(self.headers) > MAX_HEADERS:
            self._stop_parser(431)

    def on_headers_complete(self) -> None:
        """The head is in; the body has a clock of its own."""
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT":
            # The parser takes what follows for no part of the request, be it its body.
            self._head_again = self._head_without(b"upgrade")
            return
        self._in_head = False
        self._spare_bytes = MAX_EXTENSION_BYTES
        self._arm(self.body_timeout_s)
        codings = [value.lower() for name, value in self.headers if name == b"transfer-encoding"]
        if codings not in ([], [b"chunked"]):
            self._stop_parser(501)
        super().on_headers_complete()
        self._in_body = True
        # For a response that fails after its head was sent: it is the connection's last.
        self.scope["octavo.end_connection"] = partial(_end_after, self.cycle)  # type: ignore[typeddict-unknown-key]
        self.scope["octavo.target"] = self.url  # type: ignore[typeddict-unknown-key]
        if len(self.pipeline) > MAX_PIPELINED:
            self._stop_parser(429)

    def on_chunk_header(self) -> None:
        """A chunk begins."""
        self._spare_bytes += PLAIN_CHUNK_BYTES

    def on_body(self, body: bytes) -> None:
        """Count what is carried."""
        self._spare_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is in: what follows is the server's time."""
        if self._head_again:
            return
        self._disarm()
        self._in_body = self._lingering.unread = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Go on with the next request, or end with what a refused one is owed."""
        if self._last_words and not self.pipeline and not self.transport.is_closing():
            self.transport.write(self._last_words)
            self.transport.close()
        super().on_response_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _head_without(self, left_out: bytes) -> bytes:
        target = (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        headers = (b"%s: %s\r\n" % pair for pair in self.headers if pair[0] != left_out)
        return b"%s %s HTTP/%s\r\n%s\r\n" % (*target, b"".join(headers))

    def _count(self, size: int) -> None:
        self._parsed_head_bytes += size
        if self._parsed_head_bytes > MAX_HEAD_BYTES:
            self._stop_parser(431)

    def _stop_parser(self, status: int) -> None:
        self._reject_status = status
        raise _RefusedError

    def _arm(self, timeout_s: float) -> None:
        self._disarm()
        self._timer = self.loop.call_later(timeout_s, self._reject, 408)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _disarm_write(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _reject(self, status: int) -> None:
        """Refuse the message at fault: now, after the answers owed before it, or by closing."""
        self._disarm()
        if self.transport.is_closing() or self._last_words:
            return
        if self._in_body and self.pipeline:
            # Its turn has not come, and does not.
            self.pipeline.popleft()
        elif self._in_body or self.cycle is None or self.cycle.response_complete:
            # Once its answer has begun, another would be read as a part of it, or as the next one.
            if not (self._in_body and self.cycle.response_started):
                self.transport.write(_refusal(status))
            self.transport.close()
            return
        self._last_words = _refusal(status)


def _refusal(status: int) -> bytes:
    body = encode_json(error_body(_REMEDIES[status], error_type="invalid_request_error"))
    return (
        b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\nconnection: close\r\n\r\n%s"
        % (status, http.HTTPStatus(status).phrase.encode(), len(body), body)
    )


def _end_after(cycle: RequestResponseCycle) -> None:
    """Close the connection when the response is complete."""
    cycle.keep_alive = False
