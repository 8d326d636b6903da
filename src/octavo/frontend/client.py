"""The asynchronous client of one engine: submits, streams, cancels, and survives the engine.

    submit → journal → Submit ──────────▶ engine
    stream ◀─ deltas ◀─ output processor ◀─ Outputs          (journaled before they leave)
    engine gone → refuse new requests, keep the old → engine back (another epoch) → replay

After a death the requests it ran are replayed one at a time, the next when the last has given a
token, so that one that kills the engine is found out: it is dropped by name after three deaths.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from octavo.cluster.engine_loop import LEASE_EXPIRED
from octavo.cluster.messages import (
    AbortMessage,
    Control,
    ControlReply,
    EngineMessage,
    FrontendMessage,
    Hello,
    Lease,
    Outputs,
    Stats,
    StopBranchMessage,
    SubmitMessage,
    Welcome,
)
from octavo.cluster.wire import WireError, decode_engine_message, encode
from octavo.core.request import BranchOutput, Request
from octavo.errors import (
    DeadlineExceededError,
    EngineError,
    OctavoError,
    OverloadedError,
    UnavailableError,
)
from octavo.frontend.outputs import RequestOutput
from octavo.frontend.stream import RequestStream

if TYPE_CHECKING:
    from octavo.frontend.output_processor import OutputProcessor
    from octavo.frontend.transport import Transport

TICK_S = 0.25
STALL_S = 5.0
SLOW_CLIENT_S = 30.0
DEADLINE_GRACE_S = 1.0
RETRY_BUDGET = 3
CONTROL_TIMEOUT_S = 5.0

logger = logging.getLogger(__name__)


class AsyncEngineClient:
    """Owns the streams in flight and the connection; the journal belongs to the processor."""

    def __init__(
        self,
        transport: Transport,
        processor: OutputProcessor,
        *,
        client_epoch: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._transport = transport
        self._processor = processor
        self._journal = processor.journal
        self._epoch = client_epoch
        self._clock = clock
        self._ids = itertools.count()
        self._streams: dict[str, RequestStream] = {}
        self._submitted: set[str] = set()
        self._replay: deque[str] = deque()
        self._probe: str | None = None
        self._unsent_aborts: list[str] = []
        self._connected = False
        self._engine_epoch: int | None = None
        self._progress = -1
        self._progress_at = 0.0
        self._calls: dict[int, asyncio.Future[dict[str, object]]] = {}
        self._tick_handle: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._idle = asyncio.Event()
        self.welcome: Welcome | None = None
        self.stats: Stats | None = None
        self.engine_restarts = 0

    # -- life ------------------------------------------------------------------------------

    def start(self) -> None:
        """Connect and keep connected. Call on the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._transport.start(self)

    def close(self) -> None:
        """Drop the connection; streams still open end with an error."""
        for request_id in list(self._streams):
            self._fail(request_id, UnavailableError("the server is stopping"))
        if self._tick_handle is not None:
            self._tick_handle.cancel()
        self._transport.close()

    @property
    def ready(self) -> bool:
        """Whether an engine is there and makes progress with the work it has (P6)."""
        if self.welcome is None:
            return False
        return not self._submitted or self._clock() - self._progress_at < STALL_S

    @property
    def num_active(self) -> int:
        """Requests whose stream has not ended."""
        return len(self._streams)

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no request is in flight. Returns whether that came true in time."""
        self._idle.clear()
        if not self._streams:
            return True
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    # -- requests --------------------------------------------------------------------------

    def submit(self, request: Request, *, timeout_s: float) -> RequestStream:
        """Journal and send a request; its ``request_id``, arrival and deadline are set here.

        Raises:
            UnavailableError: no engine is there.
            OverloadedError: the journal is full.
        """
        if self.welcome is None:
            raise UnavailableError("the engine is starting or recovering; retry later")
        now = self._clock()
        request = replace(
            request,
            request_id=f"{self._epoch:016x}-{next(self._ids)}",
            arrival_time=now,
            deadline=now + timeout_s,
        )
        entry = self._processor.open(request)
        stream = RequestStream(
            entry.request, on_drained=self._on_drained, on_cancel=self._on_cancel
        )
        self._streams[request.request_id] = stream
        if self._replay or self._probe is not None:
            self._replay.append(request.request_id)
        elif not self._send_submit(request.request_id):
            self._forget(request.request_id)
            raise OverloadedError("the engine does not take requests fast enough; retry later")
        self._schedule_tick()
        return stream

    async def generate(
        self, request: Request, *, timeout_s: float = 600.0
    ) -> AsyncIterator[RequestOutput]:
        """``submit`` as an asynchronous generator of ``RequestOutput``; leaving it cancels."""
        stream = self.submit(request, timeout_s=timeout_s)
        try:
            async for output in stream:
                yield output
        finally:
            stream.cancel()

    async def control(self, verb: str) -> dict[str, object]:
        """Ask the engine for a dump ("kv", "requests") or give it an order.

        Raises:
            UnavailableError: no engine answers within a few seconds.
        """
        assert self._loop is not None
        call_id = next(self._ids)
        future: asyncio.Future[dict[str, object]] = self._loop.create_future()
        self._calls[call_id] = future
        try:
            if self.welcome is None or not self._send(
                Control(client_epoch=self._epoch, call_id=call_id, verb=verb)
            ):
                raise UnavailableError("the engine is starting or recovering; retry later")
            async with asyncio.timeout(CONTROL_TIMEOUT_S):
                return await future
        except TimeoutError:
            raise UnavailableError("the engine does not answer; retry later") from None
        finally:
            del self._calls[call_id]

    def _send_submit(self, request_id: str) -> bool:
        entry = self._journal.get(request_id)
        assert entry is not None
        if not self._submitted:
            self._progress_at = self._clock()
        message = SubmitMessage(client_epoch=self._epoch, submit=entry.submission())
        if not self._send(message):
            return False
        self._submitted.add(request_id)
        return True

    def _send(self, message: FrontendMessage) -> bool:
        try:
            return self._transport.send(encode(message))
        except WireError:
            return False

    def _on_cancel(self, stream: RequestStream) -> None:
        self._abort_in_engine(stream.request_id)
        self._forget(stream.request_id)

    def _abort_in_engine(self, request_id: str) -> None:
        if request_id not in self._submitted:
            return
        self._submitted.discard(request_id)
        message = AbortMessage(client_epoch=self._epoch, request_ids=[request_id])
        if self._connected and not self._send(message):
            self._unsent_aborts.append(request_id)

    def _forget(self, request_id: str) -> None:
        self._streams.pop(request_id, None)
        self._submitted.discard(request_id)
        self._processor.close(request_id)
        if not self._streams:
            self._idle.set()
        if self._probe == request_id:
            self._advance_replay()

    def _fail(self, request_id: str, error: OctavoError) -> None:
        stream = self._streams.get(request_id)
        self._abort_in_engine(request_id)
        self._forget(request_id)
        if stream is not None:
            stream.fail(error)

    # -- the connection --------------------------------------------------------------------

    def connected(self) -> None:
        """See ``Receiver``."""
        self._connected = True
        self._send(Hello(client_epoch=self._epoch))
        self._schedule_tick()

    def disconnected(self) -> None:
        """See ``Receiver``."""
        self._connected = False
        self._lose_engine()

    def frame_received(self, frame: bytes) -> None:
        """See ``Receiver``."""
        try:
            message = decode_engine_message(frame)
        except WireError as error:
            logger.error("a frame from the engine is dropped: %s", error)
            return
        if isinstance(message, Welcome):
            self._on_welcome(message)
        elif message.engine_epoch == self._engine_epoch:
            self._on_message(message)

    def _on_message(self, message: EngineMessage) -> None:
        match message:
            case Outputs():
                self._progress_at = self._clock()
                self._on_outputs(message.outputs)
            case Stats():
                self.stats = message
                if message.progress != self._progress:
                    self._progress = message.progress
                    self._progress_at = self._clock()
            case ControlReply():
                future = self._calls.get(message.call_id)
                if future is not None and not future.done():
                    future.set_result(message.body)
            case Welcome():
                pass

    def _lose_engine(self) -> None:
        self.welcome = None
        self._unsent_aborts.clear()
        for future in self._calls.values():
            if not future.done():
                future.set_exception(UnavailableError("the engine went away; retry later"))

    def _on_welcome(self, welcome: Welcome) -> None:
        if self.welcome is not None and welcome.engine_epoch == self._engine_epoch:
            return
        died = self._engine_epoch is not None and welcome.engine_epoch != self._engine_epoch
        self._engine_epoch = welcome.engine_epoch
        self.welcome = welcome
        self._progress_at = self._clock()
        suspects, self._submitted = self._submitted, set()
        self._probe = None
        if died:
            self.engine_restarts += 1
            self._blame(suspects)
        self._replay_all(serially=died)

    def _blame(self, suspects: set[str]) -> None:
        for request_id in suspects:
            entry = self._journal.get(request_id)
            if entry is None:
                continue
            entry.blamed += 1
            if entry.blamed >= RETRY_BUDGET:
                logger.error("request %s is dropped: the engine died with it", request_id)
                self._fail(
                    request_id,
                    EngineError(
                        f"request {request_id} was running at {entry.blamed} deaths of the "
                        "engine and is dropped"
                    ),
                )

    def _replay_all(self, *, serially: bool) -> None:
        """Continue every request from its journal, under a new epoch each."""
        waiting = [
            request_id
            for request_id, stream in self._streams.items()
            if stream.paused_since is None
        ]
        for request_id in waiting:
            entry = self._journal.get(request_id)
            assert entry is not None
            entry.epoch += 1
        self._replay = deque(waiting)
        self._advance_replay()
        while self._probe is not None and not serially:
            self._advance_replay()

    def _advance_replay(self) -> None:
        """Submit the next request to be replayed; it is the probe until it gives a token."""
        self._probe = None
        while self._replay and self.welcome is not None:
            request_id = self._replay[0]
            if request_id in self._streams and not self._send_submit(request_id):
                return
            self._replay.popleft()
            if request_id in self._streams:
                self._probe = request_id
                return

    # -- outputs ---------------------------------------------------------------------------

    def _on_outputs(self, outputs: list[BranchOutput]) -> None:
        if any(output.error == LEASE_EXPIRED for output in outputs):
            # We stalled, the engine let go of our requests; say hello and replay them.
            self._lose_engine()
            self._send(Hello(client_epoch=self._epoch))
            return
        processed = self._processor.process(outputs)
        for stop in processed.stops:
            if stop.request_id in self._submitted:
                self._send(
                    StopBranchMessage(
                        client_epoch=self._epoch, request_id=stop.request_id, branch=stop.branch
                    )
                )
        for request_id in processed.gaps:
            self._restart(request_id)
        for output in processed.outputs:
            self._deliver(output.request_id, processed.failures.get(output.request_id), output)

    def _deliver(self, request_id: str, failure: OctavoError | None, output: RequestOutput) -> None:
        stream = self._streams.get(request_id)
        if stream is None:
            return
        entry = self._journal.get(request_id)
        if entry is not None:
            entry.blamed = 0
        if failure is not None:
            self._fail(request_id, failure)
            return
        stream.push(output)
        if output.finished:
            self._forget(request_id)
        elif stream.overfull:
            self._pause(stream)
        if self._probe == request_id:
            self._advance_replay()

    def _restart(self, request_id: str) -> None:
        """Take a request back and submit it again from the journal."""
        entry = self._journal.get(request_id)
        if entry is None:
            return
        self._abort_in_engine(request_id)
        entry.epoch += 1
        if not self._send_submit(request_id):
            self._fail(request_id, EngineError(f"request {request_id} could not be resumed"))

    # -- slow clients, leases, deadlines ---------------------------------------------------

    def _pause(self, stream: RequestStream) -> None:
        """Take the request out of the engine; its KV is only a cache of the journal."""
        if stream.paused_since is not None:
            return
        stream.paused_since = self._clock()
        self._abort_in_engine(stream.request_id)
        entry = self._journal.get(stream.request_id)
        assert entry is not None
        entry.epoch += 1

    def _on_drained(self, stream: RequestStream) -> None:
        if stream.paused_since is None or stream.request_id not in self._streams:
            return
        stream.paused_since = None
        if self.welcome is None or self._replay or self._probe is not None:
            self._replay.append(stream.request_id)
        elif not self._send_submit(stream.request_id):
            self._fail(stream.request_id, OverloadedError("the engine takes no requests now"))

    def _schedule_tick(self) -> None:
        if self._tick_handle is None and self._loop is not None:
            self._tick_handle = self._loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        """A few times a second while requests are in flight or a welcome is awaited."""
        self._tick_handle = None
        if self._connected and self.welcome is None:
            self._send(Hello(client_epoch=self._epoch))
        elif self._submitted:
            self._send(Lease(client_epoch=self._epoch))
        if self._unsent_aborts and self._send(
            AbortMessage(client_epoch=self._epoch, request_ids=self._unsent_aborts)
        ):
            self._unsent_aborts = []
        if self._replay and self._probe is None:
            self._advance_replay()
        self._expire()
        if self._streams or self._unsent_aborts or (self._connected and self.welcome is None):
            self._schedule_tick()

    def _expire(self) -> None:
        now = self._clock()
        for request_id, stream in list(self._streams.items()):
            deadline = stream.request.deadline
            if deadline is not None and now > deadline + DEADLINE_GRACE_S:
                self._fail(request_id, DeadlineExceededError("the request's deadline passed"))
            elif stream.paused_since is not None and now - stream.paused_since > SLOW_CLIENT_S:
                self._fail(
                    request_id,
                    UnavailableError(f"the client did not read for {SLOW_CLIENT_S:.0f} s"),
                )
