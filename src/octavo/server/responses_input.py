"""A Responses request: its items become a conversation, its options one request of the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from octavo.errors import InvalidRequestError, ResponseNotFoundError
from octavo.frontend.conversation import Conversation, settle
from octavo.frontend.tools import RESPONSES_TOOLS
from octavo.server.call import Call, read_body
from octavo.server.conversation import read_tools
from octavo.server.dialects import RESPONSES
from octavo.server.endpoints import Endpoint
from octavo.server.engine_request import engine_request
from octavo.server.prompts import MAX_MESSAGES
from octavo.server.reasoning_effort import effort_variables, read_effort
from octavo.server.request_shapes import LOGPROBS_INCLUDE
from octavo.server.sampling_fields import sampling_from_body
from octavo.server.state import ServerState
from octavo.server.typed_body import TypedBody, check_length
from octavo.text import Message
from octavo.text.members import shown_name, wrong
from octavo.text.messages import CallIds, check_arguments, text_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseCall(Call):
    """A validated call. ``shown`` are the parts of the object that repeat the request.

    ``messages`` is the conversation that an answer is added to, without the instructions, which
    do not pass on.
    """

    shown: dict[str, object] = field(default_factory=dict)
    messages: Sequence[Message] = ()
    store: bool = True
    background: bool = False


def parse_response(state: ServerState, values: dict[str, object], owner: str) -> ResponseCall:
    """Every check of a request, in order, ending with its token ids.

    Raises:
        OctavoError: naming the field.
    """
    body, model, ignored = read_fields(state, values, Endpoint.RESPONSES)
    stream, background = body.boolean("stream"), body.boolean("background")
    store = body.boolean_or("store", True)
    if background and not store:
        raise wrong("background", "needs store: true; poll the stored response")
    sampling = sampling_from_body(
        body, Endpoint.RESPONSES, defaults=state.defaults, vocab_size=state.tokenizer.vocab_size
    )
    conversation, messages = read_conversation(state, body, owner)
    if conversation.tools is not None and sampling.logprobs is not None:
        raise InvalidRequestError(
            f"{LOGPROBS_INCLUDE} cannot be combined with tools; leave one of them out",
            param="include",
        )
    template = state.template()
    token_ids = conversation.encode(template)
    sampling, form = settle(sampling, conversation.answer_form(template, token_ids))
    request = engine_request(state, body, token_ids, sampling=sampling)
    return ResponseCall(
        requests=[request],
        model=model,
        stream=stream,
        ignored=[*ignored, *conversation.ignored],
        form=form,
        shown=_shown(body, request.sampling.temperature, request.sampling.top_p),
        messages=messages,
        store=store,
        background=background,
    )


def read_fields(
    state: ServerState, values: dict[str, object], endpoint: Endpoint
) -> tuple[TypedBody, str, list[str]]:
    """See ``read_body``; tools that are skipped count as ignored."""
    skipped: list[str] = []
    values = _without_unknown_tools(values, skipped)
    body, model, ignored = read_body(state, values, endpoint, dialect=RESPONSES)
    return body, model, ignored + skipped


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


# -- what is asked -------------------------------------------------------------------------------


def read_conversation(
    state: ServerState, body: TypedBody, owner: str
) -> tuple[Conversation, list[Message]]:
    """The conversation to render, and the part of it that a next response continues.

    Raises:
        InvalidRequestError: naming the item and what is wrong with it.
    """
    messages = [*_earlier(state, body.string("previous_response_id"), owner)]
    _add_input(messages, body)
    check_length(messages, "input", MAX_MESSAGES)
    instructions = body.string("instructions")
    system = [{"role": "system", "content": instructions}] if instructions else []
    template = state.template()
    variables, ignored = effort_variables(read_effort(body), template)
    conversation = Conversation(
        messages=[*system, *messages],
        variables=variables,
        tools=read_tools(body, template.tool_format, RESPONSES_TOOLS),
        ignored=ignored,
    )
    return conversation, messages


def _earlier(state: ServerState, response_id: str | None, owner: str) -> Sequence[Message]:
    if response_id is None:
        return ()
    try:
        entry = state.responses.get(response_id, owner)
    except ResponseNotFoundError as error:
        refused = InvalidRequestError(error.message, param="previous_response_id")
        refused.code = error.code
        raise refused from None
    if entry.running:
        raise InvalidRequestError(
            "the previous response is still being made; wait for its end",
            param="previous_response_id",
        )
    return entry.messages


def _add_input(messages: list[Message], body: TypedBody) -> None:
    """Add what is asked: what an assistant thinks, says and calls in a row is one message."""
    items = body.raw("messages")
    if isinstance(items, str):
        messages.append({"role": "user", "content": items})
        return
    ids, found = CallIds(), list[Message]()
    for message in messages:
        for call in message.get("tool_calls", ()):
            ids.called(call["id"], "previous_response_id")
        if message["role"] == "tool":
            ids.answered(message["tool_call_id"], "previous_response_id")
    for i, item in enumerate(items):
        _add_item(found, item, f"input[{i}]", ids=ids)
    messages += found


def _add_item(found: list[Message], item: Mapping[str, Any], where: str, *, ids: CallIds) -> None:
    kind = item.get("type") or "message"
    if kind == "function_call":
        ids.called(item["call_id"], f"{where}.call_id")
        check_arguments(item["arguments"], f"{where}.arguments")
    if kind == "function_call_output":
        ids.answered(item["call_id"], f"{where}.call_id")
    message = _ITEMS[kind](item)
    last = found[-1] if found and found[-1]["role"] == "assistant" else None
    if last is not None and kind == "function_call":
        last.setdefault("tool_calls", []).extend(message["tool_calls"])
    elif last is not None and message["role"] == "assistant" and _only_thinks(last):
        last |= message
    else:
        found.append(message)


def _only_thinks(message: Message) -> bool:
    return not message["content"] and "tool_calls" not in message


def _message(item: Mapping[str, Any]) -> Message:
    return {"role": item["role"], "content": text_of(item["content"])}


def _reasoning(item: Mapping[str, Any]) -> Message:
    """What was thought, unless it is told in another way than its text."""
    thought = text_of(item.get("content"))
    return {"role": "assistant", "content": "", "reasoning_content": thought}


def _call(item: Mapping[str, Any]) -> Message:
    function = {"name": item["name"], "arguments": item["arguments"]}
    call = {"id": item["call_id"], "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def _result(item: Mapping[str, Any]) -> Message:
    return {"role": "tool", "tool_call_id": item["call_id"], "content": text_of(item["output"])}


_ITEMS: Final[dict[str, Callable[[Mapping[str, Any]], Message]]] = {
    "message": _message,
    "reasoning": _reasoning,
    "function_call": _call,
    "function_call_output": _result,
}


# -- what is repeated ----------------------------------------------------------------------------


def _shown(body: TypedBody, temperature: float, top_p: float) -> dict[str, object]:
    return {
        "instructions": body.string("instructions"),
        "previous_response_id": body.string("previous_response_id"),
        "max_output_tokens": body.integer("max_tokens"),
        "metadata": body.mapping("metadata"),
        "text": {"format": _format(body.mapping("text"))},
        "temperature": temperature,
        "top_p": top_p,
        "presence_penalty": body.number("presence_penalty") or 0.0,
        "frequency_penalty": body.number("frequency_penalty") or 0.0,
        "top_logprobs": body.integer("top_logprobs") or 0,
        "tools": [_shown_tool(tool) for tool in body.raw("tools") or []],
        "tool_choice": body.raw("tool_choice") or "auto",
        "parallel_tool_calls": body.boolean_or("parallel_tool_calls", True),
        "reasoning": _shown_reasoning(body.mapping("reasoning")),
        "safety_identifier": body.string("safety_identifier"),
        "prompt_cache_key": body.string("prompt_cache_key"),
    }


def _shown_tool(tool: Mapping[str, Any]) -> dict[str, object]:
    return {
        "type": "function",
        "name": tool["name"],
        "description": tool.get("description"),
        "parameters": tool.get("parameters"),
        "strict": tool.get("strict"),
    }


def _shown_reasoning(reasoning: Mapping[str, object]) -> dict[str, object] | None:
    if not reasoning:
        return None
    return {"effort": reasoning.get("effort"), "summary": None}


def _format(text: Mapping[str, object]) -> dict[str, object]:
    given = text.get("format")
    if not isinstance(given, dict):
        return {"type": "text"}
    if given.get("type") != "json_schema":
        return given
    return {"name": "", "description": None, "strict": False, **given}


# -- what was asked, as items ---------------------------------------------------------------------


def input_items(messages: Sequence[Message], response_id: str) -> list[dict[str, Any]]:
    """The items that messages came from; their ids are always the same ones."""
    items = [item for message in messages for item in _items_of(message)]
    stem = response_id.removeprefix("resp_")
    for number, item in enumerate(items):
        item["id"] = f"{_ID_PREFIXES[item['type']]}_{stem}_{number}"
    return items


_ID_PREFIXES = {
    "message": "msg", "reasoning": "rs", "function_call": "fc", "function_call_output": "fco"
}  # fmt: skip


def _items_of(message: Message) -> list[dict[str, Any]]:
    role, text = message["role"], message["content"]
    done = {"status": "completed"}
    if role == "tool":
        call_id = message["tool_call_id"]
        return [{"type": "function_call_output", "call_id": call_id, "output": text, **done}]
    found: list[dict[str, Any]] = []
    if thought := message.get("reasoning_content"):
        content = [{"type": "reasoning_text", "text": thought}]
        found.append({"type": "reasoning", "summary": [], "content": content, **done})
    calls = message.get("tool_calls", ())
    if text or not (found or calls):
        part: dict[str, Any] = {"type": "input_text", "text": text}
        if role == "assistant":
            part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        found.append({"type": "message", "role": role, "content": [part], **done})
    for call in calls:
        function = call["function"]
        found.append({"type": "function_call", "call_id": call["id"], **function, **done})
    return found
