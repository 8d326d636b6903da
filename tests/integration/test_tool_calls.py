"""A real model calls a real function, is told what it gave, and answers from that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest

from octavo.testing.processes import running_server, serve_argv

POPULATION = {"Oslo": 709_037, "Bergen": 291_940}
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "population_of",
        "description": "How many people live in a city of Norway.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "Name of the city"}},
            "required": ["city"],
        },
    },
}


@pytest.mark.slow
def test_the_larger_model_uses_a_function(qwen_path: Path, tmp_path: Path) -> None:
    argv = serve_argv(str(qwen_path), "--kv-memory", "512MiB", "--max-model-len", "4096")
    ask: list[Any] = [{"role": "user", "content": "How many people live in Bergen? Use the tool."}]
    with (
        running_server(tmp_path, argv) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        options: dict[str, Any] = {"model": qwen_path.stem, "temperature": 0, "max_tokens": 96}
        called = client.chat.completions.create(messages=ask, tools=[TOOL], **options).choices[0]
        assert called.finish_reason == "tool_calls", called
        (call,) = called.message.tool_calls or []
        assert call.type == "function"
        city = json.loads(call.function.arguments)["city"]
        found = {"role": "tool", "tool_call_id": call.id, "content": str(POPULATION[city])}
        talk = [*ask, called.message.model_dump(include={"role", "tool_calls"}), found]
        told = client.chat.completions.create(messages=talk, **options).choices[0]
        assert told.finish_reason == "stop"
        assert "291" in (told.message.content or "")
