"""Closing a connection whose peer still sends, so that it hears why.

A socket that is closed with bytes unread sends a reset, which may overtake the answer. So the
sending half is closed, what still comes is thrown away, and the rest is closed when the peer has
ended, or at a cap of bytes or of time.
"""

from __future__ import annotations

import asyncio
from typing import Any

LINGER_S = 3.0
LINGER_BYTES = 16 << 20


class LingeringTransport:
    """Stands before a connection's transport; only ``close`` is another, once ``unread`` is set.

    ``unread``: the peer is in the midst of a message that will not be read. While ``lingers``,
    whoever receives hands what comes to ``discard``.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._discarded = 0
        self.unread = False
        # Looked up once: it is called for every token of every stream.
        self.write = transport.write

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the transport has
        return getattr(self._transport, name)

    @property
    def lingers(self) -> bool:
        """Whether what comes is thrown away."""
        return self._timer is not None

    def is_closing(self) -> bool:
        """Whether nothing more is to be written."""
        return self.lingers or self._transport.is_closing()

    def close(self) -> None:
        """Close, at once or after the peer has ended. Idempotent."""
        if self.is_closing():
            return
        if not self.unread:
            self._transport.close()
            return
        self._timer = self._loop.call_later(LINGER_S, self._transport.close)
        self._transport.resume_reading()
        self._transport.write_eof()

    def discard(self, data: bytes) -> None:
        """Throw away what came, up to the cap."""
        self._discarded += len(data)
        if self._discarded > LINGER_BYTES:
            self._transport.close()

    def lost(self) -> None:
        """The connection is gone: stop the clock."""
        if self._timer is not None:
            self._timer.cancel()
