"""The shapes of what endpoints answer: every member, so that a reply can be held against them."""

from __future__ import annotations

from octavo.server import shapes as s
from octavo.server.request_shapes import METADATA


def _object(more: dict[str, s.Shape] | None = None, /, **members: s.Shape) -> s.Shape:
    """An object with all of ``members`` and perhaps some of ``more``."""
    return s.record(members, more)


_COUNT = s.integer(0)
_LOGPROB = s.number(-9999)
_TEXT_OR_NULL = s.optional(s.text())
_STAMP: dict[str, s.Shape] = {"id": s.text(), "created": _COUNT, "model": s.text()}
_COUNTED: dict[str, s.Shape] = {"usage": s.ref("Usage"), "timings": s.ref("Timings")}

# -- chat and completions ------------------------------------------------------------------------

_USAGE = _object(
    prompt_tokens=_COUNT, completion_tokens=_COUNT, total_tokens=_COUNT,
    prompt_tokens_details=_object(cached_tokens=_COUNT),
    completion_tokens_details=_object(
        reasoning_tokens=_COUNT, accepted_prediction_tokens=_COUNT,
        rejected_prediction_tokens=_COUNT,
    ),
)  # fmt: skip
_TIMINGS = _object(first_token_ms=s.number(0), total_ms=s.number(0))
_SCORED: dict[str, s.Shape] = {
    "token": s.text(), "logprob": _LOGPROB, "bytes": s.listing(s.integer(0, 255)),
}  # fmt: skip
_TOKEN_LOGPROB = _object(**_SCORED, top_logprobs=s.listing(s.record(_SCORED)))
_PROMPT_LOGPROBS = s.listing(s.optional(s.table(_object(logprob=_LOGPROB, decoded_token=s.text()))))
_TOOL_CALL = _object(
    id=s.text(), type=s.word("function"), function=_object(name=s.text(), arguments=s.text())
)
_FINISH = s.word("stop", "length", "tool_calls")
CHAT = _object(
    {"prompt_token_ids": s.listing(_COUNT), "prompt_logprobs": s.ref("PromptLogprobs")}, **_STAMP,
    **_COUNTED, object=s.word("chat.completion"),
    choices=s.listing(
        _object(
            {"token_ids": s.listing(_COUNT)}, index=_COUNT,
            message=_object(
                {"reasoning_content": s.text(), "tool_calls": s.listing(_TOOL_CALL, 1)},
                role=s.word("assistant"), content=_TEXT_OR_NULL, refusal=s.NULL,
            ),
            logprobs=s.optional(_object(content=s.listing(s.ref("TokenLogprob")), refusal=s.NULL)),
            finish_reason=_FINISH,
        ), 1,
    ),
)  # fmt: skip
COMPLETIONS = _object(
    **_STAMP, **_COUNTED, object=s.word("text_completion"),
    choices=s.listing(
        _object(
            {
                "token_ids": s.listing(_COUNT), "prompt_token_ids": s.listing(_COUNT),
                "prompt_logprobs": s.ref("PromptLogprobs"),
            }, index=_COUNT, text=s.text(),
            logprobs=s.optional(
                _object(
                    tokens=s.listing(s.text()), token_logprobs=s.listing(s.optional(_LOGPROB)),
                    top_logprobs=s.listing(s.optional(s.table(_LOGPROB))),
                    text_offset=s.listing(_COUNT),
                ),
            ), finish_reason=s.word("stop", "length"),
        ), 1,
    ),
)  # fmt: skip

# -- Messages ------------------------------------------------------------------------------------

MESSAGES = _object(
    id=s.text(), type=s.word("message"), role=s.word("assistant"), model=s.text(), container=s.NULL,
    content=s.listing(
        s.either(
            _object(type=s.word("text"), text=s.text(), citations=s.NULL),
            _object(type=s.word("thinking"), thinking=s.text(), signature=s.text()),
            _object(
                type=s.word("tool_use"), id=s.text(), name=s.text(), input=s.OBJECT,
                caller=_object(type=s.word("direct")),
            ),
        ),
    ),
    stop_reason=s.word(
        "end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded",
    ), stop_sequence=_TEXT_OR_NULL, stop_details=s.NULL,
    usage=_object(
        input_tokens=_COUNT, cache_creation_input_tokens=_COUNT, cache_read_input_tokens=_COUNT,
        output_tokens=_COUNT, output_tokens_details=_object(thinking_tokens=_COUNT),
        cache_creation=s.NULL, server_tool_use=s.NULL, service_tier=s.NULL, inference_geo=s.NULL,
    ), timings=s.ref("Timings"),
)  # fmt: skip
COUNT_TOKENS = _object(input_tokens=_COUNT)

# -- Responses -----------------------------------------------------------------------------------

_STATUS = s.word("in_progress", "completed", "incomplete")
_OUTPUT_TEXT = _object(
    type=s.word("output_text"), text=s.text(), annotations=s.listing(s.ANY, high=0),
    logprobs=s.listing(s.ref("TokenLogprob")),
)  # fmt: skip
_ITEM: dict[str, s.Shape] = {"id": s.text(), "status": _STATUS}
_CALL = _object(
    **_ITEM, type=s.word("function_call"), call_id=s.text(), name=s.text(), arguments=s.text()
)
_REASONING = _object(
    **_ITEM, type=s.word("reasoning"), summary=s.listing(s.ANY, high=0),
    content=s.listing(_object(type=s.word("reasoning_text"), text=s.text())),
)  # fmt: skip
_RESPONSE = _object(
    {"timings": s.ref("Timings")}, id=s.text(), object=s.word("response"), created_at=_COUNT,
    completed_at=s.optional(_COUNT),
    status=s.word("queued", "in_progress", "completed", "incomplete", "failed", "cancelled"),
    error=s.optional(_object(code=s.text(), message=s.text())),
    incomplete_details=s.optional(_object(reason=s.word("max_output_tokens"))), model=s.text(),
    output=s.listing(
        s.either(
            _object(
                **_ITEM, type=s.word("message"), role=s.word("assistant"),
                content=s.listing(_OUTPUT_TEXT),
            ), _REASONING, _CALL,
        ),
    ),
    usage=s.optional(
        _object(
            input_tokens=_COUNT,
            input_tokens_details=_object(cached_tokens=_COUNT, cache_write_tokens=_COUNT),
            output_tokens=_COUNT, output_tokens_details=_object(reasoning_tokens=_COUNT),
            total_tokens=_COUNT,
        ),
    ), store=s.BOOLEAN, background=s.BOOLEAN, instructions=_TEXT_OR_NULL,
    previous_response_id=_TEXT_OR_NULL, max_output_tokens=s.optional(_COUNT), max_tool_calls=s.NULL,
    metadata=METADATA, text=_object(format=s.OBJECT), temperature=s.number(), top_p=s.number(),
    presence_penalty=s.number(), frequency_penalty=s.number(), top_logprobs=_COUNT,
    tools=s.listing(s.OBJECT), tool_choice=s.either(s.text(), s.OBJECT),
    parallel_tool_calls=s.BOOLEAN, reasoning=s.optional(s.OBJECT), safety_identifier=_TEXT_OR_NULL,
    prompt_cache_key=_TEXT_OR_NULL, truncation=s.word("disabled"), service_tier=s.word("default"),
)  # fmt: skip
RESPONSE = s.ref("Response")
DELETED = _object(id=s.text(), object=s.word("response"), deleted=s.word(True))
_INPUT_MESSAGE = _object(
    **_ITEM, type=s.word("message"), role=s.text(),
    content=s.listing(s.either(_OUTPUT_TEXT, _object(type=s.word("input_text"), text=s.text()))),
)  # fmt: skip
_RESULT = _object(**_ITEM, type=s.word("function_call_output"), call_id=s.text(), output=s.text())
INPUT_ITEMS = _object(
    object=s.word("list"), data=s.listing(s.either(_INPUT_MESSAGE, _REASONING, _CALL, _RESULT)),
    first_id=s.text(), last_id=s.text(), has_more=s.BOOLEAN,
)  # fmt: skip
INPUT_TOKENS = _object(object=s.word("response.input_tokens"), input_tokens=_COUNT)

# -- readings ------------------------------------------------------------------------------------

_READ = _object(
    prompt_tokens=_COUNT, total_tokens=_COUNT, prompt_tokens_details=_object(cached_tokens=_COUNT)
)
EMBEDDINGS = _object(
    object=s.word("list"), model=s.text(),
    data=s.listing(
        _object(
            object=s.word("embedding"), index=_COUNT,
            embedding=s.either(s.listing(s.number()), s.text()),
        ), 1,
    ), usage=_READ,
)  # fmt: skip
SCORE = _object(
    **_STAMP, object=s.word("list"),
    data=s.listing(_object(index=_COUNT, object=s.word("score"), score=s.number()), 1), usage=_READ,
)  # fmt: skip
SYSTEMONE = _object(
    **_STAMP, **_COUNTED, object=s.word("systemone"),
    answers=s.listing(
        _object(
            index=_COUNT, label=s.text(),
            labels=s.listing(
                _object(
                    label=s.text(), logprob=_LOGPROB, probability=s.number(0, 1),
                    num_tokens=s.integer(1),
                ), 1,
            ),
        ), 1,
    ),
)  # fmt: skip

# -- text, models, the server --------------------------------------------------------------------

TOKENIZE = _object(tokens=s.listing(_COUNT), count=_COUNT, max_model_len=s.optional(_COUNT))
PROMPT = _object(prompt=s.text())
MODEL = s.ref("Model")
MODELS = _object(object=s.word("list"), data=s.listing(MODEL, 1))
_MODEL = _object(
    id=s.text(), object=s.word("model"), created=_COUNT, owned_by=s.text(), root=s.text(),
    max_model_len=s.optional(_COUNT), generation_config=s.OBJECT,
)  # fmt: skip
HEALTH = _object(status=s.word("alive"))
READY = _object(status=s.word("ready", "not ready", "draining"))
VERSION = _object(version=s.text())

_ERROR = _object(
    error=_object(message=s.text(), type=s.text(), param=_TEXT_OR_NULL, code=_TEXT_OR_NULL)
)
_MESSAGES_ERROR = _object(
    type=s.word("error"), error=_object(type=s.text(), message=s.text()), request_id=_TEXT_OR_NULL
)

COMPONENTS: dict[str, s.Shape] = {
    "Usage": _USAGE, "Timings": _TIMINGS, "TokenLogprob": _TOKEN_LOGPROB,
    "PromptLogprobs": _PROMPT_LOGPROBS, "Response": _RESPONSE, "Model": _MODEL, "Error": _ERROR,
    "MessagesError": _MESSAGES_ERROR,
}  # fmt: skip
