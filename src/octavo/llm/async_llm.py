"""``AsyncLLM``: the model in this process for programs with an event loop.

    async with AsyncLLM("smollm2") as llm:
        async for output in llm.stream("Once upon a time"):
            print(output.branches[0].text)

A thread of its own steps the engine, so the event loop is never held up; outputs cross over once
per step. Any number of tasks, of any loop, may call at the same time: they share the batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Unpack

from octavo.config import CacheConfig, SchedulerConfig
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams, refuse_stream
from octavo.engine import EngineStats
from octavo.frontend import RequestOutput
from octavo.frontend.readings import LabelScore
from octavo.llm import requests as ask
from octavo.llm.engine_room import EngineRoom, Lane
from octavo.llm.llm import read_config
from octavo.llm.local_engine import LocalEngine
from octavo.llm.outputs import (
    ChatOutput,
    ChatReader,
    Completion,
    Embedding,
    Gathered,
    similarities,
)
from octavo.text.tool_formats import Tool


class AsyncLLM:
    """Owns a loaded model, an engine core and the thread that steps it.

    Every call is what the one of the same name of ``LLM`` is, and takes and raises the same. To
    cancel is to close the generator, or to cancel the task that awaits.
    """

    def __init__(
        self,
        model: str = "smollm2",
        *,
        scheduler: SchedulerConfig | None = None,
        cache: CacheConfig | None = None,
        **model_options: Any,  # noqa: ANN401 - the fields of ModelConfig, checked there
    ) -> None:
        """Load ``model``, in the calling thread; see ``LLM``.

        Raises:
            ModelFileError: the model is missing, malformed or unsupported.
            ConfigError: an option is impossible, or memory is too small.
        """
        local = LocalEngine(read_config(model, model_options, scheduler=scheduler, cache=cache))
        self.model = local.model
        self.tokenizer = local.model.tokenizer
        self._make = ask.RequestMaker(local.model)
        self._room = EngineRoom(local)

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """End what runs, and free weights, KV pool and threads. Idempotent."""
        self._room.close()

    @property
    def default_sampling(self) -> SamplingParams:
        """What a call without sampling parameters uses: the model's own defaults."""
        return self._make.default_sampling

    async def generate(
        self,
        prompts: ask.Prompt | Sequence[ask.Prompt],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        **service: Unpack[ask.ServiceOptions],
    ) -> list[Completion]:
        """Complete prompts together; see ``LLM.generate``."""
        found = await self._gather(
            self._make.completions(prompts, sampling, ask.Service(**service))
        )
        return [done for each in found for done in each.completions()]

    async def chat(
        self,
        messages: Sequence[ask.Message],
        sampling: SamplingParams | None = None,
        *,
        options: ask.ChatOptions | None = None,
        tools: Sequence[Tool] | None = None,
        tool_choice: ask.ToolChoice | None = None,
        **service: Unpack[ask.ServiceOptions],
    ) -> list[Completion]:
        """Answer a conversation; see ``LLM.chat``."""
        requests, form = self._make.chat(
            messages, sampling, ask.Service(**service),
            options=options, tools=tools, tool_choice=tool_choice,
        )  # fmt: skip
        return [done for each in await self._gather(requests) for done in each.completions(form)]

    def stream(
        self,
        prompt: ask.Prompt,
        sampling: SamplingParams | None = None,
        **service: Unpack[ask.ServiceOptions],
    ) -> AsyncGenerator[RequestOutput, None]:
        """An asynchronous generator of one prompt's deltas; see ``LLM.stream``.

        A reader that is slow gets what has come meanwhile, output by output.
        """
        requests = self._make.completions([prompt], sampling, ask.Service(**service))
        refuse_stream(requests[0].sampling)
        return self._run(requests)

    def stream_chat(
        self,
        messages: Sequence[ask.Message],
        sampling: SamplingParams | None = None,
        *,
        options: ask.ChatOptions | None = None,
        tools: Sequence[Tool] | None = None,
        tool_choice: ask.ToolChoice | None = None,
        **service: Unpack[ask.ServiceOptions],
    ) -> AsyncGenerator[ChatOutput, None]:
        """An asynchronous generator of an answer's deltas; see ``LLM.stream_chat``."""
        requests, form = self._make.chat(
            messages, sampling, ask.Service(**service),
            options=options, tools=tools, tool_choice=tool_choice,
        )  # fmt: skip
        refuse_stream(requests[0].sampling)
        return self._read(requests, ChatReader(form))

    async def embed(
        self,
        texts: ask.Prompt | Sequence[ask.Prompt],
        *,
        dimensions: int | None = None,
        **service: Unpack[ask.ServiceOptions],
    ) -> list[Embedding]:
        """A unit vector for each text; see ``LLM.embed``."""
        found = await self._gather(self._make.embeddings(texts, dimensions, ask.Service(**service)))
        return [each.embedding(dimensions) for each in found]

    async def score(
        self,
        first: ask.Prompt,
        others: ask.Prompt | Sequence[ask.Prompt],
        **service: Unpack[ask.ServiceOptions],
    ) -> list[float]:
        """The cosine of each text's embedding with that of ``first``; see ``LLM.score``."""
        return similarities(
            await self._gather(self._make.scores(first, others, ask.Service(**service)))
        )

    async def systemone(
        self,
        state: str | Sequence[ask.Message],
        questions: Sequence[ask.Question],
        **service: Unpack[ask.ServiceOptions],
    ) -> list[list[LabelScore]]:
        """Scores of the labels of many questions on one state; see ``LLM.systemone``."""
        found = await self._gather(self._make.questions(state, questions, ask.Service(**service)))
        return [
            each.label_scores(labels) for each, (_, labels) in zip(found, questions, strict=True)
        ]

    async def stats(self) -> EngineStats:
        """Counters and gauges of the engine, between two steps."""
        return await self._room.ask(lambda local: local.core.stats())

    async def _gather(self, requests: Sequence[Request]) -> list[Gathered]:
        gathered = {request.request_id: Gathered(request) for request in requests}
        async with aclosing(self._run(requests)) as outputs:
            async for output in outputs:
                gathered[output.request_id].add(output)
        return list(gathered.values())

    async def _read(
        self, requests: Sequence[Request], reader: ChatReader
    ) -> AsyncGenerator[ChatOutput, None]:
        async with aclosing(self._run(requests)) as outputs:
            async for output in outputs:
                yield reader.read(output)

    async def _run(self, requests: Sequence[Request]) -> AsyncGenerator[RequestOutput, None]:
        lane = Lane(requests)
        self._room.open(lane)
        try:
            while not lane.ended:
                for output in await lane.take():
                    yield output
        finally:
            self._room.drop(lane)
