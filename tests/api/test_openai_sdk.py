"""The real ``openai`` SDK against ``octavo serve`` with the real default model."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from octavo.testing.processes import ServerProcess, serve_argv, wait_gone
from served import KEY

ASK: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]


def server_argv(_folder: Path, model: Path) -> list[str]:
    return serve_argv(
        str(model), "--api-key", KEY, "--served-model-name", "gpt-4o", "--kv-memory", "256MiB",
        "--max-model-len", "2048",
    )  # fmt: skip


def test_the_capital_of_france(sdk: openai.OpenAI) -> None:
    answer = sdk.chat.completions.create(model="gpt-4o", messages=ASK, temperature=0, max_tokens=40)
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer._request_id


def test_a_stream_equals_the_answer(sdk: openai.OpenAI) -> None:
    options: dict[str, Any] = {
        "model": "gpt-4o", "messages": ASK, "seed": 11, "max_tokens": 24, "n": 2,
        "logprobs": True, "top_logprobs": 3,
    }  # fmt: skip
    whole = sdk.chat.completions.create(**options)
    texts, finishes, usage = ["", ""], ["", ""], None
    for chunk in sdk.chat.completions.create(
        **options, stream=True, stream_options={"include_usage": True}
    ):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            finishes[choice.index] += choice.finish_reason or ""
    assert texts == [choice.message.content for choice in whole.choices]
    assert finishes == [choice.finish_reason for choice in whole.choices]
    assert usage is not None
    assert whole.usage is not None
    assert usage.completion_tokens == whole.usage.completion_tokens
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    first = logprobs.content[0]
    assert len(first.top_logprobs) == 3
    assert first.top_logprobs[0].logprob >= first.logprob
    assert bytes(first.bytes or []).decode() == first.token


def test_completions(sdk: openai.OpenAI) -> None:
    answer = sdk.completions.create(
        model="gpt-4o", prompt=["The capital of France is", "One, two, three,"], max_tokens=4,
        temperature=0, logprobs=2, stop=["\n"],
    )  # fmt: skip
    assert "Paris" in answer.choices[0].text
    assert "four" in answer.choices[1].text
    assert answer.choices[0].logprobs is not None


def test_a_response_and_its_stream(sdk: openai.OpenAI) -> None:
    options: dict[str, Any] = {
        "model": "gpt-4o", "input": "What is the capital of France?", "max_output_tokens": 24,
        "temperature": 0,
    }  # fmt: skip
    whole = sdk.responses.create(
        **options, include=["message.output_text.logprobs"], top_logprobs=2
    )
    with sdk.responses.stream(**options) as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == whole.output_text == final.output_text != ""
    assert final.status == whole.status
    assert whole.usage is not None
    count = sdk.responses.input_tokens.count(model="gpt-4o", input=options["input"])
    assert count.input_tokens == whole.usage.input_tokens


def test_a_conversation_of_responses(sdk: openai.OpenAI) -> None:
    first = sdk.responses.create(
        model="gpt-4o", input="My name is Ada.", temperature=0, max_output_tokens=16
    )
    second = sdk.responses.create(
        model="gpt-4o", input="What is my name?", previous_response_id=first.id, temperature=0,
        max_output_tokens=16,
    )  # fmt: skip
    turns: list[Any] = [
        {"role": "user", "content": "My name is Ada."},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "What is my name?"},
    ]
    chat = sdk.chat.completions.create(model="gpt-4o", messages=turns, temperature=0, max_tokens=16)
    assert second.output_text == chat.choices[0].message.content
    assert sdk.responses.retrieve(first.id).output_text == first.output_text
    sdk.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        sdk.responses.retrieve(first.id)
    long = sdk.responses.create(
        model="gpt-4o", input="Tell me a tale.", background=True, extra_body={"ignore_eos": True}
    )
    assert sdk.responses.cancel(long.id).status == "cancelled"


def test_a_second_request_reads_the_prefix_cache(sdk: openai.OpenAI) -> None:
    long: list[Any] = [{"role": "user", "content": "Tell me a tale. " * 40}]
    options: dict[str, Any] = {"model": "gpt-4o", "messages": long, "temperature": 0}
    cold = sdk.chat.completions.create(**options, max_tokens=8)
    warm = sdk.chat.completions.create(**options, max_tokens=8)
    assert warm.choices[0].message.content == cold.choices[0].message.content
    assert warm.usage is not None
    assert warm.usage.prompt_tokens_details is not None
    assert (warm.usage.prompt_tokens_details.cached_tokens or 0) > 100


WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Paris"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "get_weather"}}]
)
def test_a_function_that_must_be_called(sdk: openai.OpenAI, choice: Any) -> None:
    options: dict[str, Any] = {
        "model": "gpt-4o", "messages": ASK, "tools": [WEATHER], "tool_choice": choice, "seed": 5,
        "parallel_tool_calls": False, "max_tokens": 60,
    }  # fmt: skip
    done = sdk.chat.completions.create(**options).choices[0]
    assert done.finish_reason == "tool_calls"
    assert done.message.content is None
    (call,) = done.message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments)["city"] in ("Oslo", "Paris")
    name, arguments, finish = "", "", None
    for chunk in sdk.chat.completions.create(**options, stream=True):
        (choice_,) = chunk.choices
        finish = choice_.finish_reason or finish
        assert not choice_.delta.content
        for piece in choice_.delta.tool_calls or []:
            assert piece.function is not None
            name += piece.function.name or ""
            arguments += piece.function.arguments or ""
    assert (name, arguments, finish) == ("get_weather", call.function.arguments, "tool_calls")
    # The answer of the function goes back, and the model goes on from it.
    talk = [
        *ASK, done.message.model_dump(include={"role", "content", "tool_calls"}),
        {"role": "tool", "tool_call_id": call.id, "content": "Rain."},
    ]  # fmt: skip
    after = sdk.chat.completions.create(model="gpt-4o", messages=talk, max_tokens=8)
    assert after.choices[0].message.content


def test_a_structured_answer(sdk: openai.OpenAI) -> None:
    schema = WEATHER["function"]["parameters"]
    done = sdk.chat.completions.create(
        model="gpt-4o", messages=ASK, max_tokens=60, seed=3,
        response_format={
            "type": "json_schema", "json_schema": {"name": "w", "schema": schema, "strict": True}
        },
    )  # fmt: skip
    assert done.choices[0].finish_reason == "stop"
    assert json.loads(done.choices[0].message.content or "")["city"] in ("Oslo", "Paris")


def test_models(sdk: openai.OpenAI, smollm2_path: Path) -> None:
    names = [model.id for model in sdk.models.list()]
    assert names == [smollm2_path.stem, "gpt-4o"]
    assert sdk.models.retrieve("gpt-4o").owned_by == "octavo"


def test_errors_are_the_sdks_own(sdk: openai.OpenAI, server: ServerProcess) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        sdk.chat.completions.create(model="gpt-5", messages=ASK)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        sdk.chat.completions.create(model="gpt-4o", messages=ASK, temperature=-1)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        sdk.completions.create(model="gpt-4o", prompt="word " * 5000)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as tools:
        sdk.chat.completions.create(
            model="gpt-4o", messages=ASK, tools=[{"type": "function", "function": {"name": "f g"}}]
        )
    assert tools.value.param == "tools[0].function.name"
    stranger = openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0)
    with stranger, pytest.raises(openai.AuthenticationError):
        stranger.models.list()


def test_an_abandoned_stream_frees_its_blocks(sdk: openai.OpenAI, server: ServerProcess) -> None:
    stream = sdk.chat.completions.create(
        model="gpt-4o", messages=ASK, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    with httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {KEY}"}) as http:
        for _ in range(500):
            if not http.get("/debug/requests").json():
                break
        assert http.get("/debug/requests").json() == {}
        kv = http.get("/debug/kv").json()
        assert kv["groups"][0]["tables"] == {}


def test_the_start_prints_what_an_operator_wants(server: ServerProcess) -> None:
    output = server.output
    for text in ("pack weights", "is ready", server.url, "gpt-4o", "KV pool", "tokens",
                 "256 MiB", "curl "):  # fmt: skip
        assert text in output
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    assert int(status.partition("VmRSS:")[2].split()[0]) < 20 * 1024


def test_an_engine_death_changes_no_token(sdk: openai.OpenAI, server: ServerProcess) -> None:
    options: dict[str, Any] = {
        "model": "gpt-4o", "messages": ASK, "seed": 5, "max_tokens": 80, "logprobs": True,
        "stream": True, "extra_body": {"ignore_eos": True},
    }  # fmt: skip

    def play(*, kill: bool) -> list[Any]:
        pieces: list[Any] = []
        for chunk in sdk.chat.completions.create(**options):
            for choice in chunk.choices:
                if choice.logprobs is not None:
                    pieces += [(t.token, t.logprob) for t in choice.logprobs.content or []]
            if kill and len(pieces) == 20:
                server.kill_child("engine_process")
        return pieces

    calm = play(kill=False)
    assert len(calm) == 80
    assert play(kill=True) == calm
    assert "the engine process ended (code -9)" in server.output


def test_ctrl_c_drains_and_leaves_nothing(server: ServerProcess, sdk: openai.OpenAI) -> None:
    """Last: it ends the module's server."""
    children = set(server.children.values())
    stream = sdk.chat.completions.create(
        model="gpt-4o", messages=ASK, stream=True, max_tokens=60, extra_body={"ignore_eos": True}
    )
    chunks = iter(stream)
    next(chunks)
    server.process.send_signal(signal.SIGINT)
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons[-1] == "length"
    assert server.process.wait(30) == 0
    wait_gone(children)
    assert server.output.splitlines()[-1] == "stopped; nothing was lost"
