"""From what a caller gives to the engine's requests: checks, defaults, token ids."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import index
from typing import Any, TypedDict, cast

from octavo.core.probe import Probe
from octavo.core.request import Request, validate_priority
from octavo.core.sampling_params import SamplingParams, validate_sampling_params
from octavo.errors import ContextLengthError, InvalidRequestError
from octavo.frontend.answer import AnswerForm
from octavo.frontend.conversation import Conversation, settle
from octavo.frontend.model_defaults import model_defaults
from octavo.frontend.tools import CHAT_TOOLS, choose_tools
from octavo.text import read_messages
from octavo.text.members import wrong
from octavo.text.tool_formats import Tool
from octavo.weights import open_model
from octavo.worker import LoadedModel

Prompt = str | Sequence[int]
Message = Mapping[str, Any]
# As in a chat over HTTP: a word, or an object.
ToolChoice = str | Mapping[str, Any]
# A question and its labels.
Question = tuple[str, Sequence[str]]


class ServiceOptions(TypedDict, total=False):
    """The keywords that every call takes: the fields of ``Service``."""

    priority: int
    timeout_s: float | None
    cache_salt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """How a call is served, whatever it asks for; see ``LLM.generate``."""

    priority: int = 0
    timeout_s: float | None = None
    cache_salt: str = ""

    def __post_init__(self) -> None:
        validate_priority(self.priority)
        if self.timeout_s is not None and not 0 < self.timeout_s < math.inf:
            raise wrong("timeout_s", "must be over 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """How the model's template ends a conversation, and what it reads by name; see ``LLM.chat``.

    Without ``parallel_tool_calls`` an answer makes at most one call; later ones stay text.
    """

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template_variables: Mapping[str, object] = field(default_factory=dict)
    parallel_tool_calls: bool = True


class RequestMaker:
    """Makes requests for one loaded model. Safe to use from several threads."""

    def __init__(self, model: LoadedModel) -> None:
        self._model = model
        self._ids = itertools.count()

    @cached_property
    def default_sampling(self) -> SamplingParams:
        """The model's own sampling defaults."""
        return model_defaults(open_model(self._model.path), self._model.tokenizer).sampling

    def completions(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: SamplingParams | Sequence[SamplingParams] | None,
        service: Service,
    ) -> list[Request]:
        """One request per prompt."""
        items = _as_list(prompts)
        if sampling is None or isinstance(sampling, SamplingParams):
            params = [sampling or self.default_sampling] * len(items)
        else:
            params = list(sampling)
        if len(params) != len(items):
            raise InvalidRequestError(
                f"{len(params)} sampling parameters for {len(items)} prompts; give one, or one "
                "each",
                param="sampling",
            )
        return [self._request(*pair, service=service) for pair in zip(items, params, strict=True)]

    def chat(
        self,
        messages: Sequence[Message],
        sampling: SamplingParams | None,
        service: Service,
        *,
        options: ChatOptions | None = None,
        tools: Sequence[Tool] | None = None,
        tool_choice: ToolChoice | None = None,
    ) -> tuple[list[Request], AnswerForm]:
        """The request that answers a conversation, and how to read its answers."""
        options, sampling = options or ChatOptions(), sampling or self.default_sampling
        template = self._model.chat_template
        conversation = Conversation(
            messages=read_messages(messages),
            add_generation_prompt=(
                options.add_generation_prompt and not options.continue_final_message
            ),
            continue_final=options.continue_final_message,
            variables=options.template_variables,
            tools=choose_tools(
                None if tools is None else list(tools),
                tool_choice,
                CHAT_TOOLS,
                family=template.tool_format,
                parallel=options.parallel_tool_calls,
                structure=sampling.grammar,
            ),
        )
        ids = conversation.encode(template)
        sampling, form = settle(sampling, conversation.answer_form(template, ids))
        return [self._request(ids, sampling, service=service)], form

    def embeddings(
        self, texts: Prompt | Sequence[Prompt], dimensions: int | None, service: Service
    ) -> list[Request]:
        """One probe of the hidden state per text."""
        most = self._model.spec.hidden_size
        if dimensions is not None and not 1 <= dimensions <= most:
            raise wrong("dimensions", f"must be between 1 and {most}, the model's")
        probe = Probe(hidden=True)
        return [
            self._request(text, probe.sampling, service=service, probe=probe)
            for text in _as_list(texts)
        ]

    def scores(
        self, first: Prompt, others: Prompt | Sequence[Prompt], service: Service
    ) -> list[Request]:
        """The probes of ``embeddings`` for ``first``, then for the others."""
        return self.embeddings([first, *_as_list(others)], None, service)

    def questions(
        self, state: str | Sequence[Message], questions: Sequence[Question], service: Service
    ) -> list[Request]:
        """One probe per question, a branch per label."""
        return [
            self._request(
                self._asked(state, text),
                (probe := self._labels(labels)).sampling,
                service=service,
                probe=probe,
            )
            for text, labels in questions
        ]

    def _asked(self, state: str | Sequence[Message], question: str) -> Prompt:
        if isinstance(state, str):
            return state + question
        messages = [*state, {"role": "user", "content": question}]
        return self._model.chat_template.encode(read_messages(messages))

    def _labels(self, labels: Sequence[str]) -> Probe:
        if isinstance(labels, str) or not labels:
            raise wrong("labels", "must be a list of texts, not empty")
        encode = self._model.tokenizer.encode
        return Probe(
            labels=tuple(tuple(encode(label, add_special_tokens=False)) for label in labels)
        )

    def _request(
        self,
        prompt: Prompt,
        sampling: SamplingParams,
        *,
        service: Service,
        probe: Probe | None = None,
    ) -> Request:
        validate_sampling_params(sampling, vocab_size=self._model.spec.vocab_size)
        now = time.monotonic()
        encode = self._model.tokenizer.encode
        ids = tuple(encode(prompt)) if isinstance(prompt, str) else _ids(prompt)
        self._check_lengths(ids, sampling)
        return Request(
            request_id=f"local-{next(self._ids)}",
            prompt_token_ids=ids,
            sampling=sampling,
            eos_token_ids=tuple(self._model.tokenizer.eos_token_ids),
            domain=service.cache_salt,
            arrival_time=now,
            deadline=None if service.timeout_s is None else now + service.timeout_s,
            priority=service.priority,
            probe=probe,
        )

    def _check_lengths(self, ids: tuple[int, ...], sampling: SamplingParams) -> None:
        """Hold prompt and output limits against vocabulary and context.

        The KV pool's share in the limit is the engine's to judge: an open ``max_tokens`` is
        clamped there.
        """
        vocab_size, limit = self._model.spec.vocab_size, self._model.runner.info.max_model_len
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
        raise wrong("prompt", "token ids must be integers") from None
