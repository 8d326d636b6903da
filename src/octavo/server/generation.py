"""Running the engine requests of one HTTP request: all cancelled when the client leaves.

submit all → wait for the first output (errors still have a status) → stream or collect
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, field

from starlette.types import Receive

from octavo.core.request import FinishReason, Request, TokenLogprobs
from octavo.frontend import BranchDelta, RequestOutput, RequestStream, Usage
from octavo.server.metrics import Outcome, RequestWatch
from octavo.server.state import ServerState

Item = tuple[int, RequestOutput]


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

    async def outputs(self) -> AsyncGenerator[Item, None]:
        """(request index, output) pairs as they come; ends when all have ended.

        Raises:
            OctavoError: a request was dropped; the others are cancelled with the context.
        """
        metrics = self._state.metrics
        watches = [metrics.watch(stream.request) for stream in self._streams]
        outcome = Outcome.ABORT
        try:
            if len(self._streams) == 1:
                # The common case, without a generator in between.
                async for output in self._streams[0]:
                    yield self._note(watches[0], 0, output)
                return
            async with contextlib.aclosing(self._merged()) as merged:
                async for index, output in merged:
                    yield self._note(watches[index], index, output)
        except Exception:
            outcome = Outcome.ERROR
            raise
        finally:
            for watch in watches:
                watch.close(outcome)

    def _note(self, watch: RequestWatch, index: int, output: RequestOutput) -> Item:
        watch.observe(output)
        if self._first_at is None:
            self._first_at = self._state.metrics.clock()
        self._usage[index] = output.usage
        return index, output

    async def _merged(self) -> AsyncGenerator[Item, None]:
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
    async with contextlib.aclosing(generation.outputs()) as outputs:
        async for item in outputs:
            for index, delta in flat(*item, n):
                choices[index].add(delta)
    return choices


def flat(index: int, output: RequestOutput, n: int) -> Iterator[tuple[int, BranchDelta]]:
    """(choice index, delta) pairs of an output."""
    for delta in output.branches:
        yield index * n + delta.branch, delta
