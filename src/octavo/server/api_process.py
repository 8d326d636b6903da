"""``python -m octavo.server.api_process``: HTTP on an inherited socket, one engine behind it.

SIGTERM drains: readiness off, new work refused, running requests to their end or the deadline.
The exit code is 0 only if none was lost.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import uvloop

from octavo.cluster.child import ChildChannel, run_child
from octavo.cluster.heap import settle_heap
from octavo.cluster.transport import engine_address
from octavo.frontend import AsyncEngineClient, DealerTransport, OutputProcessor
from octavo.frontend.model_defaults import ModelDefaults, model_defaults
from octavo.frontend.progress_watch import HANG_S
from octavo.server.app import build_app
from octavo.server.edge import ApiKeys
from octavo.server.http_server import HttpServer
from octavo.server.metrics import Metrics
from octavo.server.state import REQUEST_TIMEOUT_S, ServerState
from octavo.worker import open_text

CLOSE_S = 2.0
SWITCH_INTERVAL_S = 0.0005


class ApiConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the command line hands to the API process, in a file that only its user can read."""

    model: str
    model_names: list[str]
    api_keys: list[str]
    allowed_hosts: list[str]
    drain_s: float
    request_timeout_s: float = REQUEST_TIMEOUT_S
    hang_s: float = HANG_S


def main(argv: Sequence[str] | None = None) -> int:
    """The process. Returns its exit code."""
    parser = argparse.ArgumentParser(prog="octavo-api")
    parser.add_argument("--runtime-dir", type=Path, required=True)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--listen-fd", type=int, required=True)
    parser.add_argument("--death-fd", type=int, default=-1)
    parser.add_argument("--status-fd", type=int, default=-1)
    parser.add_argument("--peer-deaths", type=int, default=0)
    options = parser.parse_args(argv)
    channel = ChildChannel(
        death_fd=options.death_fd, status_fd=options.status_fd, runtime_dir=options.runtime_dir
    )
    listener = socket.socket(fileno=options.listen_fd)
    address = engine_address(options.runtime_dir)

    def serve() -> int:
        # Between the event loop and the thread that parses large bodies: by default each wait for
        # the other would last 5 ms, and a loop that serves many sockets waits often.
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        config = msgspec.json.decode(options.config.read_bytes(), type=ApiConfig)
        process = ApiProcess(config, channel, address, engine_restarts=options.peer_deaths)
        return uvloop.run(process.run(listener))

    return run_child(channel, serve, name="api")


class ApiProcess:
    """Wires engine client, application and HTTP server together, and takes them apart."""

    def __init__(
        self, config: ApiConfig, channel: ChildChannel, engine: str, *, engine_restarts: int
    ) -> None:
        model, tokenizer, template = open_text(config.model)
        defaults: ModelDefaults = model_defaults(model, tokenizer)
        self._config = config
        self._channel = channel
        self._client = AsyncEngineClient(
            DealerTransport(engine),
            OutputProcessor(tokenizer),
            client_epoch=secrets.randbits(62),
            on_hang=lambda seconds: channel.report("hung", child="engine", silent_s=seconds),
            hang_s=config.hang_s,
        )
        self._client.engine_restarts = engine_restarts
        self._state = ServerState(
            client=self._client,
            tokenizer=tokenizer,
            chat_template=template,
            model_names=config.model_names,
            defaults=defaults.sampling,
            generation_config=defaults.shown,
            metrics=Metrics(
                self._client,
                model=config.model_names[0],
                is_draining=lambda: self._state.draining,
                limits=lambda: self._state.limits(),  # noqa: PLW0108 - the state is being built
            ),
            eos_token_ids=defaults.eos_token_ids,
            api_keys=ApiKeys(config.api_keys),
            request_timeout_s=config.request_timeout_s,
        )

    async def run(self, listener: socket.socket) -> int:
        """Serve until SIGTERM; returns the exit code."""
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        self._client.start()
        app = build_app(self._state, allowed_hosts=self._config.allowed_hosts)
        server = HttpServer(app, listener)
        self._state.num_connections = lambda: server.num_connections
        await server.start()
        settle_heap()
        self._channel.report("ready", generation_config=self._state.generation_config)
        await stop.wait()
        lost = await self._drain()
        self._client.close()
        await server.close(timeout_s=CLOSE_S)
        if lost:
            self._channel.report(
                "fatal", error=f"{lost} requests were lost: the drain deadline passed"
            )
        return 1 if lost else 0

    async def _drain(self) -> int:
        """Refuse new work, wait for the old. Returns how many requests were lost."""
        self._state.draining = True
        await self._client.wait_idle(self._config.drain_s)
        return self._client.num_active


if __name__ == "__main__":
    sys.exit(main())
