"""What the protocols share: reading a call, running its requests, answering in one way."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams, refuse_stream
from octavo.frontend.answer import AnswerForm
from octavo.server.dialects import OPENAI, Dialect
from octavo.server.endpoints import Endpoint
from octavo.server.field_check import check_fields
from octavo.server.generation import Choice, Generation, collect
from octavo.server.json_body import parse_json_object
from octavo.server.replies import Exchange, ignored_header, send_json
from octavo.server.service import read_service
from octavo.server.sse import Framing, send_events
from octavo.server.state import ServerState
from octavo.server.typed_body import TypedBody
from octavo.text.members import wrong

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A validated call: one engine request per prompt. ``prompt_texts`` are to be echoed.

    ``asked_tokens`` is the ``max_tokens`` that was asked for, where the context may give less.
    ``timeout_s`` is how long it may take, None for as long as the server lets any. ``form`` says
    how to read the answer to a conversation. ``prompt_logprobs`` alternatives are told of the
    prompt's tokens; with ``echoes_logprobs`` theirs stand before the answer's.
    """

    requests: Sequence[Request]
    model: str
    stream: bool = False
    include_usage: bool = True
    ignored: Sequence[str]
    prompt_texts: Sequence[str] = ()
    asked_tokens: int | None = None
    timeout_s: float | None = None
    shows_ids: bool = False
    form: AnswerForm | None = None
    prompt_logprobs: int | None = None
    echoes_logprobs: bool = False

    def __post_init__(self) -> None:
        if self.stream:
            refuse_stream(self.sampling)

    @property
    def sampling(self) -> SamplingParams:
        """The parameters, which all prompts share but for ``max_tokens``."""
        return self.requests[0].sampling


_Call = TypeVar("_Call", bound=Call)


class Writer(Framing, Protocol):
    """Renders the answer to one call in the endpoint's shape."""

    def response(self, generation: Generation, choices: Sequence[Choice]) -> dict[str, object]:
        """The object of a call that is not streamed."""

    def events(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """The events of one that is."""


async def read_call(
    state: ServerState, http: Exchange, parse: Callable[[ServerState, dict[str, object]], _Call]
) -> _Call:
    """Read and validate; body and parsed values live no longer than this.

    Raises:
        OctavoError: what is wrong with the request, or that none is taken now.
    """
    state.check_accepting()

    def serve(values: dict[str, object]) -> _Call:
        call = parse(state, values)
        priority, timeout_s = read_service(values, limit_s=state.request_timeout_s)
        tenant = http.tenant
        requests = [replace(one, tenant=tenant, priority=priority) for one in call.requests]
        return replace(call, requests=requests, timeout_s=timeout_s)

    return await read_values(state, http, serve)


async def read_values(
    state: ServerState, http: Exchange, work: Callable[[dict[str, object]], _Result]
) -> _Result:
    """What ``work`` makes of the JSON object that was sent, off the event loop where it is large.

    Raises:
        OctavoError: what is wrong with the body, or what ``work`` raises.
    """
    async with state.bodies.reading(http.headers, http.receive) as body:
        return await state.text_thread.run(len(body), lambda: work(parse_json_object(body)))


def read_body(
    state: ServerState, values: dict[str, object], endpoint: Endpoint, *, dialect: Dialect = OPENAI
) -> tuple[TypedBody, str, list[str]]:
    """A body by our names, the served model that it means, and the names of what is ignored in it.

    Raises:
        OctavoError: what ``check_fields`` refuses, or a model that is not served.
    """
    ignored = check_fields(values, endpoint)
    body = TypedBody(dialect.own_names(values))
    return body, state.check_model(body.string("model")), ignored


async def answer(state: ServerState, http: Exchange, call: Call, *, writer: Writer) -> None:
    """Run a call's requests and send what they give, streamed or not."""
    headers = ignored_header(call.ignored)
    with Generation(state, call.requests, http.receive, timeout_s=call.timeout_s) as generation:
        if call.stream:
            await send_events(http, writer.events(generation), framing=writer, headers=headers)
            return
        choices = await collect(generation, num_prompts=len(call.requests), n=call.sampling.n)
        if not generation.disconnected:
            await send_json(http.send, writer.response(generation, choices), headers=headers)


def read_stream_options(body: TypedBody) -> tuple[bool, bool]:
    """``stream`` and ``stream_options.include_usage``.

    Raises:
        InvalidRequestError: options without streaming.
    """
    stream = body.boolean("stream")
    options = body.mapping("stream_options")
    if options and not stream:
        raise wrong("stream_options", "needs stream: true")
    return stream, options.get("include_usage") is True
