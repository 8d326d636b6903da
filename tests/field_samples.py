"""A value of every honoured field that the server takes, and what a field needs beside it."""

from __future__ import annotations

from typing import Any

from octavo.server.endpoints import Endpoint
from octavo.server.fields import Field
from octavo.server.request_shapes import LOGPROBS_INCLUDE
from served import HELLO, QUESTIONS

PREVIOUS = "resp_1"
FORMAT = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}
SAMPLES: dict[str, Any] = {
    "model": "alias", "messages": HELLO, "prompt": "Hi", "max_tokens": 3, "system": "Be brief.",
    "max_completion_tokens": 5, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "n": 2,
    "stop": "zzz", "stop_sequences": ["zzz"], "stop_token_ids": [5],
    "include_stop_str_in_output": True, "skip_special_tokens": False, "seed": -4,
    "presence_penalty": 1, "frequency_penalty": -1, "repetition_penalty": 1.2,
    "text": {"format": FORMAT}, "output_config": {"format": FORMAT}, "tokens": [5, 6],
    "add_special_tokens": False, "truncate_prompt_tokens": 4,
    "thinking": {"type": "adaptive"}, "prompt_logprobs": 2,
    "allowed_token_ids": [5, 6, 7], "bad_words": ["no", "never again"],
    "return_token_ids": True, "cache_salt": "mine",
    "continue_final_message": False, "add_generation_prompt": False, "chat_template_kwargs": {},
    "logit_bias": {"5": -100}, "min_tokens": 2, "ignore_eos": True,
    "tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none",
    "parallel_tool_calls": False, "reasoning_effort": "low",
    "reasoning": {"effort": "low"},
    "response_format": {"type": "json_object"}, "structured_outputs": {"choice": ["a", "b"]},
    "echo": True, "stream": True, "priority": 1, "timeout": 60,
    "stream_options": {"include_usage": True}, "top_logprobs": 2, "input": HELLO,
    "instructions": "Be brief.", "previous_response_id": PREVIOUS, "max_output_tokens": 3,
    "encoding_format": "base64", "dimensions": 1, "text_1": "a", "text_2": "b", "state": HELLO,
    "questions": QUESTIONS,
    "best_of": 2, "use_beam_search": True, "length_penalty": 2, "early_stopping": "never",
    "store": False, "background": True, "include": [LOGPROBS_INCLUDE], "metadata": {"a": "b"},
}  # fmt: skip
# Of ignored fields: a text, but of these.
IGNORED_SAMPLES: dict[str, Any] = {
    "text": {"format": {"type": "text"}}, "metadata": {"user_id": "x"},
    "prompt_cache_options": {"mode": "explicit"}, "max_tool_calls": 3,
    "cache_control": {"type": "ephemeral"}, "diagnostics": {"previous_message_id": None},
}  # fmt: skip
# Where tools are spelled otherwise.
OF_TOOLS: dict[Endpoint, dict[str, Any]] = {
    endpoint: {"tools": [{"name": "f", "input_schema": {}}], "tool_choice": {"type": "none"}}
    for endpoint in (Endpoint.MESSAGES, Endpoint.COUNT_TOKENS)
} | {
    endpoint: {"tools": [{"type": "function", "name": "f"}], "tool_choice": "none"}
    for endpoint in (Endpoint.RESPONSES, Endpoint.INPUT_TOKENS)
}
# What a field needs beside it.
EXTRA: dict[str, dict[str, Any]] = {
    "stream_options": {"stream": True},
    "top_logprobs": {"logprobs": True},
    "use_beam_search": {"best_of": 2},
    "length_penalty": {"use_beam_search": True, "best_of": 2},
    "early_stopping": {"use_beam_search": True, "best_of": 2},
}


def sample_of(field: Field, endpoint: Endpoint) -> Any:
    if field.name == "input" and endpoint is Endpoint.EMBEDDINGS:
        return ["Hello", "there"]
    if field.name == "logprobs":
        return 2 if endpoint is Endpoint.COMPLETIONS else True
    if field.name in ("tools", "tool_choice") and endpoint in OF_TOOLS:
        return OF_TOOLS[endpoint][field.name]
    return SAMPLES[field.name]


def beside(field: Field, endpoint: Endpoint) -> dict[str, Any]:
    """What the body needs beside a field, and instead of the least that the endpoint takes."""
    if endpoint is Endpoint.TOKENIZE and field.name in ("prompt", "add_special_tokens"):
        return {"messages": None, "prompt": "Hi"}
    if (field.name, endpoint) == ("top_logprobs", Endpoint.RESPONSES):
        return {"include": [LOGPROBS_INCLUDE]}
    return EXTRA.get(field.name, {})
