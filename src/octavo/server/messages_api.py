"""``POST /v1/messages`` and ``/v1/messages/count_tokens``: Anthropic's protocol.

    message_start → (content_block_start → content_block_delta* → content_block_stop)*
                  → message_delta (stop_reason, usage) → message_stop

A block is thinking, a text or a call of a function.

A last message of the assistant is continued. ``max_tokens`` may exceed what is left of the context:
the answer then ends there, with the stop reason ``model_context_window_exceeded``.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

from octavo.core.request import FinishReason
from octavo.core.sampling_params import SamplingParams
from octavo.errors import OctavoError
from octavo.frontend import BranchDelta, RequestOutput, Usage
from octavo.frontend.answer import Part, Parts
from octavo.frontend.conversation import settle
from octavo.server.call import Call, answer, read_body, read_call, read_values
from octavo.server.dialects import ANTHROPIC
from octavo.server.endpoints import Endpoint
from octavo.server.engine_request import engine_request
from octavo.server.generation import Choice, Generation
from octavo.server.messages_input import read_conversation
from octavo.server.replies import Exchange, ignored_header, send_json
from octavo.server.sampling_fields import TokenLimits, sampling_from_body
from octavo.server.sse import named_event
from octavo.server.state import ServerState
from octavo.server.structured import read_grammar
from octavo.text.members import wrong
from octavo.text.messages import json_object


async def messages(state: ServerState, http: Exchange) -> None:
    """Answer a conversation, streamed or not."""
    call = await read_call(state, http, parse_message)
    await answer(state, http, call, writer=_Writer(call))


async def count_tokens(state: ServerState, http: Exchange) -> None:
    """The length of the prompt that a conversation makes."""

    def work(values: dict[str, object]) -> tuple[int, list[str]]:
        body, _, ignored = read_body(state, values, Endpoint.COUNT_TOKENS)
        # It changes no count, but what is wrong here would be wrong there.
        read_grammar(body)
        template = state.template()
        conversation, dropped = read_conversation(body, template)
        return len(conversation.encode(template)), ignored + dropped

    count, ignored = await read_values(state, http, work)
    await send_json(http.send, {"input_tokens": count}, headers=ignored_header(ignored))


def parse_message(state: ServerState, values: dict[str, object]) -> Call:
    """Every check of a request, in order, ending with its token ids.

    Raises:
        OctavoError: naming the field.
    """
    body, model, ignored = read_body(state, values, Endpoint.MESSAGES, dialect=ANTHROPIC)
    sampling = sampling_from_body(
        body, Endpoint.MESSAGES, defaults=state.defaults, vocab_size=state.tokenizer.vocab_size
    )
    if sampling.max_tokens is None:
        raise wrong("max_tokens", "is required: the most tokens to generate, 1 or more")
    template = state.template()
    conversation, dropped = read_conversation(body, template)
    token_ids = conversation.encode(template)
    sampling, form = settle(sampling, conversation.answer_form(template, token_ids))
    sampling = _within_context(sampling, len(token_ids), state.token_limits())
    return Call(
        requests=[engine_request(state, body, token_ids, sampling=sampling)],
        model=model,
        stream=body.boolean("stream"),
        ignored=ignored + dropped,
        asked_tokens=body.integer("max_tokens"),
        form=form,
    )


def _within_context(
    sampling: SamplingParams, num_prompt_tokens: int, limits: TokenLimits
) -> SamplingParams:
    room = limits.tightest[1] - num_prompt_tokens
    if sampling.max_tokens is not None and 1 <= room < sampling.max_tokens:
        return replace(sampling, max_tokens=room)
    return sampling


# -- what is answered ----------------------------------------------------------------------------


class _Writer:
    """Renders one answer. Its content has a block per part of it, none where it is empty."""

    ping = named_event("ping", {"type": "ping"})
    done = b""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._clamped = call.asked_tokens != call.sampling.max_tokens
        self._started = False
        assert call.form is not None, "a message's answer has a form"
        self._reader = call.form.reader()
        self._parts = Parts()
        self._at = -1
        self._base: dict[str, object] = {
            "id": f"msg_{uuid.uuid4().hex}",
            "type": "message",
            "role": "assistant",
            "model": call.model,
            "container": None,
        }

    def failure(self, error: OctavoError) -> bytes:
        """See ``Framing``."""
        return named_event("error", ANTHROPIC.error(error))

    def response(self, generation: Generation, choices: Sequence[Choice]) -> dict[str, object]:
        """The message of a call that is not streamed."""
        (choice,) = choices
        text = "".join(choice.text)
        for piece in self._reader.read_text(text, choice.token_ids, is_last=True):
            self._parts.add(piece)
        return {
            **self._base,
            "content": [_block(part) for part in self._parts.all],
            **self._stop(choice.finish_reason, choice.stop_reason),
            **self._usage(generation),
        }

    def _usage(self, generation: Generation) -> dict[str, object]:
        thinking = {"thinking_tokens": self._reader.num_reasoning_tokens}
        usage = {**usage_object(generation.usage), "output_tokens_details": thinking}
        return {"usage": usage, "timings": generation.timings}

    def events(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """The events of a message, in the protocol's order."""
        return generation.outputs(lambda _, output: b"".join(self._events(output, generation)))

    def _events(self, output: RequestOutput, generation: Generation) -> list[bytes]:
        """What one output adds, as one write."""
        (delta,) = output.branches
        found = []
        if not self._started:
            self._started = True
            found.append(_event("message_start", message=self._empty(output.usage)))
        for piece in self._reader.read(delta):
            part, text = self._parts.add(piece)
            if len(self._parts.all) - 1 > self._at:
                found += self._close()
                self._at += 1
                empty = _block(replace(part, pieces=[]))
                found.append(_event("content_block_start", index=self._at, content_block=empty))
            if text:
                kind, key = _DELTAS[part.kind]
                added = {"type": kind, key: text}
                found.append(_event("content_block_delta", index=self._at, delta=added))
        if delta.finish_reason is not None:
            found += self._end(delta, generation)
        return found

    def _empty(self, usage: Usage) -> dict[str, object]:
        usage = replace(usage, completion_tokens=0)
        return {**self._base, "content": [], **_NO_STOP, "usage": usage_object(usage)}

    def _close(self) -> list[bytes]:
        return [_event("content_block_stop", index=self._at)] if self._at >= 0 else []

    def _end(self, delta: BranchDelta, generation: Generation) -> list[bytes]:
        stop = {**self._stop(delta.finish_reason, delta.stop_reason), "container": None}
        last = _event("message_delta", delta=stop, **self._usage(generation))
        return [*self._close(), last, _event("message_stop")]

    def _stop(self, finish: FinishReason | None, reason: str | int | None) -> dict[str, object]:
        if finish is FinishReason.LENGTH:
            word = "model_context_window_exceeded" if self._clamped else "max_tokens"
            return {**_NO_STOP, "stop_reason": word}
        assert finish is FinishReason.STOP, "a fault is no finish"
        if isinstance(reason, str):
            return {**_NO_STOP, "stop_reason": "stop_sequence", "stop_sequence": reason}
        return {**_NO_STOP, "stop_reason": "tool_use" if self._parts.calls else "end_turn"}


_NO_STOP: dict[str, object] = {"stop_reason": None, "stop_sequence": None, "stop_details": None}


def _event(kind: str, **values: object) -> bytes:
    return named_event(kind, {"type": kind, **values})


# Per kind of part: the delta's type, and its member.
_DELTAS = {
    "reasoning": ("thinking_delta", "thinking"),
    "text": ("text_delta", "text"),
    "call": ("input_json_delta", "partial_json"),
}


def _block(part: Part) -> dict[str, object]:
    """A part as a block. Nobody signs what this server's models think.

    A call whose arguments are cut off, or no JSON, has none.
    """
    if part.kind == "reasoning":
        return {"type": "thinking", "thinking": part.text, "signature": ""}
    if part.kind == "text":
        return {"type": "text", "text": part.text, "citations": None}
    return {
        "type": "tool_use",
        "id": part.id,
        "name": part.name,
        "input": json_object(part.text) or {},
        "caller": {"type": "direct"},
    }


def usage_object(usage: Usage) -> dict[str, object]:
    """Token counts; here, unlike elsewhere, the input is what was not read from the cache."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": None,
        "cache_creation": None,
        "server_tool_use": None,
        "service_tier": None,
        "inference_geo": None,
    }
