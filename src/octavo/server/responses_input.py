"""A Responses request: its items become a conversation, its options one request of the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from octavo.errors import InvalidRequestError, ResponseNotFoundError
from octavo.server.call import Call
from octavo.server.conversation import Conversation
from octavo.server.dialects import RESPONSES
from octavo.server.engine_request import engine_request
from octavo.server.fields import Endpoint, check_fields
from octavo.server.prompts import check_message_count
from octavo.server.sampling_fields import LOGPROBS_INCLUDE, sampling_from_body
from octavo.server.state import ServerState
from octavo.server.typed_body import TypedBody, shown_name

ROLES = ("user", "assistant", "system", "developer")
MAX_METADATA = 16
_TEXT_PARTS = ("input_text", "output_text", "text")
# Of a message that this server or another gave: what it was called, not what it says.
_LABELS = frozenset({"type", "role", "content", "id", "status", "phase"})
_PART_LABELS = frozenset({"type", "text", "annotations", "logprobs"})
# What there is none of here: nothing to include, nothing lost.
_EMPTY_INCLUDES = frozenset({"reasoning.encrypted_content"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseCall(Call):
    """A validated call. ``shown`` are the parts of the object that repeat the request.

    ``messages`` is the conversation that an answer is added to, without the instructions, which
    do not pass on.
    """

    shown: dict[str, object] = field(default_factory=dict)
    messages: Sequence[Mapping[str, str]] = ()
    store: bool = True
    background: bool = False


def parse_response(state: ServerState, values: dict[str, object], owner: bytes) -> ResponseCall:
    """Every check of a request, in order, ending with its token ids.

    Raises:
        OctavoError: naming the field.
    """
    skipped: list[str] = []
    ignored = check_fields(_without_unknown_tools(values, skipped), Endpoint.RESPONSES)
    body = TypedBody(RESPONSES.own_names(values))
    model = state.check_model(body.string("model"))
    stream, background = body.boolean("stream"), body.boolean("background")
    store = body.boolean_or("store", True)
    if background and (stream or not store):
        raise InvalidRequestError(
            "background needs store: true and stream: false; poll the stored response",
            param="background",
        )
    _check_includes(body)
    sampling = sampling_from_body(
        body, Endpoint.RESPONSES, defaults=state.defaults, vocab_size=state.tokenizer.vocab_size
    )
    conversation, messages = read_conversation(state, body, owner)
    token_ids = conversation.encode(state.template())
    request = engine_request(state, body, token_ids, sampling=sampling)
    return ResponseCall(
        requests=[request],
        model=model,
        stream=stream,
        include_usage=True,
        ignored=ignored + skipped,
        shown=_shown(body, request.sampling.temperature, request.sampling.top_p),
        messages=messages,
        store=store,
        background=background,
    )


def _without_unknown_tools(values: dict[str, object], skipped: list[str]) -> dict[str, object]:
    """The body with the tools that this protocol's hosts provide, and we do not, left out."""
    tools = values.get("tools")
    if not isinstance(tools, list):
        return values
    kept = []
    for tool in tools:
        kind = tool.get("type") if isinstance(tool, Mapping) else None
        if isinstance(kind, str) and kind != "function":
            skipped.append(f"tools.{shown_name(kind)}")
        else:
            kept.append(tool)
    return {**values, "tools": kept}


def _check_includes(body: TypedBody) -> None:
    for name in body.strings("include"):
        if name != LOGPROBS_INCLUDE and name not in _EMPTY_INCLUDES:
            raise InvalidRequestError(
                f'include "{shown_name(name)}" is not supported; {LOGPROBS_INCLUDE} is',
                param="include",
            )


# -- what is asked -------------------------------------------------------------------------------


def read_conversation(
    state: ServerState, body: TypedBody, owner: bytes
) -> tuple[Conversation, list[Mapping[str, str]]]:
    """The conversation to render, and the part of it that a next response continues.

    Raises:
        InvalidRequestError: naming the item and what is wrong with it.
    """
    messages = [*_earlier(state, body.string("previous_response_id"), owner), *_input(body)]
    check_message_count(messages, "input")
    instructions = body.string("instructions")
    system = [{"role": "system", "content": instructions}] if instructions else []
    return Conversation(messages=[dict(message) for message in (*system, *messages)]), messages


def _earlier(
    state: ServerState, response_id: str | None, owner: bytes
) -> Sequence[Mapping[str, str]]:
    if response_id is None:
        return ()
    try:
        entry = state.responses.get(response_id, owner)
    except ResponseNotFoundError as error:
        raise InvalidRequestError(error.message, param="previous_response_id") from None
    if entry.running:
        raise InvalidRequestError(
            "the previous response is still being made; wait for its end",
            param="previous_response_id",
        )
    return entry.messages


def _input(body: TypedBody) -> list[Mapping[str, str]]:
    items = body.raw("messages")
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    if not isinstance(items, list) or not items:
        raise InvalidRequestError("input must be a text or a non-empty list", param="input")
    return [_item(item, f"input[{i}]") for i, item in enumerate(items)]


def _item(item: object, where: str) -> Mapping[str, str]:
    if not isinstance(item, Mapping):
        raise InvalidRequestError(f"{where} must be an object", param=where)
    kind = item.get("type", "message")
    if kind != "message":
        shown = shown_name(kind) if isinstance(kind, str) else "?"
        raise InvalidRequestError(
            f'{where}: items of type "{shown}" are not supported; messages are', param=where
        )
    role = item.get("role")
    if role not in ROLES:
        raise InvalidRequestError(
            f"{where}.role must be one of {', '.join(ROLES)}", param=f"{where}.role"
        )
    _refuse_others(item, _LABELS, where)
    return {"role": role, "content": _content(item.get("content"), f"{where}.content")}


def _content(content: object, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise InvalidRequestError(
            f"{where} must be a text or a non-empty list of text parts", param=where
        )
    return "\n".join(_part(part, f"{where}[{i}]") for i, part in enumerate(content))


def _part(part: object, where: str) -> str:
    if not isinstance(part, Mapping) or part.get("type") not in _TEXT_PARTS:
        raise InvalidRequestError(f"{where} must be a text part; only text is read", param=where)
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidRequestError(f"{where}.text must be a string", param=f"{where}.text")
    _refuse_others(part, _PART_LABELS, where)
    return text


def _refuse_others(value: Mapping[str, object], known: frozenset[str], where: str) -> None:
    for key, held in value.items():
        if key not in known and held not in (None, []):
            shown = f"{where}.{shown_name(key)}"
            raise InvalidRequestError(f"{shown} is not supported", param=shown)


# -- what is repeated ----------------------------------------------------------------------------


def _shown(body: TypedBody, temperature: float, top_p: float) -> dict[str, object]:
    return {
        "instructions": body.string("instructions"),
        "previous_response_id": body.string("previous_response_id"),
        "max_output_tokens": body.integer("max_tokens"),
        "metadata": _metadata(body),
        "text": {"format": _format(body.mapping("text"))},
        "temperature": temperature,
        "top_p": top_p,
        "presence_penalty": body.number("presence_penalty") or 0.0,
        "frequency_penalty": body.number("frequency_penalty") or 0.0,
        "top_logprobs": body.integer("top_logprobs") or 0,
        "safety_identifier": body.string("safety_identifier"),
        "prompt_cache_key": body.string("prompt_cache_key"),
    }


def _metadata(body: TypedBody) -> dict[str, object]:
    labels = body.mapping("metadata")
    if len(labels) > MAX_METADATA or not all(isinstance(one, str) for one in labels.values()):
        raise InvalidRequestError(
            f"metadata must be an object of at most {MAX_METADATA} strings", param="metadata"
        )
    return labels


def _format(text: Mapping[str, object]) -> dict[str, object]:
    given = text.get("format")
    if not isinstance(given, dict):
        return {"type": "text"}
    if given.get("type") != "json_schema":
        return given
    return {"name": "", "description": None, "strict": False, **given}
