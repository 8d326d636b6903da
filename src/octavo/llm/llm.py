"""``LLM``: a model in this process, for scripts, notebooks and the command line.

    >>> from octavo import LLM, SamplingParams
    >>> llm = LLM("smollm2")
    >>> llm.generate("The capital of France is", SamplingParams(temperature=0))[0].text

The engine core, the journal and the text state are the ones that the server uses; only the
sockets are missing. An ``LLM`` belongs to one thread; several ``stream`` iterators may be read in
turn, and all of them share the engine's batch.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from operator import index
from types import TracebackType
from typing import Any, cast

from octavo.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from octavo.core.request import (
    Abort,
    FinishReason,
    Request,
    TokenLogprobs,
    validate_priority,
)
from octavo.core.sampling_params import (
    SamplingParams,
    refuse_stream,
    validate_sampling_params,
)
from octavo.engine import EngineCore, EngineStats
from octavo.errors import (
    ConfigError,
    ContextLengthError,
    InvalidRequestError,
    OctavoError,
    OverloadedError,
)
from octavo.frontend import OutputProcessor, RequestOutput
from octavo.frontend.model_defaults import model_defaults
from octavo.frontend.outputs import BranchDelta
from octavo.grammar import GrammarCompiler
from octavo.weights import open_model
from octavo.worker import LoadedModel, load_runner, token_table

COMPILE_POLL_S = 0.001

Prompt = str | Sequence[int]
Message = Mapping[str, Any]
_MODEL_OPTIONS = {option.name for option in fields(ModelConfig)} - {"model"}


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
        if unknown := sorted(set(model_options) - _MODEL_OPTIONS):
            known = ", ".join(sorted({"cache", "scheduler"} | _MODEL_OPTIONS))
            raise ConfigError(
                f"LLM has no option {unknown[0]!r}; known are: {known}", param=unknown[0]
            )
        self._config = EngineConfig(
            model=ModelConfig(model=model, **model_options),
            scheduler=scheduler or SchedulerConfig(),
            cache=cache or CacheConfig(),
        )
        self.model: LoadedModel = load_runner(self._config)
        self.tokenizer = self.model.tokenizer
        self._grammars = GrammarCompiler(token_table(self.model.tokenizer))
        self.engine = EngineCore(
            self.model.runner,
            self._config.scheduler,
            self._config.cache,
            epoch=1,
            grammars=self._grammars,
        )
        self._processor = OutputProcessor(self.tokenizer)
        self._ids = itertools.count()
        self._inboxes: dict[str, _Inbox] = {}

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
        self._grammars.close()
        self.model.runner.close()

    @cached_property
    def default_sampling(self) -> SamplingParams:
        """What a call without sampling parameters uses: the model's own defaults."""
        return model_defaults(open_model(self.model.path), self.tokenizer).sampling

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> list[Completion]:
        """Complete prompts (text or token ids) together, in one continuous batch.

        Returns the branches of the first prompt, then of the second, and so on. ``sampling`` is
        one for all or one each; the model's own defaults if None. Any number of prompts is taken:
        those that the engine's queue has no room for wait here. ``priority`` is -1, 0 or 1:
        before, among or after the others that wait.

        Raises:
            InvalidRequestError: a prompt or parameter is out of range.
            DeadlineExceededError: not all was done ``timeout_s`` seconds after the call.
            EngineError: the engine dropped a request.
        """
        items = _as_list(prompts)
        params = self._one_each(sampling, len(items))
        requests = [
            self._request(item, p, priority=priority, timeout_s=timeout_s)
            for item, p in zip(items, params, strict=True)
        ]
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
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        *,
        priority: int = 0,
        timeout_s: float | None = None,
    ) -> Iterator[RequestOutput]:
        """Complete one prompt, yielding deltas as they come. Closing the iterator aborts.

        ``priority`` and ``timeout_s`` are as for ``generate``.

        Raises:
            InvalidRequestError: at once, if the prompt or a parameter is out of range.
        """
        sampling = sampling or self.default_sampling
        request = self._request(prompt, sampling, priority=priority, timeout_s=timeout_s)
        refuse_stream(sampling)
        return self._run([request])

    def stream_chat(
        self, messages: Sequence[Message], sampling: SamplingParams | None = None
    ) -> Iterator[RequestOutput]:
        """Answer a conversation, yielding deltas as they come. Closing the iterator aborts."""
        return self.stream(self.model.chat_template.encode(messages), sampling)

    def stats(self) -> EngineStats:
        """Counters and gauges of the engine."""
        return self.engine.stats()

    def _run(self, requests: Sequence[Request]) -> Iterator[RequestOutput]:
        """Submit requests as room is made, and yield their outputs until all of them ended."""
        waiting = deque(requests)
        running: dict[str, _Inbox] = {}
        try:
            while waiting or running:
                while waiting and self._submit(waiting[0]):
                    request_id = waiting.popleft().request_id
                    running[request_id] = self._inboxes[request_id]
                if not any(inbox.has_news for inbox in running.values()):
                    self._step()
                yield from self._deliver(running)
        finally:
            self._abort(running)

    def _deliver(self, running: dict[str, _Inbox]) -> Iterator[RequestOutput]:
        """Yield what has come, and take out of ``running`` whatever ended."""
        for request_id, inbox in list(running.items()):
            yield from inbox.take()
            if inbox.finished:
                self._forget(request_id)
                del running[request_id]

    def _submit(self, request: Request) -> bool:
        """Hand a request to the engine; False when it must wait for others to make room."""
        limit = self._config.scheduler.max_waiting
        if self.engine.scheduler.waiting.num_fresh >= limit:
            return False
        try:
            entry = self._processor.open(request)
        except OverloadedError:
            if not self._inboxes:
                raise
            return False
        self._inboxes[request.request_id] = _Inbox()
        self.engine.handle(entry.submission(), time.monotonic())
        return True

    def _step(self) -> None:
        """One step of the engine; what it gave goes to the inbox of whose it is."""
        for ready in self._grammars.take_ready():
            self.engine.handle(ready, time.monotonic())
        if not self.engine.has_work():
            # All that runs here waits for its grammar.
            time.sleep(COMPILE_POLL_S)
        processed = self._processor.process(self.engine.step(time.monotonic()))
        for stop in processed.stops:
            self.engine.handle(stop, time.monotonic())
        for output in processed.outputs:
            if output.request_id in self._inboxes:
                failure = processed.failures.get(output.request_id)
                self._inboxes[output.request_id].put(output, failure)

    def _abort(self, running: Mapping[str, _Inbox]) -> None:
        for request_id in running:
            self.engine.handle(Abort(request_id=request_id), time.monotonic())
            self._forget(request_id)
        if running and not self._inboxes:
            # Nobody else will step the engine, which still has to say that these ended.
            self._step()

    def _forget(self, request_id: str) -> None:
        del self._inboxes[request_id]
        self._processor.close(request_id)

    def _request(
        self, prompt: Prompt, sampling: SamplingParams, *, priority: int, timeout_s: float | None
    ) -> Request:
        validate_sampling_params(sampling, vocab_size=self.model.spec.vocab_size)
        validate_priority(priority)
        if timeout_s is not None and not 0 < timeout_s < math.inf:
            raise InvalidRequestError("timeout_s must be over 0", param="timeout_s")
        now = time.monotonic()
        ids = tuple(self.tokenizer.encode(prompt)) if isinstance(prompt, str) else _ids(prompt)
        self._check_lengths(ids, sampling)
        return Request(
            request_id=f"local-{next(self._ids)}",
            prompt_token_ids=ids,
            sampling=sampling,
            eos_token_ids=tuple(self.tokenizer.eos_token_ids),
            arrival_time=now,
            deadline=None if timeout_s is None else now + timeout_s,
            priority=priority,
        )

    def _check_lengths(self, ids: tuple[int, ...], sampling: SamplingParams) -> None:
        """Hold prompt and output limits against vocabulary and context.

        The KV pool's share in the limit is the engine's to judge: an open ``max_tokens`` is
        clamped there.
        """
        vocab_size, limit = self.model.spec.vocab_size, self.model.runner.info.max_model_len
        if not ids:
            raise InvalidRequestError("the prompt is empty", param="prompt")
        if min(ids) < 0 or max(ids) >= vocab_size:
            raise InvalidRequestError(
                f"a prompt token id is outside 0…{vocab_size - 1}", param="prompt"
            )
        room = limit - len(ids)
        if room < 1:
            raise ContextLengthError(
                f"the prompt has {len(ids)} tokens; the context holds {limit}, output included",
                param="prompt",
            )
        for name, wanted in (
            ("max_tokens", sampling.max_tokens),
            ("min_tokens", sampling.min_tokens),
        ):
            if wanted is not None and wanted > room:
                raise ContextLengthError(
                    f"the prompt has {len(ids)} tokens and {name} is {wanted}, together "
                    f"{len(ids) + wanted}, but the context holds {limit}",
                    param=name,
                )

    def _one_each(
        self, sampling: SamplingParams | Sequence[SamplingParams] | None, count: int
    ) -> list[SamplingParams]:
        if sampling is None or isinstance(sampling, SamplingParams):
            return [sampling or self.default_sampling] * count
        if len(sampling) != count:
            raise InvalidRequestError(
                f"{len(sampling)} sampling parameters for {count} prompts; give one, or one each",
                param="sampling",
            )
        return list(sampling)


@dataclass(slots=True)
class _Inbox:
    """Outputs of one request that its reader has not taken yet."""

    outputs: deque[RequestOutput] = field(default_factory=deque)
    failure: OctavoError | None = None
    finished: bool = False

    @property
    def has_news(self) -> bool:
        return bool(self.outputs) or self.failure is not None

    def put(self, output: RequestOutput, failure: OctavoError | None) -> None:
        if failure is None:
            self.outputs.append(output)
            self.finished = self.finished or output.finished
        else:
            self.failure = failure

    def take(self) -> Iterator[RequestOutput]:
        """Empty the inbox; a failure comes after all that preceded it."""
        while self.outputs:
            yield self.outputs.popleft()
        if self.failure is not None:
            raise self.failure


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
    """One prompt or several: a list whose first entry is neither text nor a list is token ids."""
    if isinstance(prompts, str):
        return [prompts]
    items = list(prompts)
    if items and not isinstance(items[0], (str, Sequence)):
        return [cast("Sequence[int]", items)]
    return cast("list[Prompt]", items)


def _ids(prompt: object) -> tuple[int, ...]:
    """Token ids as plain integers; whatever counts as an index is one, but for booleans."""
    if not isinstance(prompt, Sequence) or isinstance(prompt, (bytes, bytearray)):
        raise InvalidRequestError("a prompt must be a text or a list of token ids", param="prompt")
    try:
        if any(isinstance(token, bool) for token in prompt):
            raise TypeError
        return tuple(index(token) for token in prompt)
    except TypeError:
        raise InvalidRequestError("prompt token ids must be integers", param="prompt") from None
