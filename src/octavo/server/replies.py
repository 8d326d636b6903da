"""Sending: JSON bodies, and errors in the one shape that clients parse."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec
from starlette.types import Receive, Scope, Send

from octavo.errors import OctavoError, OverloadedError, UnavailableError
from octavo.server.dialects import Dialect

DEFAULT_RETRY_AFTER_S = 1
# Some names are the client's own words: a header has an end.
MAX_IGNORED_NAMES = 32

_json = msgspec.json.Encoder()


def encode_json(value: object) -> bytes:
    """UTF-8 JSON."""
    return _json.encode(value)


@dataclass(frozen=True, slots=True)
class Exchange:
    """One HTTP request and the way to answer it, as ASGI gives them."""

    scope: Scope
    receive: Receive
    send: Send

    @property
    def headers(self) -> Sequence[tuple[bytes, bytes]]:
        """The request's headers, names in lower case."""
        headers: Sequence[tuple[bytes, bytes]] = self.scope["headers"]
        return headers

    @property
    def tenant(self) -> str:
        """Whose key the request came with."""
        tenant: str = self.scope["octavo.tenant"]
        return tenant

    def end_connection(self) -> None:
        """Make the response, which may have begun, the connection's last."""
        end: Callable[[], None] | None = self.scope.get("octavo.end_connection")
        if end is not None:
            end()


async def send_json(
    send: Send,
    value: object,
    *,
    status: int = 200,
    headers: Sequence[tuple[bytes, bytes]] = (),
) -> None:
    """A complete JSON response."""
    await send_bytes(
        send, encode_json(value), content_type=b"application/json", status=status, headers=headers
    )


async def send_bytes(
    send: Send,
    body: bytes,
    *,
    content_type: bytes,
    status: int = 200,
    headers: Sequence[tuple[bytes, bytes]] = (),
) -> None:
    """A complete response."""
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [
                (b"content-type", content_type),
                (b"content-length", str(len(body)).encode()),
                *headers,
            ],
        }
    )
    await send({"type": "http.response.body", "body": body})


async def send_pieces(send: Send, pieces: Iterable[bytes]) -> None:
    """A JSON response sent piece by piece; the next one is made when the last one has gone."""
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for piece in pieces:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
        # Sending may not have to wait; the other streams get their turn all the same.
        await asyncio.sleep(0)
    await send({"type": "http.response.body", "body": b""})


async def send_error(
    send: Send,
    error: OctavoError,
    *,
    dialect: Dialect,
    headers: Sequence[tuple[bytes, bytes]] = (),
) -> None:
    """An error response, with when to retry where that helps."""
    headers = [*headers, *_retry_after(error)]
    await send_json(send, dialect.error(error), status=error.http_status, headers=headers)


def _retry_after(error: OctavoError) -> list[tuple[bytes, bytes]]:
    if isinstance(error, (OverloadedError, UnavailableError)):
        return [(b"retry-after", str(error.retry_after_s).encode())]
    if error.http_status == 504:
        return [(b"retry-after", str(DEFAULT_RETRY_AFTER_S).encode())]
    return []


def header(headers: Sequence[tuple[bytes, bytes]], name: bytes) -> bytes | None:
    """The value of a request header, None when absent."""
    return next((value for key, value in headers if key == name), None)


def ignored_header(ignored: Sequence[str]) -> list[tuple[bytes, bytes]]:
    """The response header that names the ignored fields, where there are any."""
    if not ignored:
        return []
    names = list(dict.fromkeys(ignored))
    more = len(names) - MAX_IGNORED_NAMES
    shown = names[:MAX_IGNORED_NAMES] + ([f"and {more} more"] if more > 0 else [])
    return [(b"x-octavo-ignored", ", ".join(shown).encode())]
