"""``POST /v1/completions``."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

from octavo.core.request import Request, TokenLogprobs
from octavo.core.sampling_params import MAX_N
from octavo.errors import InvalidRequestError
from octavo.frontend import BranchDelta, RequestOutput
from octavo.server.call import Call, answer, read_body, read_call, read_stream_options
from octavo.server.endpoints import Endpoint
from octavo.server.engine_request import engine_request
from octavo.server.generation import Choice, Generation, flat
from octavo.server.prompts import read_prompts
from octavo.server.rendering import (
    CompletionLogprobs,
    finish_text,
    prompt_logprobs,
    usage_object,
)
from octavo.server.replies import Exchange, encode_json
from octavo.server.sampling_fields import COMPLETIONS_MAX_TOKENS, sampling_from_body
from octavo.server.sse import END_OF_EVENT, OpenAIFraming, event
from octavo.server.state import ServerState
from octavo.text.members import wrong


async def completions(state: ServerState, http: Exchange) -> None:
    """Continue one or more prompts, streamed or not."""
    call = await read_call(state, http, parse_completion)
    await answer(state, http, call, writer=_Writer(state, call))


def parse_completion(state: ServerState, values: dict[str, object]) -> Call:
    """Every check of a completions request, in order, ending with token ids.

    Raises:
        OctavoError: naming the field.
    """
    body, model, ignored = read_body(state, values, Endpoint.COMPLETIONS)
    echo = body.boolean("echo")
    vocab_size = state.tokenizer.vocab_size
    sampling = sampling_from_body(
        body, Endpoint.COMPLETIONS, defaults=state.defaults, vocab_size=vocab_size
    )
    stream, include_usage = read_stream_options(body)
    asked = sampling.prompt_logprobs
    echoes_logprobs = echo and sampling.logprobs is not None
    if echoes_logprobs and sampling.use_beam_search:
        raise wrong("echo", "with logprobs cannot be combined with use_beam_search; leave one out")
    if echoes_logprobs:
        both = max(asked or 0, sampling.logprobs or 0)
        sampling = replace(sampling, prompt_logprobs=both)
    prompts = read_prompts(body, vocab_size=vocab_size)
    if (choices := len(prompts) * sampling.width) > MAX_N:
        name = sampling.width_field
        raise InvalidRequestError(
            f"{len(prompts)} prompts with {name} = {sampling.width} make {choices} choices; the "
            f"limit is {MAX_N}",
            param=name,
        )
    ids = [_ids(state, prompt) for prompt in prompts]
    default = max(COMPLETIONS_MAX_TOKENS, sampling.min_tokens)
    requests = [
        engine_request(state, body, one, sampling=sampling, default_tokens=default) for one in ids
    ]
    return Call(
        requests=requests,
        model=model,
        stream=stream,
        include_usage=include_usage,
        ignored=ignored,
        shows_ids=body.boolean("return_token_ids"),
        prompt_logprobs=asked,
        echoes_logprobs=echoes_logprobs,
        prompt_texts=[
            _text(state, prompt, request) if echo else ""
            for prompt, request in zip(prompts, requests, strict=True)
        ],
    )


def _ids(state: ServerState, prompt: str | list[int]) -> list[int]:
    return state.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt


def _text(state: ServerState, prompt: str | list[int], request: Request) -> str:
    """What is echoed: the prompt as it was sent, unless it was shortened."""
    kept = request.prompt_token_ids
    if isinstance(prompt, str) and len(kept) == len(_ids(state, prompt)):
        return prompt
    return state.tokenizer.decode(kept)


def _usage(generation: Generation) -> dict[str, object]:
    return {"usage": usage_object(generation.usage), "timings": generation.timings}


class _Writer(OpenAIFraming):
    """Renders one completions request's response."""

    def __init__(self, state: ServerState, call: Call) -> None:
        self._call = call
        self._base: dict[str, object] = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": call.model,
        }
        # A chunk is these around its one choice: most of its bytes are the same every time.
        self._prefix = event(self._base).removesuffix(b"}" + END_OF_EVENT) + b',"choices":['
        usage = b',"usage":null' if call.include_usage else b""
        self._suffix = b"]" + usage + b"}" + END_OF_EVENT
        self._n = call.sampling.n
        self._started: set[int] = set()
        self._is_plain = call.sampling.logprobs is None and not call.shows_ids
        self._tokenizer = state.tokenizer
        # Per prompt, once they have come.
        self._scores: dict[int, tuple[TokenLogprobs, ...]] = {}
        top = call.sampling.logprobs
        count = len(call.requests) * self._n
        self._logprobs = (
            None
            if top is None
            else [CompletionLogprobs(state.tokenizer, top=top) for _ in range(count)]
        )

    def response(self, generation: Generation, choices: Sequence[Choice]) -> dict[str, object]:
        """The object of a request that is not streamed."""
        for index, choice in enumerate(choices):
            self._take_scores(index // self._n, choice.prompt_logprobs)
        rendered = [
            self._choice(index, self._prompt_text(index) + "".join(choice.text), choice)
            for index, choice in enumerate(choices)
        ]
        return {**self._base, "choices": rendered, **_usage(generation)}

    def _take_scores(self, prompt_index: int, scores: tuple[TokenLogprobs, ...]) -> None:
        if scores:
            self._scores[prompt_index] = scores

    def _prompt_text(self, index: int) -> str:
        return self._call.prompt_texts[index // self._n]

    def events(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """Chunks: the echoed prompt first, one finish per choice, usage last where asked for."""
        return generation.outputs(lambda index, output: self._chunks(index, output, generation))

    def _chunks(self, prompt_index: int, output: RequestOutput, generation: Generation) -> bytes:
        """An output's chunks as one write."""
        chunks = []
        for delta in output.branches:
            self._take_scores(prompt_index, delta.prompt_logprobs)
        for index, delta in flat(prompt_index, output, self._n):
            if self._is_plain and index in self._started:
                chunks.append(self._plain_chunk(index, delta))
                continue
            part = Choice()
            part.add(delta)
            text = delta.text
            if index not in self._started:
                text = self._prompt_text(index) + text
            ids = self._call.shows_ids and delta.token_ids
            if text or ids or delta.logprobs or delta.finish_reason is not None:
                choice = self._choice(index, text, part)
                chunks.append(self._prefix + encode_json(choice) + self._suffix)
        if self._call.include_usage and generation.has_ended:
            chunks.append(event({**self._base, "choices": [], **_usage(generation)}))
        return b"".join(chunks)

    def _plain_chunk(self, index: int, delta: BranchDelta) -> bytes:
        """What most chunks are: a text, without an object in between."""
        if not delta.text and delta.finish_reason is None:
            return b""
        finish = encode_json(finish_text(delta.finish_reason))
        parts = (
            self._prefix, b'{"index":%d,"text":' % index, encode_json(delta.text),
            b',"logprobs":null,"finish_reason":', finish, b"}", self._suffix,
        )  # fmt: skip
        return b"".join(parts)

    def _choice(self, index: int, text: str, choice: Choice) -> dict[str, object]:
        """A choice, or what is new in it."""
        more: dict[str, object] = {}
        if self._call.shows_ids:
            more["token_ids"] = choice.token_ids
        entries: list[TokenLogprobs] = choice.logprobs
        first = None
        if index not in self._started:
            self._started.add(index)
            prompt = self._call.requests[index // self._n].prompt_token_ids
            scores = self._scores.get(index // self._n, ())
            if self._call.shows_ids:
                more["prompt_token_ids"] = prompt
            if self._call.prompt_logprobs is not None:
                more["prompt_logprobs"] = prompt_logprobs(
                    scores, self._tokenizer, top=self._call.prompt_logprobs
                )
            if self._call.echoes_logprobs:
                entries, first = [*scores, *entries], prompt[0]
        logprobs = self._logprobs
        return {
            "index": index,
            "text": text,
            "logprobs": logprobs[index].render(entries, first=first) if logprobs else None,
            "finish_reason": finish_text(choice.finish_reason),
            **more,
        }
