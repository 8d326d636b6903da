"""``/tokenize``, ``/detokenize`` and ``/apply-template``: the exact prompt, as text and as ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from octavo.server.call import read_body, read_values
from octavo.server.conversation import chat_conversation
from octavo.server.endpoints import Endpoint
from octavo.server.fields import FIELDS
from octavo.server.prompts import check_ids
from octavo.server.replies import Exchange, ignored_header, send_json
from octavo.server.state import ServerState
from octavo.server.typed_body import TypedBody
from octavo.text.members import wrong

_Result = TypeVar("_Result")
_Headers = Sequence[tuple[bytes, bytes]]
# Which fields mean something for one of the two ways to say a prompt.
_OF_PROMPT = ("add_special_tokens",)
_OF_MESSAGES = tuple(
    field.name
    for field in FIELDS
    if Endpoint.APPLY_TEMPLATE in field.endpoints and field.name not in {"model", "messages"}
)


async def tokenize(state: ServerState, http: Exchange) -> None:
    """The token ids of a text, or of the prompt that a chat makes."""

    def work(body: TypedBody) -> tuple[list[int], Sequence[str]]:
        prompt = body.string("prompt")
        if (prompt is None) == (body.raw("messages") is None):
            raise wrong("prompt", "or messages must be sent, and not both")
        for name in _OF_PROMPT if prompt is None else _OF_MESSAGES:
            if body.raw(name) is not None:
                needed = "prompt" if prompt is None else "messages"
                raise wrong(name, f"needs {needed}")
        if prompt is None:
            template = state.template()
            conversation = chat_conversation(body, template)
            return conversation.encode(template), conversation.ignored
        special = body.boolean_or("add_special_tokens", True)
        return state.tokenizer.encode(prompt, add_special_tokens=special), ()

    tokens, headers = await _read(state, http, endpoint=Endpoint.TOKENIZE, work=work)
    welcome = state.client.welcome
    limit = welcome.max_model_len if welcome is not None else None
    body = {"tokens": tokens, "count": len(tokens), "max_model_len": limit}
    await send_json(http.send, body, headers=headers)


async def detokenize(state: ServerState, http: Exchange) -> None:
    """The text of token ids, control tokens included."""

    def work(body: TypedBody) -> tuple[str, Sequence[str]]:
        tokens = body.integers("tokens")
        check_ids(tokens, state.tokenizer.vocab_size, "tokens")
        return state.tokenizer.decode(tokens, skip_special_tokens=False), ()

    text, headers = await _read(state, http, endpoint=Endpoint.DETOKENIZE, work=work)
    await send_json(http.send, {"prompt": text}, headers=headers)


async def apply_template(state: ServerState, http: Exchange) -> None:
    """The prompt that a chat makes, as text."""

    def work(body: TypedBody) -> tuple[str, Sequence[str]]:
        template = state.template()
        conversation = chat_conversation(body, template)
        return conversation.render(template), conversation.ignored

    text, headers = await _read(state, http, endpoint=Endpoint.APPLY_TEMPLATE, work=work)
    await send_json(http.send, {"prompt": text}, headers=headers)


async def _read(
    state: ServerState,
    http: Exchange,
    *,
    endpoint: Endpoint,
    work: Callable[[TypedBody], tuple[_Result, Sequence[str]]],
) -> tuple[_Result, _Headers]:
    """What ``work`` makes of the body, and the header that names what was ignored in it."""

    def checked(values: dict[str, object]) -> tuple[_Result, _Headers]:
        body, _, ignored = read_body(state, values, endpoint)
        result, more = work(body)
        return result, ignored_header([*ignored, *more])

    return await read_values(state, http, checked)
