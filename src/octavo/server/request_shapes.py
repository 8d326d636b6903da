"""The shapes of request fields that are more than one word: what their readers take.

Shared ones are components, by the names under which the OpenAPI document has them.
"""

from __future__ import annotations

from octavo.core import sampling_params as limits
from octavo.core.grammar import MAX_GRAMMAR_CHARS, MAX_GRAMMAR_CHOICES
from octavo.core.probe import MAX_LABELS
from octavo.frontend.tools import MAX_TOOLS
from octavo.server.prompts import MAX_MESSAGES, MAX_PROMPT_IDS, MAX_PROMPTS
from octavo.server.reasoning_effort import EFFORTS
from octavo.server.shapes import (
    ANY,
    BOOLEAN,
    NULL,
    OBJECT,
    Shape,
    either,
    integer,
    listing,
    number,
    optional,
    record,
    ref,
    table,
    text,
    word,
)
from octavo.text.messages import MAX_CALLS, MAX_NAME_CHARS

MAX_METADATA = 16
MAX_SALT_CHARS = 256
MAX_INCLUDE = 32
LOGPROBS_INCLUDE = "message.output_text.logprobs"
# There is none here: nothing to include, nothing lost.
EMPTY_INCLUDE = "reasoning.encrypted_content"

# A member that says nothing is no unknown one.
_NOTHING = word(None, [])
_TOKEN = integer(0)
_IDS = listing(_TOKEN, 1, MAX_PROMPT_IDS)
_ONE_TEXT = text(1)
TOKEN_IDS = listing(_TOKEN, high=MAX_PROMPT_IDS)
STOP_TOKEN_IDS = listing(_TOKEN, high=limits.MAX_STOP_TOKEN_IDS)
ALLOWED_TOKEN_IDS = listing(_TOKEN, 1, limits.MAX_ALLOWED_TOKEN_IDS)
PROMPTS = either(_ONE_TEXT, _IDS, listing(either(_ONE_TEXT, _IDS), 1, MAX_PROMPTS))
LOGIT_BIAS = table(
    number(-100, 100), keys=text(pattern="^[0-9]{1,12}$"), high=limits.MAX_LOGIT_BIAS
)
TEMPLATE_KWARGS = table(either(NULL, BOOLEAN, number(), text(pattern="^[A-Za-z0-9 _.-]{0,64}$")))
STREAM_OPTIONS = record({}, {"include_usage": optional(BOOLEAN)})
METADATA = table(text(), high=MAX_METADATA)
QUESTIONS = listing(
    record(
        {"question": text(), "labels": {**listing(text(1), 1, MAX_LABELS), "uniqueItems": True}},
    ), 1, MAX_PROMPTS,
)  # fmt: skip


def texts(most: int, longest: int) -> Shape:
    """One text or a list of them, none empty."""
    one = text(1, longest)
    return either(one, listing(one, high=most))


STOP = texts(limits.MAX_STOP_STRINGS, limits.MAX_STOP_STRING_CHARS)
BAD_WORDS = texts(limits.MAX_BAD_WORDS, limits.MAX_BAD_WORD_CHARS)

# -- chat ----------------------------------------------------------------------------------------

_TEXT_PART = record({"type": word("text"), "text": text()})
_CONTENT = either(text(), listing(_TEXT_PART, 1))
_NAME = text(1, MAX_NAME_CHARS)
_CALL: Shape = {
    "type": "object",
    "properties": {
        "id": _NAME, "type": word("function"),
        "function": {
            "type": "object", "properties": {"name": _NAME, "arguments": either(text(), OBJECT)},
            "required": ["name", "arguments"],
        },
    }, "required": ["id", "function"],
}  # fmt: skip
_CHAT_MESSAGE = either(
    record(
        {"role": word("system", "developer", "user"), "content": _CONTENT}, {"tool_calls": NULL},
        others=_NOTHING,
    ),
    record(
        {"role": word("assistant"), "content": _CONTENT},
        {
            "reasoning_content": optional(text()),
            "tool_calls": optional(listing(_CALL, 1, MAX_CALLS)),
        }, others=_NOTHING,
    ),
    record(
        {"role": word("assistant"), "tool_calls": listing(_CALL, 1, MAX_CALLS)},
        {"reasoning_content": optional(text()), "content": either(NULL, word([]), _CONTENT)},
        others=_NOTHING,
    ),
    record(
        {"role": word("tool"), "tool_call_id": _NAME, "content": _CONTENT},
        {"name": optional(_NAME), "tool_calls": NULL}, others=_NOTHING,
    ),
)  # fmt: skip
CHAT_MESSAGES = listing(ref("ChatMessage"), 1, MAX_MESSAGES)
STATE = either(text(), listing(ref("ChatMessage"), 0, MAX_MESSAGES))

# -- structure -----------------------------------------------------------------------------------

_SCHEMA_TEXT = text(1, MAX_GRAMMAR_CHARS)
_SCHEMA_LABELS: dict[str, Shape] = {"name": ANY, "strict": ANY, "description": ANY}
_FLAT_FORMAT = either(
    record({"type": word("text", "json_object")}),
    record({"type": word("json_schema"), "schema": OBJECT}, _SCHEMA_LABELS),
)
RESPONSE_FORMAT = either(
    record({"type": word("text", "json_object")}),
    record(
        {"type": word("json_schema"), "json_schema": record({"schema": OBJECT}, _SCHEMA_LABELS)}
    ),
)
STRUCTURED_OUTPUTS = either(
    record({"json": either(OBJECT, _SCHEMA_TEXT)}), record({"regex": _SCHEMA_TEXT}),
    record({"choice": listing(text(1), 1, MAX_GRAMMAR_CHOICES)}), record({"grammar": _SCHEMA_TEXT}),
)  # fmt: skip
TEXT_FORMAT = record({}, {"format": optional(ref("TextFormat")), "verbosity": word("medium", None)})
_EFFORT = optional(word(*EFFORTS))
OUTPUT_CONFIG = record({}, {"format": optional(ref("TextFormat")), "effort": _EFFORT})
REASONING = record({}, {"effort": _EFFORT, "summary": ANY, "generate_summary": ANY, "context": ANY})
THINKING = record(
    {"type": word("enabled", "adaptive", "disabled")},
    {"budget_tokens": optional(integer()), "display": ANY},
)

# -- tools ---------------------------------------------------------------------------------------

_FUNCTION_NAME = text(pattern="^[A-Za-z0-9_.-]{1,64}$")
_FUNCTION: dict[str, Shape] = {"description": optional(text()), "strict": ANY}
_PARAMETERS = optional(OBJECT)
CHAT_TOOLS = listing(
    record(
        {
            "type": word("function"),
            "function": record({"name": _FUNCTION_NAME}, {**_FUNCTION, "parameters": _PARAMETERS}),
        },
    ), high=MAX_TOOLS,
)  # fmt: skip
RESPONSES_TOOLS = listing(
    either(
        record(
            {"type": word("function"), "name": _FUNCTION_NAME},
            {**_FUNCTION, "parameters": _PARAMETERS},
        ),
        {
            "type": "object", "properties": {"type": {"type": "string", "not": word("function")}},
            "required": ["type"],
        },
    ),
)  # fmt: skip
MESSAGES_TOOLS = listing(
    record(
        {"name": _FUNCTION_NAME},
        {
            **_FUNCTION, "type": word("custom", None), "input_schema": _PARAMETERS,
            "cache_control": ANY, "eager_input_streaming": ANY,
        },
    ), high=MAX_TOOLS,
)  # fmt: skip
_MODE = word("none", "auto", "required")
_CHAT_NAMED = record({"type": word("function"), "function": record({"name": _FUNCTION_NAME})})
_NAMED = record({"type": word("function"), "name": _FUNCTION_NAME})


def _allowed(named: Shape) -> dict[str, Shape]:
    return {"mode": word("auto", "required"), "tools": listing(named, 1, MAX_TOOLS)}


CHAT_CHOICE = either(
    _MODE, _CHAT_NAMED,
    record({"type": word("allowed_tools"), "allowed_tools": record(_allowed(_CHAT_NAMED))}),
)  # fmt: skip
RESPONSES_CHOICE = either(
    _MODE, _NAMED, record({"type": word("allowed_tools"), **_allowed(_NAMED)})
)
MESSAGES_CHOICE = either(
    record({"type": word("none", "auto", "any")}, {"disable_parallel_tool_use": optional(BOOLEAN)}),
    record(
        {"type": word("tool"), "name": _FUNCTION_NAME},
        {"disable_parallel_tool_use": optional(BOOLEAN)},
    ),
)

# -- Messages ------------------------------------------------------------------------------------


def _block(kind: str, needed: dict[str, Shape], more: dict[str, Shape] | None = None) -> Shape:
    labels = {"cache_control": ANY, **(more or {})}
    return record({"type": word(kind), **needed}, labels, others=_NOTHING)


_TEXT_BLOCK = _block("text", {"text": text()})
_TEXT_BLOCKS = listing(_TEXT_BLOCK, 1)
_RESULT = _block(
    "tool_result", {"tool_use_id": text()},
    {"content": either(text(), listing(_TEXT_BLOCK), NULL), "is_error": optional(BOOLEAN)},
)  # fmt: skip
_USE = _block("tool_use", {"id": text(), "name": text(), "input": OBJECT}, {"caller": ANY})
_THOUGHT = _block("thinking", {"thinking": text()}, {"signature": ANY})
_BLOCKS = {
    "user": either(_TEXT_BLOCK, _RESULT),
    "assistant": either(_TEXT_BLOCK, _THOUGHT, _USE),
    "system": _TEXT_BLOCK,
}
_MESSAGES_ENTRY = either(
    *(
        record({"role": word(role), "content": either(text(), listing(block, 1))})
        for role, block in _BLOCKS.items()
    )
)
SYSTEM = either(text(), listing(_TEXT_BLOCK))
MESSAGES = listing(ref("MessagesEntry"), 1, MAX_MESSAGES)

# -- Responses -----------------------------------------------------------------------------------

_PART = record(
    {"type": word("input_text", "output_text", "text", "reasoning_text"), "text": text()},
    {"annotations": ANY, "logprobs": ANY}, others=_NOTHING,
)  # fmt: skip
_PARTS = either(text(), listing(_PART, 1))
_LABELS: dict[str, Shape] = {"id": ANY, "status": ANY}
_ITEM = either(
    record(
        {"role": word("user", "assistant", "system", "developer"), "content": _PARTS},
        {**_LABELS, "type": word("message"), "phase": ANY}, others=_NOTHING,
    ),
    record(
        {"type": word("reasoning")},
        {
            **_LABELS, "summary": ANY, "encrypted_content": ANY,
            "content": either(NULL, word([]), _PARTS),
        }, others=_NOTHING,
    ),
    record(
        {"type": word("function_call"), "call_id": text(1), "name": text(1), "arguments": text(1)},
        _LABELS, others=_NOTHING,
    ),
    record(
        {
            "type": word("function_call_output"), "call_id": text(1),
            "output": either(word([]), _PARTS),
        }, _LABELS, others=_NOTHING,
    ),
)  # fmt: skip
INPUT = either(text(), listing(ref("InputItem"), 1, MAX_MESSAGES))
INCLUDE = either(
    word(LOGPROBS_INCLUDE, EMPTY_INCLUDE),
    listing(word(LOGPROBS_INCLUDE, EMPTY_INCLUDE), high=MAX_INCLUDE),
)

COMPONENTS: dict[str, Shape] = {
    "ChatMessage": _CHAT_MESSAGE, "MessagesEntry": _MESSAGES_ENTRY, "InputItem": _ITEM,
    "TextFormat": _FLAT_FORMAT,
}  # fmt: skip
