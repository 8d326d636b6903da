"""What calls return: finished completions, an answer's deltas, embeddings, scored labels."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.core.request import FinishReason, Request, TokenLogprobs
from octavo.frontend import RequestOutput
from octavo.frontend.answer import AnswerForm, AnswerReader, piece_delta
from octavo.frontend.readings import LabelScore, Reading, similarity


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One finished branch of one prompt. ``logprobs`` has one entry per token where asked for.

    ``stop_reason`` is the stop string or stop token id that ended it, where one did;
    ``cached_tokens`` of the prompt were read from the prefix cache. ``prompt_logprobs``, where
    asked for, has one entry per token of the prompt but its first; the first branch holds it.
    ``message`` is a chat's answer as the conversation goes on from it: ``content``, and what there
    is of ``reasoning_content`` and ``tool_calls``; ``text`` is all of it as the model wrote it.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: str | int | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    branch: int = 0
    prompt_token_ids: tuple[int, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    cached_tokens: int = 0
    message: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """A unit vector, float32 [hidden size]: see ``LLM.embed``."""

    values: array[float]
    prompt_token_ids: tuple[int, ...] = ()
    cached_tokens: int = 0


@dataclass(slots=True, kw_only=True)
class ChatOutput(RequestOutput):
    """New deltas of an answer to a conversation.

    ``deltas`` has, for each of ``branches``, what is now certain of its message, as a stream over
    HTTP has it: objects with one of ``content``, ``reasoning_content`` and ``tool_calls`` (a
    call's ``index``, then its ``id`` and name once, then pieces of its arguments).
    """

    deltas: tuple[tuple[Mapping[str, Any], ...], ...]


class ChatReader:
    """Reads one request's outputs as the answer that they are."""

    def __init__(self, form: AnswerForm) -> None:
        self._readers: defaultdict[int, AnswerReader] = defaultdict(form.reader)

    def read(self, output: RequestOutput) -> ChatOutput:
        """An output with what it says."""
        deltas = tuple(
            tuple(map(piece_delta, self._readers[delta.branch].read(delta)))
            for delta in output.branches
        )
        return ChatOutput(
            request_id=output.request_id,
            branches=output.branches,
            usage=output.usage,
            finished=output.finished,
            deltas=deltas,
        )


class Gathered:
    """Collects what one request gives."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._reading = Reading()

    def add(self, output: RequestOutput) -> None:
        """Take an output in."""
        self._reading.add(output)

    def completions(self, form: AnswerForm | None = None) -> list[Completion]:
        """One per branch, in order; ``form`` says how to read a chat's answer."""
        return [
            Completion(
                text=delta.text,
                token_ids=delta.token_ids,
                finish_reason=delta.finish_reason or FinishReason.ERROR,
                stop_reason=delta.stop_reason,
                logprobs=delta.logprobs,
                prompt_logprobs=delta.prompt_logprobs,
                branch=branch,
                prompt_token_ids=self._request.prompt_token_ids,
                cached_tokens=self._reading.cached_tokens,
                message=None if form is None else form.message(delta.text, delta.token_ids),
            )
            for branch, delta in sorted(self._reading.branches.items())
        ]

    def embedding(self, dimensions: int | None) -> Embedding:
        """Of a probe for the hidden state."""
        return Embedding(
            values=self._reading.embedding(dimensions),
            prompt_token_ids=self._request.prompt_token_ids,
            cached_tokens=self._reading.cached_tokens,
        )

    def label_scores(self, labels: Sequence[str]) -> list[LabelScore]:
        """Of a probe for labels."""
        return self._reading.label_scores(labels)


def similarities(gathered: Sequence[Gathered]) -> list[float]:
    """The cosine of each embedding with the first one."""
    first, *others = (each.embedding(None).values for each in gathered)
    return [similarity(first, other) for other in others]
