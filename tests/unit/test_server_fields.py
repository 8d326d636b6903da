"""The field table is true: every row does what it says, at every endpoint that it names."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from octavo.server import FIELDS, Treatment
from octavo.server.fields import Endpoint, Field
from octavo.server.response_store import StoredResponse
from octavo.server.sampling_fields import LOGPROBS_INCLUDE
from served import HELLO, PATHS, QUESTIONS, Served

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
ROWS = [
    pytest.param(field, endpoint, id=f"{endpoint}-{field.name}")
    for field in FIELDS
    for endpoint in sorted(field.endpoints)
]


def sample_of(field: Field, endpoint: Endpoint) -> Any:
    if field.name == "input" and endpoint is Endpoint.EMBEDDINGS:
        return ["Hello", "there"]
    if field.name == "logprobs":
        return 2 if endpoint is Endpoint.COMPLETIONS else True
    if field.name in ("tools", "tool_choice") and endpoint in OF_TOOLS:
        return OF_TOOLS[endpoint][field.name]
    return SAMPLES[field.name]


@pytest.mark.parametrize(("field", "endpoint"), ROWS)
def test_the_field_table_is_true(play: Any, field: Field, endpoint: Endpoint) -> None:
    async def test(here: Served) -> None:
        async def ask(**body: Any) -> Any:
            return await here.ask(endpoint, **body)

        earlier = StoredResponse(owner="default", body={"status": "completed"}, messages=HELLO)
        here.state.responses.put(PREVIOUS, earlier)
        if field.treatment is Treatment.REFUSED:
            refused = await ask(**{field.name: {"anything": 1}})
            assert refused.status_code == 400
            error = refused.json()["error"]
            assert error["message"].startswith(f"{field.name} is refused: ")
            assert error.get("param", field.name) == field.name
            for value in (None, *field.neutral):
                assert (await ask(**{field.name: value})).status_code == 200
        elif field.treatment is Treatment.IGNORED:
            response = await ask(**{field.name: "x"})
            assert response.status_code == 200
            assert response.headers["x-octavo-ignored"] == field.name
        else:
            sample = sample_of(field, endpoint)
            extra = EXTRA.get(field.name, {})
            if endpoint is Endpoint.TOKENIZE and field.name in ("prompt", "add_special_tokens"):
                extra = {"messages": None, "prompt": "Hi"}
            if (field.name, endpoint) == ("top_logprobs", Endpoint.RESPONSES):
                extra = {"include": [LOGPROBS_INCLUDE]}
            response = await ask(**{**extra, field.name: sample})
            assert response.status_code == 200, response.text
        while here.client.num_active:  # noqa: ASYNC110 - made in the background
            await asyncio.sleep(0)

    play(test)


def test_a_field_has_one_row_at_an_endpoint() -> None:
    pairs = [(field.name, endpoint) for field in FIELDS for endpoint in field.endpoints]
    assert len(set(pairs)) == len(pairs)


@pytest.mark.parametrize("endpoint", sorted(PATHS))
def test_a_field_that_is_no_row_is_refused(play: Any, endpoint: Endpoint) -> None:
    async def test(here: Served) -> None:
        known = {field.name for field in FIELDS if endpoint in field.endpoints}
        for name in ({field.name for field in FIELDS} - known) | {"temprature"}:
            refused = await here.ask(endpoint, **{name: None})
            assert refused.status_code == 400
            assert f'unknown field "{name}"' in refused.json()["error"]["message"]

    play(test)
