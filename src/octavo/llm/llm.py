"""``LLM``: a model in this process, for scripts, notebooks and the command line.

    >>> from octavo import LLM, SamplingParams
    >>> llm = LLM("smollm2")
    >>> llm.generate("The capital of France is", SamplingParams(temperature=0))[0].text

The engine core, the journal and the text state are the ones that the server uses; only the
sockets are missing. An ``LLM`` belongs to one thread.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, cast

from octavo.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from octavo.core.request import Abort, FinishReason, Request, TokenLogprobs
from octavo.core.sampling_params import SamplingParams, validate_sampling_params
from octavo.engine import EngineCore, EngineStats
from octavo.errors import ContextLengthError, InvalidRequestError
from octavo.frontend import OutputProcessor, RequestOutput
from octavo.frontend.outputs import BranchDelta
from octavo.worker import LoadedModel, load_runner

Prompt = str | Sequence[int]
Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One finished branch of one prompt. ``logprobs`` has one entry per token where asked for."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: str | int | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    branch: int = 0
    prompt_token_ids: tuple[int, ...] = ()
    cached_tokens: int = 0


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

        ``model_options`` are the fields of ``ModelConfig`` (backend, num_threads, isa, …).

        Raises:
            ModelFileError: the model is missing, malformed or unsupported.
            ConfigError: an option is impossible, or memory is too small.
        """
        self._config = EngineConfig(
            model=ModelConfig(model=model, **model_options),
            scheduler=scheduler or SchedulerConfig(),
            cache=cache or CacheConfig(),
        )
        self.model: LoadedModel = load_runner(self._config)
        self.tokenizer = self.model.tokenizer
        self.engine = EngineCore(
            self.model.runner, self._config.scheduler, self._config.cache, epoch=1
        )
        self._processor = OutputProcessor(self.tokenizer)
        self._ids = itertools.count()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Free weights, KV pool and threads. Idempotent."""
        self.model.runner.close()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Completion]:
        """Complete prompts (text or token ids) together, in one continuous batch.

        Returns the branches of the first prompt, then of the second, and so on. ``sampling`` is
        one for all or one each.

        Raises:
            InvalidRequestError: a prompt or parameter is out of range.
            EngineError: the engine dropped a request.
        """
        items = _as_list(prompts)
        params = _one_each(sampling, len(items))
        requests = [self._request(item, p) for item, p in zip(items, params, strict=True)]
        gathered = {r.request_id: _Gathered(r) for r in requests}
        for output in self._run(requests):
            gathered[output.request_id].add(output)
        return [done for each in gathered.values() for done in each.completions()]

    def chat(
        self, messages: Sequence[Message], sampling: SamplingParams | None = None
    ) -> list[Completion]:
        """Answer a conversation by the model's chat template: one completion per branch."""
        return self.generate([self.model.chat_template.encode(messages)], sampling)

    def stream(
        self, prompt: Prompt, sampling: SamplingParams | None = None
    ) -> Iterator[RequestOutput]:
        """Complete one prompt, yielding deltas as they come. Closing the iterator aborts."""
        yield from self._run([self._request(prompt, sampling or SamplingParams())])

    def stream_chat(
        self, messages: Sequence[Message], sampling: SamplingParams | None = None
    ) -> Iterator[RequestOutput]:
        """Answer a conversation, yielding deltas as they come. Closing the iterator aborts."""
        return self.stream(self.model.chat_template.encode(messages), sampling)

    def stats(self) -> EngineStats:
        """Counters and gauges of the engine."""
        return self.engine.stats()

    def _run(self, requests: Sequence[Request]) -> Iterator[RequestOutput]:
        """Submit requests and step the engine until all of them ended."""
        pending = {request.request_id for request in requests}
        try:
            for request in requests:
                entry = self._processor.open(request)
                self.engine.handle(entry.submission(), time.monotonic())
            while pending:
                processed = self._processor.process(self.engine.step(time.monotonic()))
                for stop in processed.stops:
                    self.engine.handle(stop, time.monotonic())
                for failure in processed.failures.values():
                    raise failure
                pending -= {out.request_id for out in processed.outputs if out.finished}
                yield from processed.outputs
        finally:
            for request in requests:
                if request.request_id in pending:
                    self.engine.handle(Abort(request_id=request.request_id), time.monotonic())
                self._processor.close(request.request_id)
            while pending and self.engine.has_work():
                self.engine.step(time.monotonic())

    def _request(self, prompt: Prompt, sampling: SamplingParams) -> Request:
        validate_sampling_params(sampling, vocab_size=self.model.spec.vocab_size)
        ids = tuple(self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt)
        limit = self.model.runner.info.max_model_len
        if not ids:
            raise InvalidRequestError("the prompt is empty", param="prompt")
        if any(not 0 <= token < self.model.spec.vocab_size for token in ids):
            raise InvalidRequestError(
                f"a prompt token id is outside 0…{self.model.spec.vocab_size - 1}", param="prompt"
            )
        if len(ids) >= limit:
            raise ContextLengthError(
                f"the prompt has {len(ids)} tokens; the context holds {limit}, output included",
                param="prompt",
            )
        room = limit - len(ids)
        wanted = sampling.max_tokens
        return Request(
            request_id=f"local-{next(self._ids)}",
            prompt_token_ids=ids,
            sampling=replace(sampling, max_tokens=room if wanted is None else min(wanted, room)),
            eos_token_ids=tuple(self.tokenizer.eos_token_ids),
            arrival_time=time.monotonic(),
        )


class _Gathered:
    """Collects one request's deltas per branch."""

    def __init__(self, request: Request) -> None:
        self._prompt = request.prompt_token_ids
        self._branches: dict[int, BranchDelta] = {}
        self._cached = 0

    def add(self, output: RequestOutput) -> None:
        self._cached = output.usage.cached_tokens
        for delta in output.branches:
            held = self._branches.get(delta.branch)
            self._branches[delta.branch] = held.followed_by(delta) if held else delta

    def completions(self) -> list[Completion]:
        return [
            Completion(
                text=delta.text,
                token_ids=delta.token_ids,
                finish_reason=delta.finish_reason or FinishReason.ERROR,
                stop_reason=delta.stop_reason,
                logprobs=delta.logprobs,
                branch=branch,
                prompt_token_ids=self._prompt,
                cached_tokens=self._cached,
            )
            for branch, delta in sorted(self._branches.items())
        ]


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    if prompts and isinstance(prompts[0], int):
        return [cast("Sequence[int]", prompts)]
    return list(cast("Sequence[Prompt]", prompts))


def _one_each(
    sampling: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> list[SamplingParams]:
    if sampling is None or isinstance(sampling, SamplingParams):
        return [sampling or SamplingParams()] * count
    if len(sampling) != count:
        raise InvalidRequestError(
            f"{len(sampling)} sampling parameters for {count} prompts; give one, or one each",
            param="sampling",
        )
    return list(sampling)
