"""The asynchronous client of one engine: submits, streams, cancels, and survives the engine.

    submit → journal → Submit ──────────▶ engine
    stream ◀─ deltas ◀─ output processor ◀─ Outputs          (journaled before they leave)
    engine gone → refuse new requests, keep the old → engine back (another epoch) → replay

After a death ``Recovery`` says who is replayed when, so that a request that kills the engine is
found out, and only that one is dropped, by name. An engine that came back with other numerics or
other weights cannot continue what was begun: those requests are dropped by name too.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from octavo.cluster.engine_loop import LEASE_EXPIRED
from octavo.cluster.messages import (
    AbortMessage,
    Beat,
    Control,
    ControlReply,
    EngineMessage,
    Hello,
    Lease,
    Outputs,
    Stats,
    StopBranchMessage,
    SubmitMessage,
    Welcome,
)
from octavo.cluster.wire import WireError, decode_engine_message
from octavo.core.request import BranchOutput, Request
from octavo.errors import (
    DeadlineExceededError,
    EngineError,
    OctavoError,
    OverloadedError,
    UnavailableError,
)
from octavo.frontend.counter_totals import CounterTotals
from octavo.frontend.journal import Numerics
from octavo.frontend.outbox import Outbox
from octavo.frontend.outputs import RequestOutput
from octavo.frontend.progress_watch import HANG_S, ProgressWatch
from octavo.frontend.recovery import RETRY_BUDGET, Recovery
from octavo.frontend.stream import RequestStream

if TYPE_CHECKING:
    from octavo.frontend.output_processor import OutputProcessor
    from octavo.frontend.transport import Transport

TICK_S = 0.25
SLOW_CLIENT_S = 30.0
DEADLINE_GRACE_S = 1.0
CONTROL_TIMEOUT_S = 5.0

logger = logging.getLogger(__name__)


class AsyncEngineClient:
    """Owns the streams in flight and the connection; the journal belongs to the processor.

    ``on_hang(seconds)`` is told when the engine owes something and has not moved for that long,
    ``hang_s`` beyond what is usual (see ``ProgressWatch``). ``engine_restarts`` counts the deaths
    that it has seen; who knows of earlier ones sets it before ``start``.
    """

    def __init__(
        self,
        transport: Transport,
        processor: OutputProcessor,
        *,
        client_epoch: int,
        clock: Callable[[], float] = time.monotonic,
        on_hang: Callable[[float], None] = lambda _seconds: None,
        hang_s: float = HANG_S,
    ) -> None:
        self._transport = transport
        self._outbox = Outbox(transport)
        self._processor = processor
        self._journal = processor.journal
        self._epoch = client_epoch
        self._clock = clock
        self._ids = itertools.count()
        self._streams: dict[str, RequestStream] = {}
        self._submitted: set[str] = set()
        self._recovery = Recovery(processor.journal)
        self._connected = False
        self._engine_epoch: int | None = None
        self._watch = ProgressWatch(clock, hang_s=hang_s)
        self._on_hang = on_hang
        self._calls: dict[int, asyncio.Future[dict[str, object]]] = {}
        self._tick_handle: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._idle = asyncio.Event()
        self.welcome: Welcome | None = None
        self.stats: Stats | None = None
        self.counters = CounterTotals()
        self.engine_restarts = 0

    # -- life ------------------------------------------------------------------------------

    def start(self) -> None:
        """Connect and keep connected. Call on the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._watch.new_engine()
        self._transport.start(self)
        self._schedule_tick()

    def close(self) -> None:
        """Drop the connection; streams still open end with an error."""
        self.welcome = None
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
        return not self._submitted or not self._watch.stalled

    @property
    def num_active(self) -> int:
        """Requests whose stream has not ended."""
        return len(self._streams)

    def limits(self) -> dict[str, tuple[int, int]]:
        """What the journal holds and may hold: name → (used, limit)."""
        journal = self._journal
        return {
            "journal_requests": (len(journal), journal.max_requests),
            "journal_tokens": (journal.num_tokens, journal.max_tokens),
        }

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
        entry = self._processor.open(request, _numerics(self.welcome))
        stream = RequestStream(
            entry.request, on_drained=self._on_drained, on_cancel=self._on_cancel
        )
        self._streams[request.request_id] = stream
        if self._recovery.active:
            self._recovery.queue(request.request_id)
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
            if self.welcome is None or not self._outbox.send(
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
            self._watch.sign()
        message = SubmitMessage(client_epoch=self._epoch, submit=entry.submission())
        if not self._outbox.send(message):
            return False
        self._submitted.add(request_id)
        return True

    def _on_cancel(self, stream: RequestStream) -> None:
        self._abort_in_engine(stream.request_id)
        self._forget(stream.request_id)

    def _abort_in_engine(self, request_id: str) -> None:
        if request_id not in self._submitted:
            return
        self._submitted.discard(request_id)
        if self._connected:
            self._outbox.post(AbortMessage(client_epoch=self._epoch, request_ids=[request_id]))

    def _forget(self, request_id: str) -> None:
        self._streams.pop(request_id, None)
        self._submitted.discard(request_id)
        self._processor.close(request_id)
        if not self._streams:
            self._idle.set()
        self._recovery.left(request_id)
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
        self._watch.new_engine()
        self._outbox.send(Hello(client_epoch=self._epoch))
        self._schedule_tick()

    def disconnected(self) -> None:
        """See ``Receiver``."""
        self._connected = False
        self._lose_engine()
        self._watch.new_engine()
        self._schedule_tick()

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
                self._watch.sign()
                self._on_outputs(message.branch_outputs())
            case Stats():
                self.stats = message
                self.counters.note(message.engine_epoch, message.counters)
                self._watch.note(message.progress)
            case Beat():
                self._watch.note(message.progress)
            case ControlReply():
                future = self._calls.get(message.call_id)
                if future is not None and not future.done():
                    future.set_result(message.body)
            case Welcome():
                pass

    def _lose_engine(self) -> None:
        self.welcome = None
        self.stats = None
        self._outbox.clear()
        for future in self._calls.values():
            if not future.done():
                future.set_exception(UnavailableError("the engine went away; retry later"))

    def _on_welcome(self, welcome: Welcome) -> None:
        if self.welcome is not None and welcome.engine_epoch == self._engine_epoch:
            return
        if self.welcome is not None:
            self._lose_engine()
        died = self._engine_epoch is not None and welcome.engine_epoch != self._engine_epoch
        self._engine_epoch = welcome.engine_epoch
        self.welcome = welcome
        self._watch.new_engine()
        suspects, self._submitted = self._submitted, set()
        self._recovery.restart(())
        if died:
            self.engine_restarts += 1
            self._blame(suspects)
            self._drop_incomparable(_numerics(welcome))
        self._replay_all()

    def _blame(self, suspects: set[str]) -> None:
        for request_id in self._recovery.engine_died(suspects):
            logger.error("request %s is dropped: the engine died with it", request_id)
            error = EngineError(
                f"request {request_id} ran alone at {RETRY_BUDGET} deaths of the engine in a row "
                "and is dropped"
            )
            self._fail(request_id, error)

    def _drop_incomparable(self, now: Numerics) -> None:
        """Drop what another kind of engine began: this one's continuation would differ (P2)."""
        for request_id in list(self._streams):
            entry = self._journal.get(request_id)
            assert entry is not None
            if entry.numerics != now:
                logger.error(
                    "request %s is dropped: it began with %s, the engine now has %s",
                    request_id, entry.numerics, now,
                )  # fmt: skip
                error = EngineError(
                    f"request {request_id} is dropped: the engine came back with other weights or "
                    "numerics, with which its answer would go on differently"
                )
                self._fail(request_id, error)

    def _replay_all(self) -> None:
        """Continue every request from its journal, under a new epoch each."""
        waiting = [
            request_id
            for request_id, stream in self._streams.items()
            if stream.paused_since is None
        ]
        for request_id in waiting:
            self._next_epoch(request_id)
        self._recovery.restart(waiting)
        self._advance_replay()

    def _next_epoch(self, request_id: str) -> None:
        entry = self._journal.get(request_id)
        assert entry is not None
        entry.epoch += 1

    def _advance_replay(self) -> None:
        """Submit whoever's turn it is; what cannot be sent now is tried again on the tick."""
        while self.welcome is not None and (request_id := self._recovery.next()) is not None:
            if not self._send_submit(request_id):
                return
            self._recovery.took(request_id)

    # -- outputs ---------------------------------------------------------------------------

    def _on_outputs(self, outputs: list[BranchOutput]) -> None:
        if any(output.error == LEASE_EXPIRED for output in outputs):
            # We stalled, the engine let go of our requests; say hello and replay them.
            self._lose_engine()
            self._outbox.send(Hello(client_epoch=self._epoch))
            return
        processed = self._processor.process(outputs)
        for stop in processed.stops:
            if stop.request_id in self._submitted:
                self._outbox.post(
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
        if failure is not None:
            self._fail(request_id, failure)
            return
        stream.push(output)
        if output.finished:
            self._forget(request_id)
        elif stream.overfull:
            self._pause(stream)
        elif self._recovery.active and self._recovery.delivered(request_id, _num_tokens(output)):
            self._take_out(request_id)
        if self._recovery.active:
            self._advance_replay()

    def _restart(self, request_id: str) -> None:
        """Take a request back and submit it again from the journal."""
        self._take_out(request_id)
        self._recovery.left(request_id)
        self._recovery.queue(request_id)
        self._advance_replay()

    # -- slow clients, leases, deadlines ---------------------------------------------------

    def _pause(self, stream: RequestStream) -> None:
        """Take the request out of the engine; its KV is only a cache of the journal."""
        if stream.paused_since is not None:
            return
        stream.paused_since = self._clock()
        self._take_out(stream.request_id)
        self._recovery.left(stream.request_id)

    def _take_out(self, request_id: str) -> None:
        """Let the engine forget a request that is to be submitted again later."""
        self._abort_in_engine(request_id)
        self._next_epoch(request_id)

    def _on_drained(self, stream: RequestStream) -> None:
        if stream.paused_since is None or stream.request_id not in self._streams:
            return
        stream.paused_since = None
        if self.welcome is not None:
            self._recovery.queue(stream.request_id)
            self._advance_replay()

    def _schedule_tick(self) -> None:
        if self._tick_handle is None and self._loop is not None:
            self._tick_handle = self._loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        """A few times a second while requests are in flight or a welcome is awaited."""
        self._tick_handle = None
        # An engine that loads owes a welcome too; whoever kills knows that it is not ready yet.
        owed = self.welcome is None or bool(self._submitted)
        if silent_s := self._watch.tick(owed=owed):
            self._on_hang(silent_s)
        self._outbox.flush()
        if self._connected and self.welcome is None:
            self._outbox.send(Hello(client_epoch=self._epoch))
        elif self._submitted:
            self._outbox.send(Lease(client_epoch=self._epoch))
        self._advance_replay()
        self._expire()
        if self._streams or self._outbox or self.welcome is None:
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


def _numerics(welcome: Welcome) -> Numerics:
    return Numerics(welcome.fingerprint, welcome.model_digest)


def _num_tokens(output: RequestOutput) -> int:
    return sum(len(delta.token_ids) for delta in output.branches)
