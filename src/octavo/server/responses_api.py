"""``/v1/responses``: OpenAI's newer protocol.

    created → in_progress → (items: see ``responses_output``)* → completed | incomplete | failed

A response is kept, unless ``store`` is false, in memory and bounded: it can be read, continued by
``previous_response_id``, cancelled while it runs in the background, and deleted. One that streams
in the background keeps its events, which can be read again from any of them.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from urllib.parse import parse_qsl

from octavo.errors import EngineError, InvalidRequestError, OctavoError
from octavo.server.call import answer, read_call, read_values
from octavo.server.dialects import RESPONSES
from octavo.server.endpoints import Endpoint
from octavo.server.generation import Generation, collect
from octavo.server.replies import Exchange, ignored_header, send_json
from octavo.server.response_store import StoredResponse
from octavo.server.responses_input import (
    ResponseCall,
    input_items,
    parse_response,
    read_conversation,
    read_fields,
)
from octavo.server.responses_writer import ResponseWriter
from octavo.server.sse import PING, named_event, send_events
from octavo.server.state import ServerState
from octavo.text.members import shown_name, wrong

MAX_EVENTS = 1 << 24
MAX_PAGE = 100

logger = logging.getLogger(__name__)


async def create_response(state: ServerState, http: Exchange) -> None:
    """Answer, streamed or not, now or in the background."""
    owner = http.tenant
    call = await read_call(state, http, lambda here, values: parse_response(here, values, owner))
    writer = ResponseWriter(state, call, owner)
    headers = ignored_header(call.ignored)
    if not call.background:
        await answer(state, http, call, writer=writer)
        return
    queued = _begin(state, call, writer)
    if call.stream:
        await send_events(http, follow(writer.entry, http), framing=writer, headers=headers)
    else:
        await send_json(http.send, queued, headers=headers)


async def get_response(state: ServerState, http: Exchange) -> None:
    """A stored response as it is now, or its events from the start or behind one of them."""
    query = _Query(http, ("stream", "starting_after", "include", "include_obfuscation"))
    entry = _stored(state, http)
    after = query.integer("starting_after", -1, (-1, MAX_EVENTS))
    if query.word("stream", ("false", "true")) != "true":
        if query.text("starting_after", ""):
            raise wrong("starting_after", "needs stream=true; send that too, or leave it out")
        await send_json(http.send, entry.body)
        return
    if entry.log is None:
        raise InvalidRequestError(
            "only a response that was asked for with background: true and stream: true has events "
            "to read again; leave stream out",
            param="stream",
        )
    await send_events(http, follow(entry, http, after=after), framing=RawFraming(), headers=())


async def get_input_items(state: ServerState, http: Exchange) -> None:
    """What a stored response was made from, an item per message or call, the last first."""
    query = _Query(http, ("limit", "order", "after", "include"))
    entry = _stored(state, http)
    limit = query.integer("limit", 20, (1, MAX_PAGE))
    items = input_items(entry.messages[: entry.num_input], http.scope["path_params"]["response_id"])
    if query.word("order", ("desc", "asc")) != "asc":
        items.reverse()
    ids = [item["id"] for item in items]
    after = query.text("after", "")
    if after and after not in ids:
        raise wrong("after", "names no item of this response")
    start = ids.index(after) + 1 if after else 0
    page = items[start : start + limit]
    await send_json(
        http.send,
        {
            "object": "list",
            "data": page,
            "first_id": page[0]["id"] if page else "",
            "last_id": page[-1]["id"] if page else "",
            "has_more": len(items) > start + limit,
        },
    )


async def delete_response(state: ServerState, http: Exchange) -> None:
    """Forget a stored response; one that is being made is cancelled."""
    response_id = http.scope["path_params"]["response_id"]
    state.responses.delete(response_id, http.tenant)
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

    def work(values: dict[str, object]) -> tuple[int, list[str]]:
        body, _, ignored = read_fields(state, values, Endpoint.INPUT_TOKENS)
        conversation, _ = read_conversation(state, body, http.tenant)
        return len(conversation.encode(state.template())), [*ignored, *conversation.ignored]

    count, ignored = await read_values(state, http, work)
    counted = {"object": "response.input_tokens", "input_tokens": count}
    await send_json(http.send, counted, headers=ignored_header(ignored))


def _stored(state: ServerState, http: Exchange) -> StoredResponse:
    return state.responses.get(http.scope["path_params"]["response_id"], http.tenant)


# -- in the background ---------------------------------------------------------------------------


def _begin(state: ServerState, call: ResponseCall, writer: ResponseWriter) -> dict[str, object]:
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
    writer.create()
    make = _stream if call.stream else _collect
    state.responses.run(asyncio.create_task(_finish(generation, writer, make)))
    return queued


async def _collect(generation: Generation, writer: ResponseWriter) -> None:
    choices = await collect(generation, num_prompts=1, n=1)
    if generation.disconnected:
        writer.cancelled(generation, choices)
    else:
        writer.response(generation, choices)


async def _stream(generation: Generation, writer: ResponseWriter) -> None:
    """Nobody may read the events now; they are in the entry's log."""
    async for _ in writer.events(generation):
        pass
    if generation.disconnected:
        writer.stopped(generation)


async def _finish(
    generation: Generation,
    writer: ResponseWriter,
    make: Callable[[Generation, ResponseWriter], Awaitable[None]],
) -> None:
    try:
        writer.keep(writer.body("in_progress"))
        await make(generation, writer)
    except OctavoError as error:
        writer.failure(error)
    except Exception:
        logger.exception("a background response failed")
        writer.failure(EngineError("internal error; see the server's log"))
    finally:
        generation.close()


class RawFraming:
    """What is read again from a log ends when the log does."""

    ping = PING
    done = b""

    def failure(self, error: OctavoError) -> bytes:
        """See ``Framing``."""
        return named_event("error", {"type": "error", **RESPONSES.error(error)})


async def follow(
    entry: StoredResponse, http: Exchange, *, after: int = -1
) -> AsyncGenerator[bytes, None]:
    """An entry's events behind number ``after``, until it has ended or the client is gone."""
    gone = asyncio.ensure_future(_gone(http))
    at = after + 1
    try:
        if entry.log is not None and at >= len(entry.log):
            # There may be no event any more, and a stream must begin with something.
            yield PING
        while entry.log is not None and not gone.done():
            if at < len(entry.log):
                data, at = b"".join(entry.log[at:]), len(entry.log)
                yield data
            elif entry.ended.is_set():
                return
            else:
                entry.grown.clear()
                grown = asyncio.ensure_future(entry.grown.wait())
                await asyncio.wait((gone, grown), return_when=asyncio.FIRST_COMPLETED)
                grown.cancel()
    finally:
        gone.cancel()


async def _gone(http: Exchange) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass


class _Query:
    """A request's query: known names, each at most once but for what asks for nothing here."""

    def __init__(self, http: Exchange, known: Sequence[str]) -> None:
        text = http.scope["query_string"].decode("latin-1")
        self._values: dict[str, str] = {}
        for given, value in parse_qsl(text, keep_blank_values=True):
            name = "include" if given == "include[]" else given
            shown = shown_name(given)
            if name not in known:
                raise InvalidRequestError(f'unknown parameter "{shown}"', param=shown)
            if name in self._values and not name.startswith("include"):
                raise wrong(shown, "is given twice; send it once")
            self._values[name] = value

    def text(self, name: str, default: str) -> str:
        """A value, or the default."""
        return self._values.get(name, default)

    def word(self, name: str, words: Sequence[str]) -> str:
        """One of some words, by default the first."""
        if (text := self.text(name, words[0])) not in words:
            raise wrong(name, f"must be {' or '.join(words)}")
        return text

    def integer(self, name: str, default: int, bounds: tuple[int, int]) -> int:
        """An integer within bounds, or the default."""
        text = self._values.get(name)
        if text is None:
            return default
        low, high = bounds
        if not re.fullmatch(r"-?[0-9]{1,9}", text) or not low <= int(text) <= high:
            raise wrong(name, f"must be an integer between {low} and {high}")
        return int(text)
