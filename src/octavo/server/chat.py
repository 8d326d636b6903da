"""``POST /v1/chat/completions``."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

from octavo.frontend import BranchDelta, RequestOutput
from octavo.server.call import Call, OpenAIFraming, answer, read_call, read_stream_options
from octavo.server.conversation import chat_conversation
from octavo.server.engine_request import engine_request
from octavo.server.fields import Endpoint, check_fields
from octavo.server.generation import Choice, Generation
from octavo.server.rendering import chat_logprobs, finish_text, usage_object
from octavo.server.replies import Exchange, encode_json
from octavo.server.sampling_fields import sampling_from_body
from octavo.server.sse import END_OF_EVENT, event
from octavo.server.state import ServerState
from octavo.server.tools import ToolStream, tool_message
from octavo.server.typed_body import TypedBody


async def chat_completions(state: ServerState, http: Exchange) -> None:
    """Answer a chat, streamed or not."""
    call = await read_call(state, http, parse_chat)
    await answer(state, http, call, writer=_Writer(state, call))


def parse_chat(state: ServerState, values: dict[str, object]) -> Call:
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
    template = state.template()
    conversation = chat_conversation(body, template)
    token_ids = conversation.encode(template)
    if conversation.tools is not None and conversation.tools.grammar is not None:
        sampling = replace(sampling, grammar=conversation.tools.grammar)
    return Call(
        requests=[engine_request(state, body, token_ids, sampling=sampling)],
        model=model,
        stream=stream,
        include_usage=include_usage,
        ignored=ignored,
        shows_ids=body.boolean("return_token_ids"),
        tools=conversation.tools,
    )


class _Writer(OpenAIFraming):
    """Renders one chat request's response."""

    def __init__(self, state: ServerState, call: Call) -> None:
        self._tokenizer = state.tokenizer
        self._call = call
        self._top = call.sampling.logprobs
        self._started = False
        self._base: dict[str, object] = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": call.model,
        }
        # A chunk is these around its one choice: most of its bytes are the same every time.
        self._prefix = event({**self._base, "object": "chat.completion.chunk"}).removesuffix(
            b"}" + END_OF_EVENT
        )
        usage = b',"usage":null' if call.include_usage else b""
        self._suffix = b"}]" + usage + b"}" + END_OF_EVENT
        self._heads = [self._head(index) for index in range(call.sampling.n)]
        self._tools = [ToolStream(call.tools) for _ in self._heads] if call.tools else []

    def _head(self, index: int) -> bytes:
        return self._prefix + b',"choices":[{"index":%d,"delta":' % index

    def response(self, generation: Generation, choices: Sequence[Choice]) -> dict[str, object]:
        """The object of a request that is not streamed."""
        ids = {"prompt_token_ids": self._call.requests[0].prompt_token_ids}
        return {
            **self._base,
            **(ids if self._call.shows_ids else {}),
            "object": "chat.completion",
            "choices": [self._choice(index, choice) for index, choice in enumerate(choices)],
            "usage": usage_object(generation.usage),
            "timings": generation.timings,
        }

    def _choice(self, index: int, choice: Choice) -> dict[str, object]:
        logprobs = None
        if self._top is not None:
            logprobs = chat_logprobs(choice.logprobs, self._tokenizer, top=self._top)
        text = "".join(choice.text)
        content = tool_message(self._call.tools, text) if self._call.tools else {"content": text}
        message = {"role": "assistant", **content, "refusal": None}
        return {
            **({"token_ids": choice.token_ids} if self._call.shows_ids else {}),
            "index": index,
            "message": message,
            "logprobs": logprobs,
            "finish_reason": finish_text(choice.finish_reason, calls="tool_calls" in message),
        }

    async def events(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """Chunks: the role first, one finish per choice, usage last where asked for."""
        async with aclosing(generation.outputs()) as outputs:
            async for _, output in outputs:
                if chunks := self._chunks(output):
                    yield chunks
        if self._call.include_usage and not generation.disconnected:
            last = {"usage": usage_object(generation.usage), "timings": generation.timings}
            yield self._prefix + b',"choices":[],' + encode_json(last)[1:] + END_OF_EVENT

    def _chunks(self, output: RequestOutput) -> bytes:
        """An output's chunks as one write: the roles first, then contents and finishes."""
        chunks = []
        if not self._started:
            self._started = True
            role = b'{"role":"assistant","content":""}'
            more = self._prompt_ids()
            chunks += [self._chunk(index, role, more=more) for index in range(len(self._heads))]
        for delta in output.branches:
            contents = self._contents(delta)
            for at, content in enumerate(contents):
                more = b"" if at else self._more(delta)
                chunks.append(self._chunk(delta.branch, content, more=more))
            if delta.finish_reason is not None:
                calls = bool(self._tools) and self._tools[delta.branch].has_calls
                finish = encode_json(finish_text(delta.finish_reason, calls=calls))
                chunks.append(self._chunk(delta.branch, b"{}", finish=finish))
        return b"".join(chunks)

    def _contents(self, delta: BranchDelta) -> list[bytes]:
        """A delta as the ``delta`` objects of its chunks; none where nothing is certain yet."""
        found = []
        if self._tools:
            is_last = delta.finish_reason is not None
            pieces = self._tools[delta.branch].deltas(delta.text, is_last=is_last)
            found = [encode_json(piece) for piece in pieces]
        elif delta.text:
            found = [b'{"content":' + encode_json(delta.text) + b"}"]
        beside = delta.logprobs or (self._call.shows_ids and delta.token_ids)
        return found or ([b'{"content":""}'] if beside else [])

    def _prompt_ids(self) -> bytes:
        if not self._call.shows_ids:
            return b""
        return b',"prompt_token_ids":' + encode_json(self._call.requests[0].prompt_token_ids)

    def _more(self, delta: BranchDelta) -> bytes:
        """What stands beside a content, where it was asked for."""
        more = b""
        if self._top is not None:
            logprobs = chat_logprobs(delta.logprobs, self._tokenizer, top=self._top)
            more += b',"logprobs":' + encode_json(logprobs)
        if self._call.shows_ids:
            more += b',"token_ids":' + encode_json(delta.token_ids)
        return more

    def _chunk(
        self, index: int, content: bytes, *, more: bytes = b"", finish: bytes = b"null"
    ) -> bytes:
        if b',"logprobs":' not in more:
            more += b',"logprobs":null'
        return b"".join(
            (self._heads[index], content, more, b',"finish_reason":', finish, self._suffix)
        )
