"""One request as its caller sees it: an asynchronous iterator with a bounded, coalescing buffer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from octavo.core.request import Request
from octavo.errors import OctavoError
from octavo.frontend.outputs import RequestOutput

BUFFER_BYTES = 64 << 10
LOGPROB_BYTES = 24


class RequestStream(AsyncIterator[RequestOutput]):
    """Yields what arrived since the last look as one output; ends after the finished one.

    Owned by the client that made it; ``cancel`` is legal at any time and idempotent.
    """

    def __init__(
        self,
        request: Request,
        *,
        on_drained: Callable[[RequestStream], None],
        on_cancel: Callable[[RequestStream], None],
    ) -> None:
        self.request = request
        self.paused_since: float | None = None
        self._on_drained = on_drained
        self._on_cancel = on_cancel
        self._loop = asyncio.get_running_loop()
        self._pending: list[RequestOutput] = []
        # What the reader has at hand next is not counted: it is no lag.
        self._buffered_bytes = 0
        self._error: OctavoError | None = None
        self._ended = False
        self._delivered_end = False
        # What the reader waits for, if it waits: cheaper than an event, for there is one reader.
        self._waiter: asyncio.Future[None] | None = None

    @property
    def request_id(self) -> str:
        """The internal id, unique over all frontends."""
        return self.request.request_id

    @property
    def overfull(self) -> bool:
        """Whether the caller lags by more than the buffer may hold."""
        return self._buffered_bytes > BUFFER_BYTES

    def push(self, output: RequestOutput) -> None:
        """Deliver; the client calls this."""
        if self._pending:
            self._buffered_bytes += _size(output)
        self._pending.append(output)
        self._ended = self._ended or output.finished
        self._wake()

    def fail(self, error: OctavoError) -> None:
        """End with an error once the buffer is read; the client calls this."""
        self._error = error
        self._ended = True
        self._wake()

    def cancel(self) -> None:
        """Stop the request in whatever state it is."""
        if not self._ended:
            self._ended = True
            self._on_cancel(self)
            self._wake()

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> RequestOutput:
        if self._delivered_end:
            raise StopAsyncIteration
        while not self._pending and not self._ended:
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self._pending:
            return self._take()
        self._delivered_end = True
        if self._error is not None:
            raise self._error
        raise StopAsyncIteration

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _take(self) -> RequestOutput:
        merged, *others = self._pending
        for output in others:
            merged = merged.followed_by(output)
        self._pending.clear()
        self._buffered_bytes = 0
        self._delivered_end = merged.finished
        if self.paused_since is not None:
            self._on_drained(self)
        return merged


def _size(output: RequestOutput) -> int:
    total = 0
    for delta in output.branches:
        tops = sum(1 + len(entry.top) for entry in delta.logprobs)
        total += 4 * (len(delta.text) + len(delta.token_ids)) + LOGPROB_BYTES * tops
    return total
