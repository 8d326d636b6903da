"""An asynchronous client and a loopback engine on the event loop of a test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from octavo.cluster.wire import decode_frontend_message
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.frontend import AsyncEngineClient, OutputProcessor, RequestStream
from octavo.testing.fake_runner import make_info
from octavo.testing.loopback import LoopbackEngine

PROMPT = tuple(range(100, 140))


def request(*, prompt: tuple[int, ...] = PROMPT, **sampling: Any) -> Request:
    options = {"max_tokens": 24, "seed": 3, **sampling}
    return Request(request_id="", prompt_token_ids=prompt, sampling=SamplingParams(**options))


class World:
    def __init__(self, tokenizer: Any, **engine: Any) -> None:
        self.runner: asyncio.Task[None]
        self.hangs: list[float] = []
        hang_s = engine.pop("hang_s", 5.0)
        info = make_info(vocab_size=49152, num_blocks=engine.pop("num_blocks", 256))
        self.engine = LoopbackEngine(info, **engine)
        self.processor = OutputProcessor(tokenizer)
        self.most = 0
        self.client = AsyncEngineClient(
            self.engine, self.processor, client_epoch=9, on_hang=self.hangs.append, hang_s=hang_s
        )

    def messages(self, kind: type) -> list[Any]:
        decoded = [decode_frontend_message(frame) for frame in self.engine.sent]
        return [message for message in decoded if isinstance(message, kind)]

    def delivered(self) -> int:
        """Tokens that left so far."""
        kinds = self.processor.journal._entries.values()
        now = sum(len(branch.token_ids) for entry in kinds for branch in entry.branches)
        self.most = max(self.most, now)
        return self.most

    def kept(self) -> tuple[int, ...]:
        """All that may be left behind by a request."""
        core = self.engine.engine
        assert core is not None
        states = core.requests.states
        return (
            self.client.num_active, len(self.processor), len(self.processor.journal), len(states),
            self.processor.journal.num_tokens,
        )  # fmt: skip


@contextlib.asynccontextmanager
async def world(tokenizer: Any, **engine: Any) -> AsyncIterator[World]:
    here = World(tokenizer, **engine)
    here.client.start()
    here.runner = asyncio.create_task(here.engine.run())
    try:
        await until(lambda: here.client.ready)
        yield here
    finally:
        here.runner.cancel()
        here.client.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - any condition, not an event
            await asyncio.sleep(0.001)


async def read(stream: RequestStream) -> tuple[dict[int, list[int]], dict[int, str]]:
    tokens: dict[int, list[int]] = {}
    text: dict[int, str] = {}
    async for output in stream:
        for delta in output.branches:
            tokens.setdefault(delta.branch, []).extend(delta.token_ids)
            text[delta.branch] = text.get(delta.branch, "") + delta.text
    return tokens, text


def run(test: Awaitable[None]) -> None:
    asyncio.run(test)  # type: ignore[arg-type]
