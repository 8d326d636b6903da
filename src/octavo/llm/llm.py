"""``LLM``: a model in this process, for scripts, notebooks and the command line.

    >>> from octavo import LLM, SamplingParams
    >>> llm = LLM("smollm2")
    >>> llm.generate("The capital of France is", SamplingParams(temperature=0))[0].text

An ``LLM`` belongs to one thread; several ``stream`` iterators may be read in turn, and all of them
share the engine's batch. ``AsyncLLM`` is the same for a program with an event loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import fields
from typing import Any, Unpack

from octavo.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams, refuse_stream
from octavo.engine import EngineStats
from octavo.errors import ConfigError
from octavo.frontend import RequestOutput
from octavo.frontend.readings import LabelScore
from octavo.llm import requests as ask
from octavo.llm.local_engine import Inbox, LocalEngine
from octavo.llm.outputs import (
    ChatOutput,
    ChatReader,
    Completion,
    Embedding,
    Gathered,
    similarities,
)
from octavo.text.tool_formats import Tool

_MODEL_OPTIONS = {option.name for option in fields(ModelConfig)} - {"model"}


class LLM:
    """Owns a loaded model and an engine core; ``close`` (or ``with``) frees both."""

    def __init__(
        self,
        model: str = "smollm2",
        *,
        scheduler: SchedulerConfig | None = None,
        cache: CacheConfig | None = None,
        **model_options: Any,  # noqa: ANN401 - the fields of ModelConfig, checked there
    ) -> None:
        """Load ``model``: an alias, a GGUF file, a directory or a hub id that was pulled.

        ``model_options`` are the fields of ``ModelConfig`` (backend, num_threads, isa, …); batch
        limits and speculation are in ``octavo.config.SchedulerConfig``, block size and bytes of
        the KV pool in ``octavo.config.CacheConfig``.

        Raises:
            ModelFileError: the model is missing, malformed or unsupported.
            ConfigError: an option is impossible, or memory is too small.
        """
        self._local = LocalEngine(
            read_config(model, model_options, scheduler=scheduler, cache=cache)
        )
        self.model = self._local.model
        self.tokenizer = self.model.tokenizer
        self.engine = self._local.core
        self._make = ask.RequestMaker(self.model)

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free weights, KV pool and threads. Idempotent."""
        self._local.close()

    @property
    def default_sampling(self) -> SamplingParams:
        """What a call without sampling parameters uses: the model's own defaults."""
        return self._make.default_sampling

    def generate(
        self,
        prompts: ask.Prompt | Sequence[ask.Prompt],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        **service: Unpack[ask.ServiceOptions],
    ) -> list[Completion]:
        """Complete prompts (text or token ids) together, in one continuous batch.

        Returns the branches of the first prompt, then of the second, and so on. ``sampling`` is
        one for all or one each; the model's own defaults if None. Any number of prompts is taken:
        those that the engine's queue has no room for wait here. ``priority`` is -1, 0 or 1:
        before, among or after the others that wait. Cached prefixes are shared only within one
        ``cache_salt``.

        Raises:
            InvalidRequestError: a prompt or parameter is out of range.
            DeadlineExceededError: not all was done ``timeout_s`` seconds after the call.
            EngineError: the engine dropped a request.
        """
        found = self._gather(self._make.completions(prompts, sampling, ask.Service(**service)))
        return [done for each in found for done in each.completions()]

    def chat(
        self,
        messages: Sequence[ask.Message],
        sampling: SamplingParams | None = None,
        *,
        options: ask.ChatOptions | None = None,
        tools: Sequence[Tool] | None = None,
        tool_choice: ask.ToolChoice | None = None,
        **service: Unpack[ask.ServiceOptions],
    ) -> list[Completion]:
        """Answer a conversation by the model's chat template: one completion per branch.

        ``options`` say how the template ends it. ``tools`` are functions that the answer may call,
        {"type": "function", "function": {"name", "description", "parameters"}}, and ``tool_choice``
        is "none", "auto" (the default), "required", {"type": "function", "function": {"name"}} or
        allowed tools, as over HTTP; beside a grammar, an answer is of that grammar or a call. What
        was called stands in ``Completion.message``. The rest is as for ``generate``.

        Raises:
            InvalidRequestError: also where the template does not take the conversation.
        """
        requests, form = self._make.chat(
            messages, sampling, ask.Service(**service),
            options=options, tools=tools, tool_choice=tool_choice,
        )  # fmt: skip
        return [done for each in self._gather(requests) for done in each.completions(form)]

    def stream(
        self,
        prompt: ask.Prompt,
        sampling: SamplingParams | None = None,
        **service: Unpack[ask.ServiceOptions],
    ) -> Generator[RequestOutput, None, None]:
        """Complete one prompt, yielding deltas as they come. Closing the iterator aborts.

        The keywords are as for ``generate``.

        Raises:
            InvalidRequestError: at once, if the prompt or a parameter is out of range.
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
    ) -> Generator[ChatOutput, None, None]:
        """Answer a conversation as ``stream`` completes a prompt; the rest is as for ``chat``.

        What is certain of the message stands in ``ChatOutput.deltas``.
        """
        requests, form = self._make.chat(
            messages, sampling, ask.Service(**service),
            options=options, tools=tools, tool_choice=tool_choice,
        )  # fmt: skip
        refuse_stream(requests[0].sampling)
        return self._read(requests, ChatReader(form))

    def embed(
        self,
        texts: ask.Prompt | Sequence[ask.Prompt],
        *,
        dimensions: int | None = None,
        **service: Unpack[ask.ServiceOptions],
    ) -> list[Embedding]:
        """A unit vector (float32 [hidden size]) for each text, or list of token ids.

        It is the model's final hidden state, after the last norm, of the text's last token, scaled
        to length 1. ``dimensions`` keeps its first values, scaled to length 1 again. The rest is as
        for ``generate``.
        """
        found = self._gather(self._make.embeddings(texts, dimensions, ask.Service(**service)))
        return [each.embedding(dimensions) for each in found]

    def score(
        self,
        first: ask.Prompt,
        others: ask.Prompt | Sequence[ask.Prompt],
        **service: Unpack[ask.ServiceOptions],
    ) -> list[float]:
        """How like ``first`` each of ``others`` is: the cosine of their embeddings, -1 to 1.

        The keywords are as for ``generate``.
        """
        return similarities(self._gather(self._make.scores(first, others, ask.Service(**service))))

    def systemone(
        self,
        state: str | Sequence[ask.Message],
        questions: Sequence[ask.Question],
        **service: Unpack[ask.ServiceOptions],
    ) -> list[list[LabelScore]]:
        """Answer many questions on one state by scoring the labels of each.

        A question, (text, labels), is appended to a state that is a text, or is the user's next
        turn in one that is a conversation. The state is computed once. Returns, per question, the
        scores of its labels in their order: natural logarithms of the probability of all of a
        label's tokens. The keywords are as for ``generate``.
        """
        found = self._gather(self._make.questions(state, questions, ask.Service(**service)))
        return [
            each.label_scores(labels) for each, (_, labels) in zip(found, questions, strict=True)
        ]

    def stats(self) -> EngineStats:
        """Counters and gauges of the engine."""
        return self.engine.stats()

    def _gather(self, requests: Sequence[Request]) -> list[Gathered]:
        gathered = {request.request_id: Gathered(request) for request in requests}
        for output in self._run(requests):
            gathered[output.request_id].add(output)
        return list(gathered.values())

    def _run(self, requests: Sequence[Request]) -> Generator[RequestOutput, None, None]:
        """Submit requests as room is made, and yield their outputs until all of them ended."""
        local = self._local
        waiting = deque(requests)
        running: dict[str, Inbox] = {}
        try:
            while waiting or running:
                while waiting and (inbox := local.submit(waiting[0])) is not None:
                    running[waiting.popleft().request_id] = inbox
                if not any(inbox.has_news for inbox in running.values()):
                    local.step()
                yield from self._deliver(running)
        finally:
            local.abort(running)

    def _read(
        self, requests: Sequence[Request], reader: ChatReader
    ) -> Generator[ChatOutput, None, None]:
        with closing(self._run(requests)) as outputs:
            yield from map(reader.read, outputs)

    def _deliver(self, running: dict[str, Inbox]) -> Iterator[RequestOutput]:
        """Yield what has come, and take out of ``running`` whatever ended."""
        for request_id, inbox in list(running.items()):
            yield from inbox.take()
            if inbox.finished:
                self._local.forget(request_id)
                del running[request_id]


def read_config(
    model: str,
    model_options: Mapping[str, Any],
    *,
    scheduler: SchedulerConfig | None,
    cache: CacheConfig | None,
) -> EngineConfig:
    """The configuration that a constructor's arguments make.

    Raises:
        ConfigError: an unknown option, or an impossible value.
    """
    if unknown := sorted(set(model_options) - _MODEL_OPTIONS):
        known = ", ".join(sorted({"cache", "scheduler"} | _MODEL_OPTIONS))
        raise ConfigError(f"LLM has no option {unknown[0]!r}; known are: {known}", param=unknown[0])
    return EngineConfig(
        model=ModelConfig(model=model, **model_options),
        scheduler=scheduler or SchedulerConfig(),
        cache=cache or CacheConfig(),
    )
