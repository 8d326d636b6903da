"""The frontend's end of a socket: frames out, frames and connection changes in.

Callbacks run on the event loop and nothing here awaits, so a fake is three methods long.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import zmq
from zmq.utils.monitor import recv_monitor_message

from octavo.cluster.wire import MAX_FRAME_BYTES

SEND_QUEUE_FRAMES = 16384
RECONNECT_MS = 50


class Receiver(Protocol):
    """Who is told what happens on a transport."""

    def connected(self) -> None:
        """A connection stands; the peer may be another process than before."""

    def disconnected(self) -> None:
        """The connection is gone; what was sent may be lost."""

    def frame_received(self, frame: bytes) -> None:
        """A frame arrived."""


class Transport(Protocol):
    """A connection to one engine, kept up for ever; the seam where a test puts a fake."""

    def start(self, receiver: Receiver) -> None:
        """Begin; must be called on the event loop that will run the callbacks."""

    def send(self, frame: bytes) -> bool:
        """Queue a frame. False: there is no connection, or its queue is full."""

    def close(self) -> None:
        """Stop the callbacks and release the socket."""


class DealerTransport:
    """``Transport`` over a Unix socket to an engine's ROUTER."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        self._socket.setsockopt(zmq.SNDHWM, SEND_QUEUE_FRAMES)
        self._socket.setsockopt(zmq.RCVHWM, SEND_QUEUE_FRAMES)
        self._socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        # Without a connection a send fails: a frame for a dead engine must not reach the next.
        self._socket.setsockopt(zmq.IMMEDIATE, 1)
        self._monitor = self._socket.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
        )
        self._descriptors = [_descriptor(self._socket), _descriptor(self._monitor)]
        self._loop: asyncio.AbstractEventLoop | None = None
        self._receiver: Receiver | None = None
        self._drain_scheduled = False

    def start(self, receiver: Receiver) -> None:
        """See ``Transport.start``."""
        self._receiver = receiver
        self._loop = asyncio.get_running_loop()
        for descriptor in self._descriptors:
            self._loop.add_reader(descriptor, self._drain)
        self._socket.connect(self._address)
        self._schedule_drain()

    def send(self, frame: bytes) -> bool:
        """See ``Transport.send``."""
        if self._loop is None:
            return False
        try:
            self._socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            return False
        # A send may consume the edge that announces readable frames.
        self._schedule_drain()
        return True

    def close(self) -> None:
        """See ``Transport.close``."""
        if self._loop is not None:
            for descriptor in self._descriptors:
                self._loop.remove_reader(descriptor)
            self._loop = None
        self._socket.disable_monitor()
        self._context.destroy(linger=0)

    def _schedule_drain(self) -> None:
        if self._loop is not None and not self._drain_scheduled:
            self._drain_scheduled = True
            self._loop.call_soon(self._drain)

    def _drain(self) -> None:
        """Deliver all that is at hand: the descriptors are edge-triggered."""
        self._drain_scheduled = False
        receiver = self._receiver
        assert receiver is not None
        while self._loop is not None and (frame := _receive(self._socket)) is not None:
            receiver.frame_received(frame)
        while self._loop is not None and _is_readable(self._monitor):
            event = recv_monitor_message(self._monitor)["event"]
            if event == zmq.EVENT_DISCONNECTED:
                receiver.disconnected()
            else:
                receiver.connected()


def _descriptor(socket: zmq.Socket[bytes]) -> int:
    return int(socket.getsockopt(zmq.FD))


def _is_readable(socket: zmq.Socket[bytes]) -> bool:
    return bool(int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN)


def _receive(socket: zmq.Socket[bytes]) -> bytes | None:
    # Asked first, since an exception at the end of every turn would cost more.
    if not _is_readable(socket):
        return None
    return b"".join(socket.recv_multipart(zmq.NOBLOCK))
