"""A real model calls a real function, is told what it gave, and answers from that."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest

from octavo.config import CacheConfig, SchedulerConfig
from octavo.core.grammar import Grammar
from octavo.core.sampling_params import SamplingParams
from octavo.llm import LLM, ChatOptions
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


@pytest.fixture(scope="module")
def llm(smollm2_path: Path) -> Iterator[LLM]:
    scheduler = SchedulerConfig(check_every_n_steps=1)
    with LLM(str(smollm2_path), scheduler=scheduler, cache=CacheConfig(kv_bytes=64 << 20)) as one:
        yield one
        assert one.engine.violations == []


PARAMETERS = {
    "type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"],
    "additionalProperties": False,
}  # fmt: skip
TOOLS = [{"type": "function", "function": {"name": name, "parameters": PARAMETERS}}
         for name in ("f", "g")]  # fmt: skip


def test_a_chat_may_call_functions_and_says_what_it_called(llm: LLM) -> None:
    hello = [{"role": "user", "content": "hi"}]
    one = SamplingParams(seed=3, max_tokens=200)

    def called(choice: Any, **options: Any) -> set[str]:
        (done,) = llm.chat(
            hello, one, tools=TOOLS, tool_choice=choice, options=ChatOptions(**options)
        )
        assert done.message is not None
        assert done.message["content"] is None
        calls = done.message["tool_calls"]
        assert all(json.loads(c["function"]["arguments"])["n"] in (1, 2) for c in calls)
        # What was said goes back into the conversation as it is.
        answers = [{"role": "tool", "tool_call_id": c["id"], "content": "5"} for c in calls]
        assert llm.chat(
            [*hello, done.message, *answers], SamplingParams(seed=1, max_tokens=8), tools=TOOLS
        )
        assert len(calls) == 1 or not options
        return {c["function"]["name"] for c in calls}

    assert called("required") <= {"f", "g"}
    assert called("required", parallel_tool_calls=False) <= {"f", "g"}
    named = {"type": "function", "function": {"name": "g"}}
    assert called(named) == {"g"}
    allowed = {"mode": "required", "tools": [named]}
    assert called({"type": "allowed_tools", "allowed_tools": allowed}) == {"g"}


def joined(deltas: Iterable[Any]) -> dict[str, Any]:
    """The message that a stream's deltas make, without the ids of its calls."""
    message: dict[str, Any] = {"role": "assistant", "content": None}
    for delta in deltas:
        for key in ("content", "reasoning_content"):
            if key in delta:
                message[key] = (message.get(key) or "") + delta[key]
        for call in delta.get("tool_calls", ()):
            calls = message.setdefault("tool_calls", [])
            if call["index"] == len(calls):
                assert call["id"].startswith("call_")
                calls.append({"type": call["type"], "function": {**call["function"]}})
            else:
                calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    return message


@pytest.mark.parametrize("choice", ["required", "auto"])
def test_a_streamed_chat_says_the_same_piece_by_piece(llm: LLM, choice: str) -> None:
    hello = [{"role": "user", "content": "hi"}]
    either = Grammar(kind="choice", choices=("a", "b")) if choice == "auto" else None
    for seed in range(4):
        params = SamplingParams(seed=seed, max_tokens=200, grammar=either, n=2)
        done = llm.chat(hello, params, tools=TOOLS, tool_choice=choice)
        outputs = list(llm.stream_chat(hello, params, tools=TOOLS, tool_choice=choice))
        for branch, whole in enumerate(done):
            told = [
                one
                for output in outputs
                for delta, said in zip(output.branches, output.deltas, strict=True)
                for one in (said if delta.branch == branch else ())
            ]
            assert whole.message is not None
            message = {**whole.message}
            if calls := message.get("tool_calls"):
                message["tool_calls"] = [{k: c[k] for k in c if k != "id"} for c in calls]
                assert len(told) > 2 * len(calls)
            assert joined(told) == message


def test_a_chat_beside_a_grammar_is_of_it_or_a_call(llm: LLM) -> None:
    hello = [{"role": "user", "content": "hi"}]
    seen = set()
    for seed in range(12):
        params = SamplingParams(
            seed=seed, max_tokens=200, grammar=Grammar(kind="choice", choices=("a", "b"))
        )
        (done,) = llm.chat(hello, params, tools=TOOLS[:1])
        assert done.message is not None
        seen.add(done.message["content"])
    assert seen == {"a", "b", None}
    (none,) = llm.chat(hello, params, tools=TOOLS, tool_choice="none")
    (plain,) = llm.chat(hello, params)
    assert none == replace(plain, cached_tokens=none.cached_tokens)


def test_the_library_calls_what_a_server_calls(
    llm: LLM, smollm2_path: Path, tmp_path: Path
) -> None:
    ask: list[Any] = [{"role": "user", "content": "How many people live in Bergen?"}]
    named = {"type": "function", "function": {"name": "population_of"}}
    allowed = {"mode": "auto", "tools": [named]}
    ways: list[Any] = [
        "required", named, {"type": "allowed_tools", "allowed_tools": allowed}, "auto", "none"
    ]  # fmt: skip
    schema = {"type": "object", "properties": {"people": {"type": "integer"}}}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    told, bound = [], Grammar(kind="json_schema", text=json.dumps(schema, separators=(",", ":")))
    greedy = SamplingParams(temperature=0, max_tokens=64)
    with (
        running_server(tmp_path, serve_argv(str(smollm2_path), "--kv-memory", "64MiB")) as server,
        server.client() as http,
    ):
        server.wait_ready()
        for way in ways:
            for structure in ({}, {"response_format": form}):
                body = {"messages": ask, "tools": [TOOL], "tool_choice": way, "temperature": 0,
                        "max_tokens": 64, **structure}  # fmt: skip
                answer = http.post("/v1/chat/completions", json=body).json()
                told.append(without_ids(answer["choices"][0]["message"]))
    mine = [
        llm.chat(ask, replace(greedy, grammar=grammar), tools=[TOOL], tool_choice=way)
        for way in ways
        for grammar in (None, bound)
    ]
    assert [without_ids({**one.message, "refusal": None}) for (one,) in mine] == told
    assert all("tool_calls" in message for message in told[:4])


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    calls = [call | {"id": ""} for call in message.get("tool_calls", ())]
    return {**message, "tool_calls": calls} if calls else message


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
