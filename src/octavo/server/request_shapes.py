"""The shapes of request fields that are more than one word: what their readers take.

Shared ones are components, by the names under which the OpenAPI document has them.
"""

from __future__ import annotations

from octavo.core import sampling_params as limits
from octavo.core.grammar import MAX_GRAMMAR_CHARS, MAX_GRAMMAR_CHOICES
from octavo.core.probe import MAX_LABELS
from octavo.frontend import tools
from octavo.frontend.tools import MAX_TOOLS
from octavo.server.prompts import MAX_MESSAGES, MAX_PROMPT_IDS, MAX_PROMPTS
from octavo.text.messages import CHAT_MESSAGE, NAME
from octavo.text.shapes import (
    BOOLEAN,
    NOTHING,
    NULL,
    OBJECT,
    Shape,
    component,
    either,
    ignored,
    integer,
    listing,
    number,
    record,
    table,
    text,
    word,
)

MAX_METADATA = 16
MAX_SALT_CHARS = 256
MAX_INCLUDE = 32
LOGPROBS_INCLUDE = "message.output_text.logprobs"
# There is none here: nothing to include, nothing lost.
EMPTY_INCLUDE = "reasoning.encrypted_content"

_TOKEN = integer(0)
_IDS = listing(_TOKEN, 1, MAX_PROMPT_IDS)
_ONE_TEXT = text(1)
TOKEN_IDS = listing(_TOKEN, high=MAX_PROMPT_IDS)
STOP_TOKEN_IDS = listing(_TOKEN, high=limits.MAX_STOP_TOKEN_IDS)
ALLOWED_TOKEN_IDS = listing(_TOKEN, 1, limits.MAX_ALLOWED_TOKEN_IDS)
PROMPTS = either(_ONE_TEXT, _IDS, listing(either(_ONE_TEXT, _IDS), 1, MAX_PROMPTS))
LOGIT_BIAS = table(
    number(-100, 100),
    keys=text(pattern="^[0-9]{1,12}$", said="a token id"),
    high=limits.MAX_LOGIT_BIAS,
)
# Nothing that could spell a special token.
_PLAIN_WORD = text(
    pattern="^[A-Za-z0-9 _.-]{0,64}$",
    said="a word of at most 64 letters, digits, spaces, underscores, dots or dashes",
)
TEMPLATE_KWARGS = table(either(NULL, BOOLEAN, number(), _PLAIN_WORD))
STREAM_OPTIONS = record({}, {"include_usage": BOOLEAN})
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

CHAT_MESSAGES = listing(CHAT_MESSAGE, 1, MAX_MESSAGES)
STATE = either(text(), listing(CHAT_MESSAGE, 0, MAX_MESSAGES))

# -- structure -----------------------------------------------------------------------------------

_SCHEMA_TEXT = text(1, MAX_GRAMMAR_CHARS)
_LABELED: dict[str, Shape] = {
    "name": ignored(
        text(
            pattern="^[A-Za-z0-9_-]{1,64}$", said="1 to 64 letters, digits, underscores or dashes"
        ),
    ),
    "strict": ignored(BOOLEAN),
    "description": ignored(text()),
}  # fmt: skip
_FLAT_FORMAT = component(
    "TextFormat",
    either(
        record({"type": word("text", "json_object")}),
        record({"type": word("json_schema"), "schema": tools.JSON_SCHEMA}, _LABELED),
    ),
)
RESPONSE_FORMAT = either(
    record({"type": word("text", "json_object")}),
    record(
        {
            "type": word("json_schema"),
            "json_schema": record({"schema": tools.JSON_SCHEMA}, _LABELED),
        }
    ),
)
STRUCTURED_OUTPUTS = either(
    record({"json": either(tools.JSON_SCHEMA, _SCHEMA_TEXT)}), record({"regex": _SCHEMA_TEXT}),
    record({"choice": listing(text(1), 1, MAX_GRAMMAR_CHOICES)}), record({"grammar": _SCHEMA_TEXT}),
)  # fmt: skip
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
TEXT_FORMAT = record({}, {"format": _FLAT_FORMAT, "verbosity": word("medium")})
OUTPUT_CONFIG = record({}, {"format": _FLAT_FORMAT, "effort": word(*EFFORTS)})
REASONING = record(
    {},
    {
        "effort": word(*EFFORTS), "summary": ignored(text()), "generate_summary": ignored(text()),
        "context": ignored(text()),
    },
)  # fmt: skip
THINKING = record(
    {"type": word("enabled", "adaptive", "disabled")},
    {"budget_tokens": ignored(integer()), "display": ignored(text())},
)

# -- tools ---------------------------------------------------------------------------------------

CHAT_TOOLS = listing(tools.CHAT_TOOLS.tool, high=MAX_TOOLS)
MESSAGES_TOOLS = listing(tools.MESSAGES_TOOLS.tool, high=MAX_TOOLS)
# Tools that the protocol's hosts run are left out before the others are read.
RESPONSES_TOOLS = listing(
    either(
        tools.RESPONSES_TOOLS.tool,
        {
            "type": "object", "required": ["type"],
            "properties": {"type": text(pattern=r"^(?!function$)[\s\S]*$", said="a kind of tool")},
        },
    ),
)  # fmt: skip

# -- Messages ------------------------------------------------------------------------------------


def _block(kind: str, needed: dict[str, Shape], more: dict[str, Shape] | None = None) -> Shape:
    labels = {"cache_control": ignored(tools.CACHE_CONTROL), **(more or {})}
    return record({"type": word(kind), **needed}, labels, others=NOTHING)


_TEXT_BLOCK = _block("text", {"text": text()})
_RESULT = _block(
    "tool_result", {"tool_use_id": NAME},
    {"content": either(text(), listing(_TEXT_BLOCK)), "is_error": BOOLEAN},
)  # fmt: skip
_USE = _block("tool_use", {"id": NAME, "name": NAME, "input": OBJECT}, {"caller": ignored(OBJECT)})
_THOUGHT = _block("thinking", {"thinking": text()}, {"signature": ignored(text())})
_BLOCKS = {
    "user": either(_TEXT_BLOCK, _RESULT),
    "assistant": either(_TEXT_BLOCK, _THOUGHT, _USE),
    "system": _TEXT_BLOCK,
}
_MESSAGES_ENTRY = component(
    "MessagesEntry",
    either(
        *(
            record({"role": word(role), "content": either(text(), listing(block, 1))})
            for role, block in _BLOCKS.items()
        )
    ),
)
SYSTEM = either(text(), listing(_TEXT_BLOCK))
MESSAGES = listing(_MESSAGES_ENTRY, 1, MAX_MESSAGES)

# -- Responses -----------------------------------------------------------------------------------

_PART = record(
    {"type": word("input_text", "output_text", "text", "reasoning_text"), "text": text()},
    {"annotations": ignored(listing(OBJECT)), "logprobs": ignored(listing(OBJECT))},
    others=NOTHING,
)
_PARTS = either(text(), listing(_PART, 1))
# Of an item that this server or another gave: what it was called, not what it says.
_LABELS: dict[str, Shape] = {"id": ignored(text()), "status": ignored(text())}
_SUMMARY = listing(record({"type": word("summary_text"), "text": text()}, others=NOTHING))
_ITEM = component(
    "InputItem",
    either(
        record(
            {"role": word("user", "assistant", "system", "developer"), "content": _PARTS},
            {**_LABELS, "type": word("message"), "phase": ignored(text())}, others=NOTHING,
        ),
        record(
            {"type": word("reasoning")},
            {
                **_LABELS, "summary": ignored(_SUMMARY), "encrypted_content": ignored(text()),
                "content": either(_PARTS, NOTHING),
            }, others=NOTHING,
        ),
        record(
            {
                "type": word("function_call"), "call_id": NAME, "name": NAME,
                "arguments": text(1),
            }, _LABELS, others=NOTHING,
        ),
        record(
            {
                "type": word("function_call_output"), "call_id": NAME,
                "output": either(_PARTS, word([])),
            }, _LABELS, others=NOTHING,
        ),
    ),
)  # fmt: skip
INPUT = either(text(), listing(_ITEM, 1, MAX_MESSAGES))
INCLUDE = either(
    word(LOGPROBS_INCLUDE, EMPTY_INCLUDE),
    listing(word(LOGPROBS_INCLUDE, EMPTY_INCLUDE), high=MAX_INCLUDE),
)
