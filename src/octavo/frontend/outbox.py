"""Messages that must reach the engine in order, kept while its queue is full."""

from __future__ import annotations

from collections import deque

from octavo.cluster.messages import FrontendMessage
from octavo.cluster.wire import WireError, encode
from octavo.frontend.transport import Transport


class Outbox:
    """Owns what could not be sent yet. A lost abort or stop would generate for nobody."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._kept: deque[FrontendMessage] = deque()

    def __len__(self) -> int:
        return len(self._kept)

    def send(self, message: FrontendMessage) -> bool:
        """Send now, behind all that was kept. False: it was not sent and is not kept."""
        return self.flush() and self._try(message)

    def post(self, message: FrontendMessage) -> None:
        """Send now or, in order, as soon as it can be."""
        if not self.send(message):
            self._kept.append(message)

    def flush(self) -> bool:
        """Send what was kept. Returns whether nothing is left."""
        while self._kept and self._try(self._kept[0]):
            self._kept.popleft()
        return not self._kept

    def clear(self) -> None:
        """Forget what was kept: the engine that it was for is gone."""
        self._kept.clear()

    def _try(self, message: FrontendMessage) -> bool:
        try:
            return self._transport.send(encode(message))
        except WireError:
            return False
