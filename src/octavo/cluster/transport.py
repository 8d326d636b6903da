"""The engine's end of the socket: a ROUTER that never blocks on a peer."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import zmq

from octavo.cluster.wire import MAX_FRAME_BYTES

SEND_QUEUE_FRAMES = 16384
SOCKET_NAME = "engine.sock"
# Plain integers: the library's own enumerations cost more than the calls.
_EVENTS, _READABLE = int(zmq.EVENTS), int(zmq.POLLIN)
_LAST = int(zmq.NOBLOCK)
_MORE = int(zmq.SNDMORE) | _LAST


def engine_address(runtime_dir: Path) -> str:
    """Where the engine of a runtime directory listens."""
    return f"ipc://{runtime_dir / SOCKET_NAME}"


class EngineTransport(Protocol):
    """Frames from many frontends; the seam where a test puts a fake."""

    def receive(self, timeout_s: float | None) -> list[tuple[bytes, bytes]]:
        """All (peer, frame) pairs at hand; waits up to ``timeout_s`` (None: for ever)."""

    def send(self, peer: bytes, frame: bytes) -> bool:
        """Queue a frame. False: the peer is gone or does not read."""

    def close(self) -> None:
        """Release the socket."""


class RouterTransport:
    """``EngineTransport`` over a bound Unix socket."""

    def __init__(self, address: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        self._socket.setsockopt(zmq.SNDHWM, SEND_QUEUE_FRAMES)
        # With MANDATORY a send to a dead peer fails at once instead of vanishing.
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.bind(address)
        # The library's own class below its wrapper, whose code is cold behind every step.
        self._put = super(zmq.Socket, self._socket).send

    def receive(self, timeout_s: float | None) -> list[tuple[bytes, bytes]]:
        """See ``EngineTransport.receive``."""
        if timeout_s != 0 and not self._socket.poll(
            None if timeout_s is None else max(1, int(timeout_s * 1000))
        ):
            return []
        frames: list[tuple[bytes, bytes]] = []
        # Asked first, since an exception for every turn without a frame would cost more.
        while int(self._socket.getsockopt(_EVENTS)) & _READABLE:
            parts = self._socket.recv_multipart(zmq.NOBLOCK)
            # A well-behaved peer sends one part; anything else decodes as malformed.
            frames.append((parts[0], parts[1] if len(parts) == 2 else b""))
        return frames

    def send(self, peer: bytes, frame: bytes) -> bool:
        """See ``EngineTransport.send``."""
        try:
            self._put(peer, _MORE)
            self._put(frame, _LAST)
        except zmq.ZMQError:
            return False
        return True

    def close(self) -> None:
        """Release the socket and its I/O thread."""
        self._context.destroy(linger=0)
