"""The edge: what is decided about a request before any of its content is looked at.

Outermost first: request id → Host allow-list → API key (on the routed path) → content type and
encoding → size. Pure ASGI, so that a disconnect reaches the handler.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import re
import uuid
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from contextlib import asynccontextmanager

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.api_keys import DEFAULT_TENANT, tenants_of
from octavo.errors import EngineError, OctavoError, OverloadedError, UnavailableError
from octavo.server.dialects import ANTHROPIC, REQUEST_ID, dialect_of
from octavo.server.replies import header, send_error

MAX_BODY_BYTES = 2 << 20
MAX_BODIES_BYTES = 8 << 20
LOOPBACK_NAMES = frozenset({"localhost"})

# A name or address and perhaps a port, and nothing else that some parser reads otherwise.
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?")
# A request target may name a host of its own (RFC 9112, 3.2.2), which then counts.
_ABSOLUTE = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://([^/?#]*)")
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")

logger = logging.getLogger(__name__)

Headers = Sequence[tuple[bytes, bytes]]


class RejectedError(OctavoError):
    """Refused at the edge with a status of its own; the rest of the body is not read.

    ``allow`` are the methods that a path takes, where the one asked for is not among them.
    """

    error_type = "invalid_request_error"

    def __init__(
        self, status: int, message: str, *, code: str | None = None, allow: Iterable[str] = ()
    ) -> None:
        super().__init__(message)
        self.http_status = status
        self.code = code
        self.allow = ", ".join(allow)


# Raised while the body may still be on its way: what follows is not read.
_BEFORE_THE_BODY = (RejectedError, OverloadedError, UnavailableError)


class DisconnectedError(Exception):
    """The client went away while its body was being read."""


class Edge:
    """Wraps the router: request id, Host, and errors in the API's shape."""

    def __init__(self, app: ASGIApp, *, allowed_hosts: Iterable[str]) -> None:
        self._app = app
        self._allowed = LOOPBACK_NAMES | {host.lower() for host in allowed_hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI entry."""
        if scope["type"] != "http":
            return
        headers: Headers = scope["headers"]
        request_id = _request_id(headers)
        REQUEST_ID.set(request_id)
        dialect = dialect_of(scope["path"])
        names = [b"x-request-id", *([b"request-id"] if dialect is ANTHROPIC else [])]
        started = False

        def send_with_id(message: Message) -> Awaitable[None]:
            nonlocal started
            if not started and message["type"] == "http.response.start":
                started = True
                named = [(name, request_id.encode()) for name in names]
                message = {**message, "headers": [*message["headers"], *named]}
            return send(message)

        try:
            self._check_host(headers, scope.get("octavo.target", b"/"))
            await self._app(scope, receive, send_with_id)
        except OctavoError as error:
            if started:
                raise
            headers = [(b"connection", b"close")] if isinstance(error, _BEFORE_THE_BODY) else []
            if isinstance(error, RejectedError) and error.allow:
                headers.append((b"allow", error.allow.encode()))
            await send_error(send_with_id, error, dialect=dialect, headers=headers)
        except DisconnectedError:
            return
        except Exception:
            logger.exception("request %s failed", request_id)
            if started:
                raise
            bug = EngineError("internal error; see the server's log")
            await send_error(send_with_id, bug, dialect=dialect)

    def _check_host(self, headers: Headers, target: bytes) -> None:
        hosts = [value for name, value in headers if name == b"host"]
        if len(hosts) != 1:
            raise RejectedError(400, "exactly one Host header is required")
        if absolute := _ABSOLUTE.match(target):
            hosts.append(absolute[1])
        if not all(self._is_allowed(host.decode("latin-1")) for host in hosts):
            raise RejectedError(403, "this Host is not allowed; start with --allowed-host HOST")

    def _is_allowed(self, host: str) -> bool:
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = match[1].strip("[]").lower()
        return name in self._allowed or _is_address(name)


def _request_id(headers: Headers) -> str:
    """The client's own id when it is harmless, else a new one."""
    given = header(headers, b"x-request-id")
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given.decode()
    return f"req_{uuid.uuid4().hex}"


def _is_address(name: str) -> bool:
    """An address cannot be rebound to another, as a name can."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class ApiKeys:
    """The accepted keys, as digests, and whose they are; without any, everybody is admitted.

    ``keys`` are written ``KEY`` or ``NAME=KEY`` (see ``octavo.api_keys``).
    """

    def __init__(self, keys: Iterable[str]) -> None:
        tenants = tenants_of(keys)
        self._digests = [(_digest(key.encode()), name) for key, name in tenants.items()]
        self.num_tenants = len(set(tenants.values()))

    def __bool__(self) -> bool:
        return bool(self._digests)

    def check(self, headers: Headers) -> str:
        """Whose key it is. Constant time in the keys.

        Raises:
            RejectedError: 401, no key or a wrong one.
        """
        if not self._digests:
            return DEFAULT_TENANT
        digest = _digest(presented_key(headers))
        matches = [name for known, name in self._digests if hmac.compare_digest(digest, known)]
        if not matches:
            raise RejectedError(
                401, "a valid API key is required: Authorization: Bearer KEY, or x-api-key: KEY",
                code="invalid_api_key",
            )  # fmt: skip
        return matches[0]


def presented_key(headers: Headers) -> bytes:
    """The key that a client shows: as a bearer token, or in ``x-api-key``; empty without one."""
    scheme, _, key = (header(headers, b"authorization") or b"").partition(b" ")
    if scheme.lower() == b"bearer":
        return key.strip()
    return (header(headers, b"x-api-key") or b"").strip()


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


class BodyReader:
    """Reads bodies under a cap each and a cap over all connections together.

    ``held`` is the bytes in memory now, of ``max_total_bytes``.
    """

    def __init__(
        self, *, max_bytes: int = MAX_BODY_BYTES, max_total_bytes: int = MAX_BODIES_BYTES
    ) -> None:
        self._max_bytes = max_bytes
        self.max_total_bytes = max_total_bytes
        self.held = 0

    @asynccontextmanager
    async def reading(self, headers: Headers, receive: Receive) -> AsyncIterator[bytes]:
        """The whole body of a JSON request; it counts against the total while the block runs.

        Raises:
            RejectedError: 413 too large, 415 not plain JSON.
            OverloadedError: too many bodies are held.
            DisconnectedError: the client went away.
        """
        _check_content(headers)
        declared = _declared_length(headers)
        if declared is not None and declared > self._max_bytes:
            raise self._too_large()
        chunks: list[bytes] = []
        size = 0
        try:
            async for chunk in _chunks(receive):
                size += len(chunk)
                self.held += len(chunk)
                if size > self._max_bytes:
                    raise self._too_large()
                if self.held > self.max_total_bytes:
                    raise OverloadedError("too many large requests at once; retry later")
                chunks.append(chunk)
            yield b"".join(chunks)
        finally:
            self.held -= size

    def _too_large(self) -> RejectedError:
        return RejectedError(413, f"the body is too large; the limit is {self._max_bytes} bytes")


async def _chunks(receive: Receive) -> AsyncIterator[bytes]:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise DisconnectedError
        yield message.get("body", b"")
        if not message.get("more_body", False):
            return


def _check_content(headers: Headers) -> None:
    encoding = header(headers, b"content-encoding")
    if encoding is not None and encoding.strip().lower() != b"identity":
        raise RejectedError(415, "compressed bodies are not accepted; send plain JSON")
    content_type = header(headers, b"content-type") or b""
    kind, *parameters = (part.strip().lower() for part in content_type.split(b";"))
    if kind != b"application/json":
        raise RejectedError(415, "the content type must be application/json")
    for parameter in parameters:
        name, _, value = parameter.partition(b"=")
        if name == b"charset" and value.strip(b'"') not in (b"utf-8", b"utf8"):
            raise RejectedError(415, "the charset must be utf-8, which JSON is written in")


def _declared_length(headers: Headers) -> int | None:
    text = header(headers, b"content-length")
    if text is None:
        return None
    if not text.isdigit() or len(text) > 20:
        raise RejectedError(400, "the Content-Length is not a number")
    return int(text)
