"""Applications on real sockets, behind the guarded protocol."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from octavo.server.http_server import HttpServer

GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
App = Callable[..., Awaitable[None]]


class Listening:
    def __init__(self, server: HttpServer, port: int) -> None:
        self.server = server
        self.port = port

    async def connect(
        self, *, receive_buffer: int = 0
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        connection = socket.socket()
        if receive_buffer:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", self.port))
        return await asyncio.open_connection(sock=connection, limit=4096)

    async def wait_no_handler(self) -> None:
        while self.server.num_handlers:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def wait_no_connection(self) -> None:
        while self.server.num_connections:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@asynccontextmanager
async def listening(app: App) -> AsyncIterator[Listening]:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    server = HttpServer(app, listener)
    await server.start()
    try:
        yield Listening(server, listener.getsockname()[1])
    finally:
        await server.close(timeout_s=0.1)


def play(app: App, test: Callable[[Listening], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(20), listening(app) as here:
            await test(here)

    asyncio.run(main())


async def healthy(scope: Any, receive: Any, send: Any) -> None:
    start = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
    await send(start)
    await send({"type": "http.response.body", "body": b"ok"})


async def reads_first(scope: Any, receive: Any, send: Any) -> None:
    while (message := await receive())["type"] == "http.request" and message["more_body"]:
        pass
    await healthy(scope, receive, send)
