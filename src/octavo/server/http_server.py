"""Listening, and leaving in order: a thin driver of uvicorn's protocol on an inherited socket."""

from __future__ import annotations

import asyncio
import resource
import socket

import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import ServerState as ConnectionState

from octavo.server.http_protocol import GuardedProtocol

BACKLOG = 1024
KEEP_ALIVE_S = 30
# A listening handle takes one connection in a turn of the loop; beside many large bodies a turn is
# long, and who comes then would wait one for each of those that came before.
ACCEPTS_PER_TURN = 16


class HttpServer:
    """Owns the connections of one listening socket."""

    def __init__(self, app: ASGIApp, listener: socket.socket) -> None:
        self._config = uvicorn.Config(
            app,
            http=GuardedProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        self._listener = listener
        self._state = ConnectionState()
        self._servers: list[asyncio.Server] = []

    @property
    def num_connections(self) -> int:
        """Open connections, idle ones included."""
        return len(self._state.connections)

    @property
    def num_handlers(self) -> int:
        """Requests that are being answered."""
        return len(self._state.tasks)

    async def start(self) -> None:
        """Accept connections."""
        _raise_file_limit()
        self._config.load()
        loop = asyncio.get_running_loop()

        def connection() -> GuardedProtocol:
            return GuardedProtocol(self._config, self._state, {}, loop)

        for _ in range(ACCEPTS_PER_TURN):
            listener = self._listener.dup()
            server = await loop.create_server(connection, sock=listener, backlog=BACKLOG)
            self._servers.append(server)

    async def close(self, *, timeout_s: float) -> None:
        """Stop accepting, let responses end, then drop what is left."""
        for server in self._servers:
            server.close()
        self._listener.close()
        for protocol in list(self._state.connections):
            protocol.shutdown()
        tasks = set(self._state.tasks)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=timeout_s)
            for task in late:
                task.cancel()
        for protocol in list(self._state.connections):
            protocol.transport.close()


def _raise_file_limit() -> None:
    """Idle sockets are cheap; the default limit of descriptors is lower than what is served."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 16384 if hard == resource.RLIM_INFINITY else min(hard, 16384)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
