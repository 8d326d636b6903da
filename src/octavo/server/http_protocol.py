"""uvicorn's HTTP protocol with what it lacks: a header cap and read timeouts.

connection made ─ head timer ─▶ headers complete ─ body timer ─▶ message complete
    too many bytes or too late ▶ an error in the API's shape, and the connection closes
"""

from __future__ import annotations

import asyncio
import http

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from octavo.server.replies import encode_json, error_body

MAX_HEAD_BYTES = 32 << 10
MAX_HEADERS = 100
HEAD_TIMEOUT_S = 10.0
BODY_TIMEOUT_S = 60.0
MAX_CONNECTIONS = 12_000


class _HeadTooLargeError(Exception):
    """Raised inside the parser to stop it."""


class GuardedProtocol(HttpToolsProtocol):
    """One connection. Bytes before the end of the headers and time to read them are bounded."""

    head_timeout_s = HEAD_TIMEOUT_S
    body_timeout_s = BODY_TIMEOUT_S

    _timer: asyncio.TimerHandle | None = None
    _in_head = True
    _raw_head_bytes = 0
    _parsed_head_bytes = 0
    _reject_status = 400

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock of the first request."""
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
            return
        self._arm(self.head_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Feed the parser unless the head has grown past its cap."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self._in_head and not self.transport.is_closing():
            # A header that never ends is not parsed yet: count what came in.
            self._raw_head_bytes += len(data)
            if self._raw_head_bytes > MAX_HEAD_BYTES:
                self._reject(431)

    def on_message_begin(self) -> None:
        """A request line begins."""
        super().on_message_begin()
        self._in_head = True
        self._raw_head_bytes = self._parsed_head_bytes = 0
        self._arm(self.head_timeout_s)

    def on_url(self, url: bytes) -> None:
        """Count the target."""
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count the header."""
        super().on_header(name, value)
        self._count(len(name) + len(value) + 4)
        if len(self.headers) > MAX_HEADERS:
            self._stop_parser()

    def on_headers_complete(self) -> None:
        """The head is in; the body has a clock of its own."""
        self._in_head = False
        self._arm(self.body_timeout_s)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The request is in: what follows is the server's time."""
        self._disarm()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """uvicorn calls this when the parser fails."""
        self._reject(self._reject_status)

    def _count(self, size: int) -> None:
        self._parsed_head_bytes += size
        if self._parsed_head_bytes > MAX_HEAD_BYTES:
            self._stop_parser()

    def _stop_parser(self) -> None:
        self._reject_status = 431
        raise _HeadTooLargeError

    def _arm(self, timeout_s: float) -> None:
        self._disarm()
        self._timer = self.loop.call_later(timeout_s, self._too_slow)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        if not self.transport.is_closing():
            self._reject(408)

    def _reject(self, status: int) -> None:
        """Answer, unless a response is under way, and close."""
        self._disarm()
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            message = http.HTTPStatus(status).phrase
            body = encode_json(error_body(message, error_type="invalid_request_error"))
            self.transport.write(
                b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\n"
                b"content-length: %d\r\nconnection: close\r\n\r\n%s"
                % (status, message.encode(), len(body), body)
            )
        self.transport.close()
