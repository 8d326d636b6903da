"""``POST /v1/chat/completions``."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Iterable, Sequence

from octavo.core.request import TokenLogprobs
from octavo.frontend import BranchDelta, RequestOutput
from octavo.frontend.answer import answer_message, piece_delta
from octavo.frontend.conversation import settle
from octavo.server.call import Call, answer, read_body, read_call, read_stream_options
from octavo.server.conversation import chat_conversation
from octavo.server.endpoints import Endpoint
from octavo.server.engine_request import engine_request
from octavo.server.generation import Choice, Generation
from octavo.server.rendering import chat_logprobs, finish_text, prompt_logprobs, usage_object
from octavo.server.replies import Exchange, encode_json
from octavo.server.sampling_fields import sampling_from_body
from octavo.server.sse import END_OF_EVENT, OpenAIFraming, event
from octavo.server.state import ServerState


async def chat_completions(state: ServerState, http: Exchange) -> None:
    """Answer a chat, streamed or not."""
    call = await read_call(state, http, parse_chat)
    await answer(state, http, call, writer=_Writer(state, call))


def parse_chat(state: ServerState, values: dict[str, object]) -> Call:
    """Every check of a chat request, in order, ending with its token ids.

    Raises:
        OctavoError: naming the field.
    """
    body, model, ignored = read_body(state, values, Endpoint.CHAT)
    stream, include_usage = read_stream_options(body)
    sampling = sampling_from_body(
        body, Endpoint.CHAT, defaults=state.defaults, vocab_size=state.tokenizer.vocab_size
    )
    template = state.template()
    conversation = chat_conversation(body, template)
    token_ids = conversation.encode(template)
    sampling, form = settle(sampling, conversation.answer_form(template, token_ids))
    return Call(
        requests=[engine_request(state, body, token_ids, sampling=sampling)],
        model=model,
        stream=stream,
        include_usage=include_usage,
        ignored=[*ignored, *conversation.ignored],
        shows_ids=body.boolean("return_token_ids"),
        prompt_logprobs=sampling.prompt_logprobs,
        form=form,
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
        self._plain_suffix = b',"logprobs":null,"finish_reason":null' + self._suffix
        self._heads = [self._head(index) for index in range(call.sampling.n)]
        assert call.form is not None, "a chat's answer has a form"
        self._readers = [call.form.reader() for _ in self._heads]

    def _head(self, index: int) -> bytes:
        return self._prefix + b',"choices":[{"index":%d,"delta":' % index

    def response(self, generation: Generation, choices: Sequence[Choice]) -> dict[str, object]:
        """The object of a request that is not streamed."""
        ids = {"prompt_token_ids": self._call.requests[0].prompt_token_ids}
        return {
            **self._base,
            **(ids if self._call.shows_ids else {}),
            **self._scores(choice.prompt_logprobs for choice in choices),
            "object": "chat.completion",
            "choices": [self._choice(index, choice) for index, choice in enumerate(choices)],
            **self._usage(generation),
        }

    def _scores(self, scores: Iterable[Sequence[TokenLogprobs]]) -> dict[str, object]:
        """The prompt's logprobs where they were asked for: one of ``scores`` has them."""
        top = self._call.prompt_logprobs
        if top is None:
            return {}
        found = next(filter(None, scores), ())
        return {"prompt_logprobs": prompt_logprobs(found, self._tokenizer, top=top)}

    def _usage(self, generation: Generation) -> dict[str, object]:
        """Counts and timings, once all has been read."""
        num_reasoning = sum(reader.num_reasoning_tokens for reader in self._readers)
        usage = usage_object(generation.usage, num_reasoning_tokens=num_reasoning)
        return {"usage": usage, "timings": generation.timings}

    def _choice(self, index: int, choice: Choice) -> dict[str, object]:
        logprobs = None
        if self._top is not None:
            logprobs = chat_logprobs(choice.logprobs, self._tokenizer, top=self._top)
        reader = self._readers[index]
        pieces = reader.read_text("".join(choice.text), choice.token_ids, is_last=True)
        message = {**answer_message(pieces), "refusal": None}
        return {
            **({"token_ids": choice.token_ids} if self._call.shows_ids else {}),
            "index": index,
            "message": message,
            "logprobs": logprobs,
            "finish_reason": finish_text(choice.finish_reason, calls=reader.has_called),
        }

    def events(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """Chunks: the role first, one finish per choice, usage last where asked for."""
        return generation.outputs(lambda _, output: self._chunks(output, generation))

    def _chunks(self, output: RequestOutput, generation: Generation) -> bytes:
        """An output's chunks as one write: the roles first, then contents, finishes, usage."""
        chunks = []
        if not self._started:
            self._started = True
            role = b'{"role":"assistant","content":""}'
            more = self._prompt_ids()
            if scores := self._scores(delta.prompt_logprobs for delta in output.branches):
                more += b"," + encode_json(scores)[1:-1]
            chunks += [self._chunk(index, role, more=more) for index in range(len(self._heads))]
        for delta in output.branches:
            contents = self._contents(delta)
            for at, content in enumerate(contents):
                more = b"" if at else self._more(delta)
                chunks.append(self._chunk(delta.branch, content, more=more))
            if delta.finish_reason is not None:
                calls = self._readers[delta.branch].has_called
                finish = encode_json(finish_text(delta.finish_reason, calls=calls))
                chunks.append(self._chunk(delta.branch, b"{}", finish=finish))
        if self._call.include_usage and generation.has_ended:
            last = encode_json(self._usage(generation))
            chunks.append(self._prefix + b',"choices":[],' + last[1:] + END_OF_EVENT)
        return b"".join(chunks)

    def _contents(self, delta: BranchDelta) -> list[bytes]:
        """A delta as the ``delta`` objects of its chunks; none where nothing is certain yet."""
        found = [
            encode_json(piece_delta(piece)) for piece in self._readers[delta.branch].read(delta)
        ]
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
        if not more and finish == b"null":
            return self._heads[index] + content + self._plain_suffix
        if b',"logprobs":' not in more:
            more += b',"logprobs":null'
        return b"".join(
            (self._heads[index], content, more, b',"finish_reason":', finish, self._suffix)
        )
