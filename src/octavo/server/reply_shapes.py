"""The shapes of what endpoints answer: every member, so that a reply can be held against them."""

from __future__ import annotations

from octavo.server.request_shapes import METADATA
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


def _object(more: dict[str, Shape] | None = None, /, **members: Shape) -> Shape:
    """An object with all of ``members`` and perhaps some of ``more``."""
    return record(members, more)


_COUNT = integer(0)
_LOGPROB = number(-9999)
_TEXT_OR_NULL = optional(text())
_STAMP: dict[str, Shape] = {"id": text(), "created": _COUNT, "model": text()}
_COUNTED: dict[str, Shape] = {"usage": ref("Usage"), "timings": ref("Timings")}

# -- chat and completions ------------------------------------------------------------------------

_USAGE = _object(
    prompt_tokens=_COUNT, completion_tokens=_COUNT, total_tokens=_COUNT,
    prompt_tokens_details=_object(cached_tokens=_COUNT),
    completion_tokens_details=_object(
        reasoning_tokens=_COUNT, accepted_prediction_tokens=_COUNT,
        rejected_prediction_tokens=_COUNT,
    ),
)  # fmt: skip
_TIMINGS = _object(first_token_ms=number(0), total_ms=number(0))
_SCORED: dict[str, Shape] = {
    "token": text(), "logprob": _LOGPROB, "bytes": listing(integer(0, 255)),
}  # fmt: skip
_TOKEN_LOGPROB = _object(**_SCORED, top_logprobs=listing(record(_SCORED)))
_PROMPT_LOGPROBS = listing(optional(table(_object(logprob=_LOGPROB, decoded_token=text()))))
_TOOL_CALL = _object(
    id=text(), type=word("function"), function=_object(name=text(), arguments=text())
)
_FINISH = word("stop", "length", "tool_calls")
CHAT = _object(
    {"prompt_token_ids": listing(_COUNT), "prompt_logprobs": ref("PromptLogprobs")}, **_STAMP,
    **_COUNTED, object=word("chat.completion"),
    choices=listing(
        _object(
            {"token_ids": listing(_COUNT)}, index=_COUNT,
            message=_object(
                {"reasoning_content": text(), "tool_calls": listing(_TOOL_CALL, 1)},
                role=word("assistant"), content=_TEXT_OR_NULL, refusal=NULL,
            ), logprobs=optional(_object(content=listing(ref("TokenLogprob")), refusal=NULL)),
            finish_reason=_FINISH,
        ), 1,
    ),
)  # fmt: skip
COMPLETIONS = _object(
    **_STAMP, **_COUNTED, object=word("text_completion"),
    choices=listing(
        _object(
            {
                "token_ids": listing(_COUNT), "prompt_token_ids": listing(_COUNT),
                "prompt_logprobs": ref("PromptLogprobs"),
            }, index=_COUNT, text=text(),
            logprobs=optional(
                _object(
                    tokens=listing(text()), token_logprobs=listing(optional(_LOGPROB)),
                    top_logprobs=listing(optional(table(_LOGPROB))), text_offset=listing(_COUNT),
                ),
            ), finish_reason=word("stop", "length"),
        ), 1,
    ),
)  # fmt: skip

# -- Messages ------------------------------------------------------------------------------------

MESSAGES = _object(
    id=text(), type=word("message"), role=word("assistant"), model=text(), container=NULL,
    content=listing(
        either(
            _object(type=word("text"), text=text(), citations=NULL),
            _object(type=word("thinking"), thinking=text(), signature=text()),
            _object(
                type=word("tool_use"), id=text(), name=text(), input=OBJECT,
                caller=_object(type=word("direct")),
            ),
        ),
    ),
    stop_reason=word(
        "end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded",
    ), stop_sequence=_TEXT_OR_NULL, stop_details=NULL,
    usage=_object(
        input_tokens=_COUNT, cache_creation_input_tokens=_COUNT, cache_read_input_tokens=_COUNT,
        output_tokens=_COUNT, output_tokens_details=_object(thinking_tokens=_COUNT),
        cache_creation=NULL, server_tool_use=NULL, service_tier=NULL, inference_geo=NULL,
    ), timings=ref("Timings"),
)  # fmt: skip
COUNT_TOKENS = _object(input_tokens=_COUNT)

# -- Responses -----------------------------------------------------------------------------------

_STATUS = word("in_progress", "completed", "incomplete")
_OUTPUT_TEXT = _object(
    type=word("output_text"), text=text(), annotations=listing(ANY, high=0),
    logprobs=listing(ref("TokenLogprob")),
)  # fmt: skip
_ITEM: dict[str, Shape] = {"id": text(), "status": _STATUS}
_CALL = _object(**_ITEM, type=word("function_call"), call_id=text(), name=text(), arguments=text())
_REASONING = _object(
    **_ITEM, type=word("reasoning"), summary=listing(ANY, high=0),
    content=listing(_object(type=word("reasoning_text"), text=text())),
)  # fmt: skip
_RESPONSE = _object(
    {"timings": ref("Timings")}, id=text(), object=word("response"), created_at=_COUNT,
    completed_at=optional(_COUNT),
    status=word("queued", "in_progress", "completed", "incomplete", "failed", "cancelled"),
    error=optional(_object(code=text(), message=text())),
    incomplete_details=optional(_object(reason=word("max_output_tokens"))), model=text(),
    output=listing(
        either(
            _object(
                **_ITEM, type=word("message"), role=word("assistant"),
                content=listing(_OUTPUT_TEXT),
            ), _REASONING, _CALL,
        ),
    ),
    usage=optional(
        _object(
            input_tokens=_COUNT,
            input_tokens_details=_object(cached_tokens=_COUNT, cache_write_tokens=_COUNT),
            output_tokens=_COUNT, output_tokens_details=_object(reasoning_tokens=_COUNT),
            total_tokens=_COUNT,
        ),
    ), store=BOOLEAN, background=BOOLEAN, instructions=_TEXT_OR_NULL,
    previous_response_id=_TEXT_OR_NULL, max_output_tokens=optional(_COUNT), max_tool_calls=NULL,
    metadata=METADATA, text=_object(format=OBJECT), temperature=number(), top_p=number(),
    presence_penalty=number(), frequency_penalty=number(), top_logprobs=_COUNT,
    tools=listing(OBJECT), tool_choice=either(text(), OBJECT), parallel_tool_calls=BOOLEAN,
    reasoning=optional(OBJECT), safety_identifier=_TEXT_OR_NULL, prompt_cache_key=_TEXT_OR_NULL,
    truncation=word("disabled"), service_tier=word("default"),
)  # fmt: skip
RESPONSE = ref("Response")
DELETED = _object(id=text(), object=word("response"), deleted=word(True))
_INPUT_MESSAGE = _object(
    **_ITEM, type=word("message"), role=text(),
    content=listing(either(_OUTPUT_TEXT, _object(type=word("input_text"), text=text()))),
)  # fmt: skip
_RESULT = _object(**_ITEM, type=word("function_call_output"), call_id=text(), output=text())
INPUT_ITEMS = _object(
    object=word("list"), data=listing(either(_INPUT_MESSAGE, _REASONING, _CALL, _RESULT)),
    first_id=text(), last_id=text(), has_more=BOOLEAN,
)  # fmt: skip
INPUT_TOKENS = _object(object=word("response.input_tokens"), input_tokens=_COUNT)

# -- readings ------------------------------------------------------------------------------------

_READ = _object(
    prompt_tokens=_COUNT, total_tokens=_COUNT, prompt_tokens_details=_object(cached_tokens=_COUNT)
)
EMBEDDINGS = _object(
    object=word("list"), model=text(),
    data=listing(
        _object(
            object=word("embedding"), index=_COUNT, embedding=either(listing(number()), text()),
        ), 1,
    ), usage=_READ,
)  # fmt: skip
SCORE = _object(
    **_STAMP, object=word("list"),
    data=listing(_object(index=_COUNT, object=word("score"), score=number()), 1), usage=_READ,
)  # fmt: skip
SYSTEMONE = _object(
    **_STAMP, **_COUNTED, object=word("systemone"),
    answers=listing(
        _object(
            index=_COUNT, label=text(),
            labels=listing(
                _object(
                    label=text(), logprob=_LOGPROB, probability=number(0, 1), num_tokens=integer(1),
                ), 1,
            ),
        ), 1,
    ),
)  # fmt: skip

# -- text, models, the server --------------------------------------------------------------------

TOKENIZE = _object(tokens=listing(_COUNT), count=_COUNT, max_model_len=optional(_COUNT))
PROMPT = _object(prompt=text())
MODEL = ref("Model")
MODELS = _object(object=word("list"), data=listing(MODEL, 1))
_MODEL = _object(
    id=text(), object=word("model"), created=_COUNT, owned_by=text(), root=text(),
    max_model_len=optional(_COUNT), generation_config=OBJECT,
)  # fmt: skip
HEALTH = _object(status=word("alive"))
READY = _object(status=word("ready", "not ready", "draining"))
VERSION = _object(version=text())

_ERROR = _object(
    error=_object(message=text(), type=text(), param=_TEXT_OR_NULL, code=_TEXT_OR_NULL)
)
_MESSAGES_ERROR = _object(
    type=word("error"), error=_object(type=text(), message=text()), request_id=_TEXT_OR_NULL
)

COMPONENTS: dict[str, Shape] = {
    "Usage": _USAGE, "Timings": _TIMINGS, "TokenLogprob": _TOKEN_LOGPROB,
    "PromptLogprobs": _PROMPT_LOGPROBS, "Response": _RESPONSE, "Model": _MODEL, "Error": _ERROR,
    "MessagesError": _MESSAGES_ERROR,
}  # fmt: skip
