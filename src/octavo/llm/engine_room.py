"""The thread that steps an engine for event loops, and how requests and outputs cross over.

loop   Lane ── open · drop · ask ──▶ actions ▶ thread: act → submit → step → deliver
loop   Lane ◀── call_soon_threadsafe, once per lane and step ──┘
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import TypeVar

from octavo.core.request import Request
from octavo.errors import EngineError, OctavoError, UnavailableError
from octavo.frontend import RequestOutput
from octavo.llm.local_engine import Inbox, LocalEngine

_Result = TypeVar("_Result")


class Lane:
    """What one call's requests give, on the caller's event loop."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.requests = tuple(requests)
        self.loop = asyncio.get_running_loop()
        self._outputs: list[RequestOutput] = []
        self._failure: OctavoError | None = None
        self._num_open = len(self.requests)
        self._arrived = asyncio.Event()

    @property
    def ended(self) -> bool:
        """Whether all has ended and was taken."""
        return not (self._num_open or self._outputs or self._failure)

    def deliver(self, outputs: Sequence[RequestOutput], failure: OctavoError | None) -> None:
        """Add what a step gave; called on the lane's loop."""
        self._outputs += outputs
        self._num_open -= sum(output.finished for output in outputs)
        self._failure = self._failure or failure
        self._arrived.set()

    async def take(self) -> list[RequestOutput]:
        """What has come since the last time; a failure comes after all that preceded it.

        Raises:
            OctavoError: a request was refused or dropped.
        """
        while not (self._outputs or self._failure):
            self._arrived.clear()
            await self._arrived.wait()
        if not self._outputs and self._failure is not None:
            raise self._failure
        outputs, self._outputs = self._outputs, []
        return outputs


class EngineRoom:
    """Owns a local engine and the thread that alone touches it."""

    def __init__(self, local: LocalEngine) -> None:
        self._local = local
        self._actions: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._waiting: deque[tuple[Request, Lane]] = deque()
        self._running: dict[str, tuple[Lane, Inbox]] = {}
        self._thread = threading.Thread(target=self._serve, name="octavo-engine", daemon=True)
        self._thread.start()

    # -- from the event loops --------------------------------------------------------------

    def open(self, lane: Lane) -> None:
        """Run a lane's requests.

        Raises:
            UnavailableError: the room is closed.
        """
        self._post(lambda: self._waiting.extend((request, lane) for request in lane.requests))

    def drop(self, lane: Lane) -> None:
        """Cancel what a lane still has. No error after the end."""
        if not lane.ended and not self._closed:
            self._post(lambda: self._cancel(lane))

    async def ask(self, question: Callable[[LocalEngine], _Result]) -> _Result:
        """What ``question`` says of the engine between two steps.

        Raises:
            UnavailableError: the room is closed.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_Result] = loop.create_future()

        def answer() -> None:
            result = question(self._local)
            loop.call_soon_threadsafe(_settle, future, result)

        self._post(answer)
        return await future

    def close(self) -> None:
        """Fail what runs, end the thread, free the engine. Idempotent."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._actions.put(None)
        self._thread.join()
        self._local.close()

    def _post(self, action: Callable[[], None]) -> None:
        with self._lock:
            if self._closed:
                raise UnavailableError("this AsyncLLM is closed")
            self._actions.put(action)

    # -- on the thread ---------------------------------------------------------------------

    def _serve(self) -> None:
        failure: OctavoError = UnavailableError("this AsyncLLM was closed")
        try:
            while self._act():
                self._submit()
                if self._local.inboxes or self._local.core.has_work():
                    self._local.step()
                self._deliver()
        except Exception as fault:
            failure = EngineError("the engine's thread failed")
            failure.__cause__ = fault
        with self._lock:
            self._closed = True
        lanes = [lane for _, lane in self._waiting] + [lane for lane, _ in self._running.values()]
        for lane in dict.fromkeys(lanes):
            _call(lane, [], failure)

    def _act(self) -> bool:
        """Do what was asked; waits where there is nothing else to do. False: close."""
        local = self._local
        is_idle = not (self._waiting or local.inboxes or local.core.has_work())
        while is_idle or not self._actions.empty():
            action = self._actions.get()
            if action is None:
                return False
            action()
            is_idle = False
        return True

    def _submit(self) -> None:
        """Hand over as many requests as there is room for."""
        while self._waiting:
            request, lane = self._waiting[0]
            try:
                inbox = self._local.submit(request)
            except OctavoError as error:
                self._waiting.popleft()
                _call(lane, [], error)
                continue
            if inbox is None:
                return
            self._waiting.popleft()
            self._running[request.request_id] = (lane, inbox)

    def _deliver(self) -> None:
        news: dict[Lane, tuple[list[RequestOutput], OctavoError | None]] = {}
        for request_id, (lane, inbox) in list(self._running.items()):
            if not inbox.has_news:
                continue
            outputs, failure = news.get(lane, ([], None))
            news[lane] = ([*outputs, *inbox.outputs], failure or inbox.failure)
            inbox.outputs.clear()
            if inbox.finished or inbox.failure is not None:
                self._local.forget(request_id)
                del self._running[request_id]
        for lane, (outputs, failure) in news.items():
            if not _call(lane, outputs, failure):
                self._cancel(lane)

    def _cancel(self, lane: Lane) -> None:
        self._waiting = deque(pair for pair in self._waiting if pair[1] is not lane)
        ids = [key for key, (owner, _) in self._running.items() if owner is lane]
        for request_id in ids:
            del self._running[request_id]
        self._local.abort(ids)


def _settle(future: asyncio.Future[_Result], result: _Result) -> None:
    if not future.done():
        future.set_result(result)


def _call(lane: Lane, outputs: Sequence[RequestOutput], failure: OctavoError | None) -> bool:
    """Deliver on the lane's loop. False: that loop is gone."""
    try:
        lane.loop.call_soon_threadsafe(lane.deliver, outputs, failure)
    except RuntimeError:
        return False
    return True
