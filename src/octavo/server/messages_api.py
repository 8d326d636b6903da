"""``POST /v1/messages`` and ``/v1/messages/count_tokens``: Anthropic's protocol.

    message_start → content_block_start → content_block_delta* → content_block_stop
                  → message_delta (stop_reason, usage) → message_stop

A last message of the assistant is continued. ``max_tokens`` may exceed what is left of the context:
the answer then ends there, with the stop reason ``model_context_window_exceeded``.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace

from octavo.core.request import FinishReason
from octavo.core.sampling_params import SamplingParams
from octavo.errors import InvalidRequestError, OctavoError
from octavo.frontend import BranchDelta, RequestOutput, Usage
from octavo.server.call import Call, answer, read_call, read_values
from octavo.server.conversation import Conversation
from octavo.server.dialects import ANTHROPIC
from octavo.server.engine_request import engine_request
from octavo.server.fields import Endpoint, check_fields
from octavo.server.generation import Choice, Generation
from octavo.server.prompts import check_message_count
from octavo.server.replies import Exchange, ignored_header, send_json
from octavo.server.sampling_fields import TokenLimits, sampling_from_body
from octavo.server.sse import named_event
from octavo.server.state import ServerState
from octavo.server.typed_body import TypedBody, shown_name

ROLES = ("user", "assistant", "system")
# Changes with every request of some clients, and would part prompts that are otherwise the same.
BILLING_HEADER = "x-anthropic-billing-header"


async def messages(state: ServerState, http: Exchange) -> None:
    """Answer a conversation, streamed or not."""
    call = await read_call(state, http, parse_message)
    await answer(state, http, call, writer=_Writer(call))


async def count_tokens(state: ServerState, http: Exchange) -> None:
    """The length of the prompt that a conversation makes."""

    def work(values: dict[str, object]) -> tuple[int, list[str]]:
        ignored = check_fields(values, Endpoint.COUNT_TOKENS)
        body = TypedBody(values)
        state.check_model(body.string("model"))
        conversation, dropped = read_conversation(body)
        return len(conversation.encode(state.template())), ignored + dropped

    count, ignored = await read_values(state, http, work)
    await send_json(http.send, {"input_tokens": count}, headers=ignored_header(ignored))


def parse_message(state: ServerState, values: dict[str, object]) -> Call:
    """Every check of a request, in order, ending with its token ids.

    Raises:
        OctavoError: naming the field.
    """
    ignored = check_fields(values, Endpoint.MESSAGES)
    body = TypedBody(ANTHROPIC.own_names(values))
    model = state.check_model(body.string("model"))
    sampling = sampling_from_body(
        body, Endpoint.MESSAGES, defaults=state.defaults, vocab_size=state.tokenizer.vocab_size
    )
    if sampling.max_tokens is None:
        raise InvalidRequestError(
            "max_tokens is required: the most tokens to generate, 1 or more", param="max_tokens"
        )
    conversation, dropped = read_conversation(body)
    token_ids = conversation.encode(state.template())
    sampling = _within_context(sampling, len(token_ids), state.token_limits())
    return Call(
        requests=[engine_request(state, body, token_ids, sampling=sampling)],
        model=model,
        stream=body.boolean("stream"),
        include_usage=True,
        ignored=ignored + dropped,
        asked_tokens=body.integer("max_tokens"),
    )


def _within_context(
    sampling: SamplingParams, num_prompt_tokens: int, limits: TokenLimits
) -> SamplingParams:
    room = limits.tightest[1] - num_prompt_tokens
    if sampling.max_tokens is not None and 1 <= room < sampling.max_tokens:
        return replace(sampling, max_tokens=room)
    return sampling


# -- what is asked -------------------------------------------------------------------------------


def read_conversation(body: TypedBody) -> tuple[Conversation, list[str]]:
    """The conversation, and what of it was left out or ignored, by name.

    Raises:
        InvalidRequestError: naming the message or block and what is wrong with it.
    """
    dropped: list[str] = []
    found = []
    if text := _system(body.raw("system"), dropped):
        found.append({"role": "system", "content": text})
    entries = body.raw("messages")
    if not isinstance(entries, list) or not entries:
        raise InvalidRequestError("messages must be a non-empty list", param="messages")
    check_message_count(entries, "messages")
    found += [_message(entry, f"messages[{i}]", dropped) for i, entry in enumerate(entries)]
    continues = found[-1]["role"] == "assistant"
    return Conversation(messages=found, continue_final=continues), sorted(set(dropped))


def _system(system: object, dropped: list[str]) -> str:
    if system is None:
        return ""
    if isinstance(system, list):
        kept = [block for block in system if not _is_billing(block)]
        if len(kept) < len(system):
            dropped.append(f"system.{BILLING_HEADER}")
        return _blocks(kept, "system", dropped) if kept else ""
    return _blocks(system, "system", dropped)


def _is_billing(block: object) -> bool:
    text = block.get("text") if isinstance(block, Mapping) else None
    return isinstance(text, str) and text.startswith(BILLING_HEADER)


def _message(entry: object, where: str, dropped: list[str]) -> dict[str, str]:
    if not isinstance(entry, Mapping):
        raise InvalidRequestError(f"{where} must be an object", param=where)
    role = entry.get("role")
    if role not in ROLES:
        raise InvalidRequestError(
            f"{where}.role must be one of {', '.join(ROLES)}", param=f"{where}.role"
        )
    for key in entry:
        if key not in ("role", "content"):
            shown = f"{where}.{shown_name(key)}"
            raise InvalidRequestError(f"{shown} is not supported", param=shown)
    return {"role": role, "content": _blocks(entry.get("content"), f"{where}.content", dropped)}


def _blocks(content: object, where: str, dropped: list[str]) -> str:
    """A text, or text blocks joined by line ends."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise InvalidRequestError(
            f"{where} must be a string or a non-empty list of text blocks", param=where
        )
    return "\n".join(_block(block, f"{where}[{i}]", dropped) for i, block in enumerate(content))


def _block(block: object, where: str, dropped: list[str]) -> str:
    if not isinstance(block, Mapping) or block.get("type") != "text":
        raise InvalidRequestError(f"{where} must be a text block; only text is read", param=where)
    text = block.get("text")
    if not isinstance(text, str):
        raise InvalidRequestError(f"{where}.text must be a string", param=f"{where}.text")
    for key, value in block.items():
        if key == "cache_control":
            dropped.append(key)
        elif key not in ("type", "text") and value not in (None, []):
            shown = f"{where}.{shown_name(key)}"
            raise InvalidRequestError(f"{shown} is not supported", param=shown)
    return text


# -- what is answered ----------------------------------------------------------------------------


class _Writer:
    """Renders one answer. The content is one text block, or none where there is no text."""

    ping = named_event("ping", {"type": "ping"})
    done = b""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._clamped = call.asked_tokens != call.sampling.max_tokens
        self._started = False
        self._in_block = False
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
        return {
            **self._base,
            "content": [_text_block(text)] if text else [],
            **self._stop(choice.finish_reason, choice.stop_reason),
            "usage": usage_object(generation.usage),
            "timings": generation.timings,
        }

    async def events(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """The events of a message, in the protocol's order."""
        async with aclosing(generation.outputs()) as outputs:
            async for _, output in outputs:
                if data := b"".join(self._events(output, generation)):
                    yield data

    def _events(self, output: RequestOutput, generation: Generation) -> list[bytes]:
        """What one output adds, as one write."""
        (delta,) = output.branches
        found = []
        if not self._started:
            self._started = True
            found.append(_event("message_start", message=self._empty(output.usage)))
        if delta.text:
            if not self._in_block:
                self._in_block = True
                found.append(_event("content_block_start", index=0, content_block=_text_block("")))
            text = {"type": "text_delta", "text": delta.text}
            found.append(_event("content_block_delta", index=0, delta=text))
        if delta.finish_reason is not None:
            found += self._end(delta, generation)
        return found

    def _empty(self, usage: Usage) -> dict[str, object]:
        usage = replace(usage, completion_tokens=0)
        return {**self._base, "content": [], **_NO_STOP, "usage": usage_object(usage)}

    def _end(self, delta: BranchDelta, generation: Generation) -> list[bytes]:
        found = [_event("content_block_stop", index=0)] if self._in_block else []
        stop = {**self._stop(delta.finish_reason, delta.stop_reason), "container": None}
        usage, timings = usage_object(generation.usage), generation.timings
        found.append(_event("message_delta", delta=stop, usage=usage, timings=timings))
        return [*found, _event("message_stop")]

    def _stop(self, finish: FinishReason | None, reason: str | int | None) -> dict[str, object]:
        if finish is FinishReason.LENGTH:
            word = "model_context_window_exceeded" if self._clamped else "max_tokens"
            return {**_NO_STOP, "stop_reason": word}
        assert finish is FinishReason.STOP, "a fault is no finish"
        if isinstance(reason, str):
            return {**_NO_STOP, "stop_reason": "stop_sequence", "stop_sequence": reason}
        return {**_NO_STOP, "stop_reason": "end_turn"}


_NO_STOP: dict[str, object] = {"stop_reason": None, "stop_sequence": None, "stop_details": None}


def _event(kind: str, **values: object) -> bytes:
    return named_event(kind, {"type": kind, **values})


def _text_block(text: str) -> dict[str, object]:
    return {"type": "text", "text": text, "citations": None}


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
