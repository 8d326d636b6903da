"""``/v1/responses``: OpenAI's newer protocol.

    created → in_progress → output_item.added → content_part.added → output_text.delta*
            → output_text.done → content_part.done → output_item.done
            → completed | incomplete | failed

A response is kept, unless ``store`` is false, in memory and bounded: it can be read, continued by
``previous_response_id``, cancelled while it runs in the background, and deleted.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from octavo.core.request import FinishReason, TokenLogprobs
from octavo.errors import EngineError, InvalidRequestError, OctavoError
from octavo.frontend import RequestOutput, Usage
from octavo.server.call import answer, read_call, read_values
from octavo.server.dialects import RESPONSES
from octavo.server.edge import presented_key
from octavo.server.fields import Endpoint, check_fields
from octavo.server.generation import Choice, Generation, collect
from octavo.server.rendering import chat_logprobs
from octavo.server.replies import Exchange, ignored_header, send_json
from octavo.server.response_store import StoredResponse
from octavo.server.responses_input import ResponseCall, parse_response, read_conversation
from octavo.server.sse import PING, named_event
from octavo.server.state import ServerState
from octavo.server.typed_body import TypedBody

_ERROR_CODES = {429: "rate_limit_exceeded", 400: "invalid_prompt"}
# Fields of the object that say nothing here, but that clients require.
_CONSTANT: dict[str, object] = {
    "tools": [],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "max_tool_calls": None,
    "truncation": "disabled",
    "reasoning": None,
    "service_tier": "default",
}

logger = logging.getLogger(__name__)


def owner_of(state: ServerState, http: Exchange) -> bytes:
    """Whose responses a client sees: those of its key, or all where no key is asked for."""
    if not state.api_keys:
        return b""
    return hashlib.sha256(presented_key(http.headers)).digest()


async def create_response(state: ServerState, http: Exchange) -> None:
    """Answer, streamed or not, now or in the background."""
    owner = owner_of(state, http)
    call = await read_call(state, http, lambda here, values: parse_response(here, values, owner))
    writer = _Writer(state, call, owner)
    if call.background:
        await send_json(
            http.send, _begin(state, call, writer), headers=ignored_header(call.ignored)
        )
    else:
        await answer(state, http, call, writer=writer)


async def get_response(state: ServerState, http: Exchange) -> None:
    """A stored response as it is now."""
    if b"stream=true" in http.scope["query_string"]:
        raise InvalidRequestError("a stored response is not streamed; poll it", param="stream")
    await send_json(http.send, _stored(state, http).body)


async def delete_response(state: ServerState, http: Exchange) -> None:
    """Forget a stored response; one that is being made is cancelled."""
    response_id = http.scope["path_params"]["response_id"]
    state.responses.delete(response_id, owner_of(state, http))
    await send_json(http.send, {"id": response_id, "object": "response", "deleted": True})


async def cancel_response(state: ServerState, http: Exchange) -> None:
    """Stop what runs in the background. What has ended stays as it is."""
    entry = _stored(state, http)
    if not entry.background:
        raise InvalidRequestError(
            "only a response with background: true can be cancelled; close the connection instead",
            param="response_id",
        )
    entry.cancelled.set()
    await entry.ended.wait()
    await send_json(http.send, entry.body)


async def count_input_tokens(state: ServerState, http: Exchange) -> None:
    """The length of the prompt that a request makes."""
    owner = owner_of(state, http)

    def work(values: dict[str, object]) -> tuple[int, list[str]]:
        ignored = check_fields(values, Endpoint.INPUT_TOKENS)
        body = TypedBody(RESPONSES.own_names(values))
        state.check_model(body.string("model"))
        conversation, _ = read_conversation(state, body, owner)
        return len(conversation.encode(state.template())), ignored

    count, ignored = await read_values(state, http, work)
    counted = {"object": "response.input_tokens", "input_tokens": count}
    await send_json(http.send, counted, headers=ignored_header(ignored))


def _stored(state: ServerState, http: Exchange) -> StoredResponse:
    return state.responses.get(http.scope["path_params"]["response_id"], owner_of(state, http))


# -- in the background ---------------------------------------------------------------------------


def _begin(state: ServerState, call: ResponseCall, writer: _Writer) -> dict[str, object]:
    """Store the response as queued and begin to make it.

    Raises:
        OverloadedError: too many are being made, or the engine takes none.
    """
    queued = writer.body("queued")
    writer.keep(queued)
    generation = Generation(
        state, call.requests, writer.entry.until_cancelled, timeout_s=call.timeout_s
    )
    try:
        generation.start()
    except OctavoError:
        state.responses.delete(writer.response_id, writer.entry.owner)
        raise
    state.responses.run(asyncio.create_task(_finish(generation, writer)))
    return queued


async def _finish(generation: Generation, writer: _Writer) -> None:
    try:
        writer.keep(writer.body("in_progress"))
        choices = await collect(generation, num_prompts=1, n=1)
        if generation.disconnected:
            writer.keep(writer.body("cancelled", choice=choices[0], usage=generation.usage))
        else:
            writer.response(generation, choices)
    except OctavoError as error:
        writer.failure(error)
    except Exception:
        logger.exception("a background response failed")
        writer.failure(EngineError("internal error; see the server's log"))
    finally:
        generation.close()


# -- what is answered ----------------------------------------------------------------------------


class _Writer:
    """Renders one answer: a single message with a single text."""

    ping = PING
    done = b""

    def __init__(self, state: ServerState, call: ResponseCall, owner: bytes) -> None:
        self._state = state
        self._call = call
        self.entry = StoredResponse(owner=owner, background=call.background)
        self._top = call.sampling.logprobs
        self._sequence = 0
        self._streamed = Choice()
        self._started = False
        self.response_id = f"resp_{uuid.uuid4().hex}"
        self._item_id = f"msg_{uuid.uuid4().hex}"
        self._place = {"item_id": self._item_id, "output_index": 0, "content_index": 0}
        self._base: dict[str, object] = {
            "id": self.response_id,
            "object": "response",
            "created_at": int(time.time()),
            "model": call.model,
            "store": call.store,
            "background": call.background,
            **_CONSTANT,
            **call.shown,
        }

    def keep(self, body: dict[str, object], text: str = "") -> None:
        """Store a state of the response, where it is to be stored; ``text`` ends its conversation.

        Raises:
            OverloadedError: too many are being made in the background.
        """
        if self._call.store:
            answer = {"role": "assistant", "content": text}
            self.entry.body = body
            self.entry.messages = [*self._call.messages, answer]
            self._state.responses.put(self.response_id, self.entry)

    def response(self, generation: Generation, choices: Sequence[Choice]) -> dict[str, object]:
        """The object of a call that is not streamed."""
        (choice,) = choices
        return self._ended(choice, generation)

    def _ended(self, choice: Choice, generation: Generation) -> dict[str, object]:
        status = "completed" if choice.finish_reason is FinishReason.STOP else "incomplete"
        body = self.body(status, choice=choice, usage=generation.usage)
        body["timings"] = generation.timings
        self.keep(body, "".join(choice.text))
        return body

    def body(
        self,
        status: str,
        *,
        choice: Choice | None = None,
        usage: Usage | None = None,
        error: OctavoError | None = None,
    ) -> dict[str, object]:
        """The response's object in one of its states."""
        why = {"reason": "max_output_tokens"} if status == "incomplete" else None
        fault = None
        if error is not None:
            code = _ERROR_CODES.get(error.http_status, "server_error")
            fault = {"code": code, "message": error.message}
        item_status = "completed" if status == "completed" else "incomplete"
        return {
            **self._base,
            "status": status,
            "completed_at": int(time.time()) if status == "completed" else None,
            "error": fault,
            "incomplete_details": why,
            "output": [] if choice is None else [self._item(item_status, [self._part(choice)])],
            "usage": None if usage is None else usage_object(usage),
        }

    def _item(self, status: str, content: list[dict[str, object]]) -> dict[str, object]:
        return {
            "id": self._item_id,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": content,
        }

    def _part(self, choice: Choice) -> dict[str, object]:
        return {
            "type": "output_text",
            "text": "".join(choice.text),
            "annotations": [],
            "logprobs": self._logprobs(choice.logprobs),
        }

    def _logprobs(self, entries: Sequence[TokenLogprobs]) -> object:
        if self._top is None:
            return []
        return chat_logprobs(entries, self._state.tokenizer, top=self._top)["content"]

    # -- streamed ----------------------------------------------------------------------------

    async def events(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """The events of a response, in the protocol's order."""
        async with aclosing(generation.outputs()) as outputs:
            async for _, output in outputs:
                if data := b"".join(self._events(output, generation)):
                    yield data

    def failure(self, error: OctavoError) -> bytes:
        """See ``Framing``; the response has failed, and is kept so."""
        choice = self._streamed if self._started else None
        begun = [] if self._started else self._begin()
        body = self.body("failed", choice=choice, error=error)
        self.keep(body)
        return b"".join([*begun, self._event("response.failed", response=body)])

    def _event(self, kind: str, **values: object) -> bytes:
        data = {"type": kind, "sequence_number": self._sequence, **values}
        self._sequence += 1
        return named_event(kind, data)

    def _begin(self) -> list[bytes]:
        self._started = True
        body = self.body("in_progress")
        return [
            self._event("response.created", response=body),
            self._event("response.in_progress", response=body),
        ]

    def _events(self, output: RequestOutput, generation: Generation) -> list[bytes]:
        """What one output adds, as one write."""
        (delta,) = output.branches
        found = []
        if not self._started:
            item = self._item("in_progress", [])
            found = [
                *self._begin(),
                self._event("response.output_item.added", output_index=0, item=item),
                self._event(
                    "response.content_part.added", **self._place, part=self._part(Choice())
                ),
            ]
        self._streamed.add(delta)
        if delta.text or delta.logprobs:
            logprobs = self._logprobs(delta.logprobs)
            found.append(
                self._event(
                    "response.output_text.delta", **self._place, delta=delta.text, logprobs=logprobs
                )
            )
        if delta.finish_reason is not None:
            found += self._end(generation)
        return found

    def _end(self, generation: Generation) -> list[bytes]:
        body = self._ended(self._streamed, generation)
        part = self._part(self._streamed)
        complete = body["status"] == "completed"
        item = self._item("completed" if complete else "incomplete", [part])
        return [
            self._event(
                "response.output_text.done",
                **self._place, text=part["text"], logprobs=part["logprobs"],
            ),
            self._event("response.content_part.done", **self._place, part=part),
            self._event("response.output_item.done", output_index=0, item=item),
            self._event(f"response.{body['status']}", response=body),
        ]  # fmt: skip


def usage_object(usage: Usage) -> dict[str, object]:
    """Token counts with the details that clients read."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
