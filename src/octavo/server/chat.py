"""``POST /v1/chat/completions``."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.errors import InvalidRequestError
from octavo.frontend import BranchDelta
from octavo.server.fields import Endpoint, check_fields
from octavo.server.generation import Choice, Generation, collect
from octavo.server.json_body import parse_json_object
from octavo.server.prompts import read_messages
from octavo.server.rendering import chat_logprobs, finish_text, usage_object
from octavo.server.replies import Exchange, header_map, send_json
from octavo.server.sampling_fields import fit_max_tokens, sampling_from_body
from octavo.server.sse import event, send_events
from octavo.server.state import ServerState
from octavo.server.typed_body import TypedBody, shown_name


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCall:
    """A validated chat request."""

    request: Request
    model: str
    stream: bool
    include_usage: bool
    ignored: Sequence[str]

    @property
    def sampling(self) -> SamplingParams:
        """The engine request's parameters."""
        return self.request.sampling


async def chat_completions(state: ServerState, http: Exchange) -> None:
    """Answer a chat, streamed or not."""
    call = await _read(state, http)
    writer = _Writer(state, call)
    headers = list(header_map(call.ignored).items())
    with Generation(state, [call.request], http.receive) as generation:
        if call.stream:
            await send_events(http.send, writer.events(generation), headers=headers)
            return
        choices = await collect(generation, num_prompts=1, n=call.sampling.n)
        if not generation.disconnected:
            await send_json(http.send, writer.response(generation, choices), headers=headers)


async def _read(state: ServerState, http: Exchange) -> ChatCall:
    """Body and parsed values live no longer than this."""
    state.check_accepting()
    async with state.bodies.reading(http.headers, http.receive) as body:
        return await state.text_thread.run(
            len(body), lambda: parse_chat(state, parse_json_object(body))
        )


def parse_chat(state: ServerState, values: dict[str, object]) -> ChatCall:
    """Every check of a chat request, in order, ending with its token ids.

    Raises:
        OctavoError: naming the field.
    """
    ignored = check_fields(values, Endpoint.CHAT)
    body = TypedBody(values)
    model = state.check_model(body.string("model"))
    stream, include_usage = read_stream_options(body)
    sampling = sampling_from_body(
        body, Endpoint.CHAT, defaults=state.defaults, vocab_size=state.tokenizer.vocab_size
    )
    messages = read_messages(body)
    token_ids = state.template().encode(messages)
    sampling = fit_max_tokens(
        sampling, num_prompt_tokens=len(token_ids), limits=state.token_limits(), default=None
    )
    request = Request(
        request_id="",
        prompt_token_ids=tuple(token_ids),
        sampling=sampling,
        eos_token_ids=state.eos_token_ids,
    )
    return ChatCall(
        request=request, model=model, stream=stream, include_usage=include_usage, ignored=ignored
    )


def read_stream_options(body: TypedBody) -> tuple[bool, bool]:
    """``stream`` and ``stream_options.include_usage``.

    Raises:
        InvalidRequestError: options without streaming, or an unknown one.
    """
    stream = body.boolean("stream")
    options = body.mapping("stream_options")
    if options and not stream:
        raise InvalidRequestError("stream_options needs stream: true", param="stream_options")
    if unknown := set(options) - {"include_usage"}:
        shown = shown_name(min(unknown))
        raise InvalidRequestError(
            f'stream_options has an unknown field "{shown}"', param=f"stream_options.{shown}"
        )
    return stream, TypedBody(options).boolean("include_usage")


class _Writer:
    """Renders one chat request's response."""

    def __init__(self, state: ServerState, call: ChatCall) -> None:
        self._state = state
        self._call = call
        self._base: dict[str, object] = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": call.model,
        }

    def response(self, generation: Generation, choices: Sequence[Choice]) -> dict[str, object]:
        """The object of a request that is not streamed."""
        return {
            **self._base,
            "object": "chat.completion",
            "choices": [self._choice(index, choice) for index, choice in enumerate(choices)],
            "usage": usage_object(generation.usage),
        }

    def _choice(self, index: int, choice: Choice) -> dict[str, object]:
        top = self._call.sampling.logprobs
        logprobs = choice.logprobs
        return {
            "index": index,
            "message": {"role": "assistant", "content": "".join(choice.text), "refusal": None},
            "logprobs": None
            if top is None
            else chat_logprobs(logprobs, self._state.tokenizer, top=top),
            "finish_reason": finish_text(choice.finish_reason),
        }

    async def events(self, generation: Generation) -> AsyncIterator[bytes]:
        """Chunks: the role first, one finish per choice, usage last where asked for."""
        started = False
        async for _, output in generation.outputs():
            if not started:
                started = True
                for index in range(self._call.sampling.n):
                    yield self._chunk(index, {"role": "assistant", "content": ""})
            for delta in output.branches:
                if delta.text or delta.logprobs:
                    yield self._chunk(delta.branch, {"content": delta.text}, delta=delta)
                if delta.finish_reason is not None:
                    finish = finish_text(delta.finish_reason)
                    yield self._chunk(delta.branch, {}, finish=finish)
        if self._call.include_usage and not generation.disconnected:
            usage = usage_object(generation.usage)
            yield event({**self._base, "object": _CHUNK, "choices": [], "usage": usage})

    def _chunk(
        self,
        index: int,
        content: dict[str, str],
        *,
        delta: BranchDelta | None = None,
        finish: str | None = None,
    ) -> bytes:
        top = self._call.sampling.logprobs
        logprobs = None
        if top is not None and delta is not None:
            logprobs = chat_logprobs(delta.logprobs, self._state.tokenizer, top=top)
        choice = {"index": index, "delta": content, "logprobs": logprobs, "finish_reason": finish}
        chunk = {**self._base, "object": _CHUNK, "choices": [choice]}
        if self._call.include_usage:
            chunk["usage"] = None
        return event(chunk)


_CHUNK = "chat.completion.chunk"
