"""Running the engine requests of one HTTP request: all cancelled when the client leaves.

submit all → wait for the first output (errors still have a status) → stream or collect
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from starlette.types import Receive

from octavo.core.request import FinishReason, Request, TokenLogprobs
from octavo.frontend import BranchDelta, RequestOutput, RequestStream, Usage
from octavo.server.dialects import REQUEST_ID
from octavo.server.metrics import Outcome, RequestWatch
from octavo.server.state import ServerState

_Made = TypeVar("_Made")


class Generation:
    """Owns the streams of one HTTP request. Use as a context: leaving it cancels what runs."""

    def __init__(
        self,
        state: ServerState,
        requests: Sequence[Request],
        receive: Receive,
        *,
        timeout_s: float | None = None,
    ) -> None:
        self._timeout_s = state.request_timeout_s if timeout_s is None else timeout_s
        self._state = state
        self._requests = requests
        self._receive = receive
        self._streams: list[RequestStream] = []
        self._watcher: asyncio.Task[None] | None = None
        self._usage: dict[int, Usage] = {}
        self._first_at: float | None = None
        self._num_running = len(requests)
        self.disconnected = False

    def __enter__(self) -> Generation:
        self.start()
        return self

    def start(self) -> None:
        """Submit every request; ``close`` is owed from then on.

        Raises:
            OctavoError: one is not taken; none runs.
        """
        try:
            for request in self._requests:
                stream = self._state.client.submit(request, timeout_s=self._timeout_s)
                self._streams.append(stream)
                self._state.request_ids[stream.request_id] = REQUEST_ID.get()
        except BaseException:
            self._cancel()
            raise
        self._watcher = asyncio.create_task(self._watch())

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancel what still runs. Idempotent."""
        if self._watcher is not None:
            self._watcher.cancel()
        self._cancel()

    async def _watch(self) -> None:
        """Cancel as soon as the client is gone, streamed or not."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.disconnected = True
        self._cancel()

    def _cancel(self) -> None:
        for stream in self._streams:
            stream.cancel()
            self._state.request_ids.pop(stream.request_id, None)

    @property
    def usage(self) -> Usage:
        """The counts of all requests together."""
        parts = self._usage.values()
        return Usage(
            prompt_tokens=sum(part.prompt_tokens for part in parts),
            completion_tokens=sum(part.completion_tokens for part in parts),
            cached_tokens=sum(part.cached_tokens for part in parts),
            accepted_tokens=sum(part.accepted_tokens for part in parts),
            rejected_tokens=sum(part.rejected_tokens for part in parts),
        )

    @property
    def timings(self) -> dict[str, float]:
        """Milliseconds from the arrival to the first output and to now."""
        arrived, now = self._streams[0].request.arrival_time, self._state.metrics.clock()
        first = now if self._first_at is None else self._first_at
        return {
            "first_token_ms": round((first - arrived) * 1000, 3),
            "total_ms": round((now - arrived) * 1000, 3),
        }

    @property
    def has_ended(self) -> bool:
        """Whether the last output of all has come."""
        return not self._num_running

    def outputs(self, make: Callable[[int, RequestOutput], _Made]) -> AsyncGenerator[_Made, None]:
        """What ``make`` makes of (request index, output) as they come, unless it is empty.

        Ends when all have ended.

        Raises:
            OctavoError: a request was dropped; the others are cancelled with the context.
        """
        return self._of_one(make) if len(self._streams) == 1 else self._of_all(make)

    async def _of_one(
        self, make: Callable[[int, RequestOutput], _Made]
    ) -> AsyncGenerator[_Made, None]:
        """The common case, without a generator in between."""
        async with self._watching() as (watch,):
            async for output in self._streams[0]:
                self._note(watch, 0, output)
                if made := make(0, output):
                    yield made

    async def _of_all(
        self, make: Callable[[int, RequestOutput], _Made]
    ) -> AsyncGenerator[_Made, None]:
        async with self._watching() as watches, contextlib.aclosing(self._merged()) as merged:
            async for index, output in merged:
                self._note(watches[index], index, output)
                if made := make(index, output):
                    yield made

    @contextlib.asynccontextmanager
    async def _watching(self) -> AsyncGenerator[list[RequestWatch], None]:
        """Measure every request until the block is left, however."""
        metrics = self._state.metrics
        watches = [metrics.watch(stream.request) for stream in self._streams]
        outcome = Outcome.ABORT
        try:
            yield watches
        except Exception:
            outcome = Outcome.ERROR
            raise
        finally:
            for watch in watches:
                watch.close(outcome)

    async def run(self, take: Callable[[int, RequestOutput], None]) -> None:
        """Hand every (request index, output) to ``take`` until all have ended.

        Raises:
            OctavoError: see ``outputs``.
        """
        async with contextlib.aclosing(self.outputs(take)) as nothing:
            async for _ in nothing:
                pass

    def _note(self, watch: RequestWatch, index: int, output: RequestOutput) -> None:
        now = watch.observe(output)
        if self._first_at is None:
            self._first_at = now
        self._usage[index] = output.usage
        self._num_running -= output.finished

    async def _merged(self) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        waiting = {self._next(index): index for index in range(len(self._streams))}
        try:
            while waiting:
                done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                ended = [task for task in done if _is_end(task)]
                for task in ended:
                    del waiting[task]
                for task in done.difference(ended):
                    index, output = waiting.pop(task), task.result()
                    waiting[self._next(index)] = index
                    yield index, output
        finally:
            for task in waiting:
                task.cancel()

    def _next(self, index: int) -> asyncio.Future[RequestOutput]:
        return asyncio.ensure_future(anext(self._streams[index]))


def _is_end(task: asyncio.Future[RequestOutput]) -> bool:
    return isinstance(task.exception(), StopAsyncIteration)


@dataclass(slots=True)
class Choice:
    """One finished choice, collected."""

    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None

    def add(self, delta: BranchDelta) -> None:
        """Take a delta in."""
        self.text.append(delta.text)
        self.token_ids.extend(delta.token_ids)
        self.logprobs.extend(delta.logprobs)
        self.prompt_logprobs = self.prompt_logprobs or delta.prompt_logprobs
        self.finish_reason = delta.finish_reason or self.finish_reason
        self.stop_reason = self.stop_reason if delta.stop_reason is None else delta.stop_reason


async def collect(generation: Generation, *, num_prompts: int, n: int) -> list[Choice]:
    """All choices of a request that is not streamed, prompt-major."""
    choices = [Choice() for _ in range(num_prompts * n)]

    def take(prompt_index: int, output: RequestOutput) -> None:
        for index, delta in flat(prompt_index, output, n):
            choices[index].add(delta)

    await generation.run(take)
    return choices


def flat(index: int, output: RequestOutput, n: int) -> Iterator[tuple[int, BranchDelta]]:
    """(choice index, delta) pairs of an output."""
    for delta in output.branches:
        yield index * n + delta.branch, delta
