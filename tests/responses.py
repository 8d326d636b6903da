"""Responses over HTTP as tests read them: checked bodies, numbered events, gathered output."""

from __future__ import annotations

import json
from typing import Any

import httpx
from openresponses_types import types as official
from pydantic import TypeAdapter

from octavo.server.endpoints import Endpoint
from served import PATHS

RESPONSES = PATHS[Endpoint.RESPONSES]
RESOURCE = TypeAdapter(official.ResponseResource)
INCLUDE = {"include": ["message.output_text.logprobs"]}
THINKS = {"structured_outputs": {"choice": ["<think>\nHm. So.\n</think>\n\nHello."]}}
CALL = {
    "type": "function_call",
    "call_id": "c1",
    "name": "weather",
    "arguments": '{"city": "Oslo"}',
}
WEATHER: dict[str, Any] = {
    "type": "function", "name": "weather", "description": "Of a city.", "strict": True,
    "parameters": {
        "type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}},
        "required": ["city"], "additionalProperties": False,
    },
}  # fmt: skip


def checked(response: httpx.Response) -> dict[str, Any]:
    """The body of a response, which is what the published types say."""
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    RESOURCE.validate_python(body)
    return body


def text_of(body: dict[str, Any]) -> str:
    (item,) = body["output"]
    (part,) = item["content"]
    text: str = part["text"]
    return text


def events(response: httpx.Response, *, first: int = 0) -> list[dict[str, Any]]:
    assert response.headers["content-type"].startswith("text/event-stream")
    found = []
    for number, part in enumerate(response.text.strip().split("\n\n"), first):
        name, data = part.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
        assert found[-1]["sequence_number"] == number
    return found


def check_error(response: httpx.Response, status: int, param: str | None) -> str:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param
    message: str = error["message"]
    return message


def replayed(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The output that a client gathers from events, each of them in its place."""
    output: list[dict[str, Any]] = []
    text = ""
    for event in found:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert event["output_index"] == len(output)
            assert event["item"]["status"] == "in_progress"
            output.append(event["item"])
            text = ""
            continue
        if "output_index" in event:
            assert event["output_index"] == len(output) - 1
            assert event.get("item_id", output[-1]["id"]) == output[-1]["id"]
        if kind.endswith(".delta"):
            text += event["delta"]
        elif kind in ("output_text.done", "reasoning_text.done"):
            assert event["text"] == text
        elif kind == "function_call_arguments.done":
            assert (event["arguments"], event["name"]) == (text, output[-1]["name"])
        elif kind == "content_part.done":
            assert event["part"]["text"] == text
        elif kind == "output_item.done":
            output[-1] = event["item"]
    return output


def without_ids(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in output]


def kinds_of(found: list[dict[str, Any]]) -> list[str]:
    """The events' types, a run of deltas as one."""
    kinds = [event["type"].removeprefix("response.") for event in found]
    return [k for i, k in enumerate(kinds) if not i or k != kinds[i - 1]]
