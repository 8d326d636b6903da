"""The real ``anthropic`` SDK in strict mode against ``octavo serve`` with the real model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest

from octavo.testing.processes import ServerProcess, running_server, serve_argv

KEY = "test-key"
ASK: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
OPTIONS: dict[str, Any] = {"model": "claude-sonnet", "messages": ASK, "max_tokens": 32}


@pytest.fixture(scope="module")
def server(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    argv = serve_argv(
        str(smollm2_path), "--api-key", KEY, "--served-model-name", "claude-sonnet",
        "--kv-memory", "256MiB", "--max-model-len", "2048",
    )  # fmt: skip
    with running_server(tmp_path_factory.mktemp("messages"), argv) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        base_url=server.url, api_key=KEY, max_retries=0, _strict_response_validation=True
    ) as sdk:
        yield sdk


def test_the_capital_of_france(client: anthropic.Anthropic) -> None:
    answer = client.messages.create(**OPTIONS, extra_body={"temperature": 0})
    (block,) = answer.content
    assert block.type == "text"
    assert "Paris" in block.text
    assert answer.stop_reason == "end_turn"
    assert answer.model == "claude-sonnet"


def test_a_stream_equals_the_answer(client: anthropic.Anthropic) -> None:
    options: dict[str, Any] = {**OPTIONS, "extra_body": {"seed": 11, "min_p": 0.05}}
    whole = client.messages.create(**options)
    with client.messages.stream(**options) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    (block,) = whole.content
    assert block.type == "text"
    assert text == block.text
    assert [part.type for part in final.content] == ["text"]
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_a_prefill_is_continued(client: anthropic.Anthropic) -> None:
    begun = [*ASK, {"role": "assistant", "content": "The capital of France is"}]
    answer = client.messages.create(
        **{**OPTIONS, "messages": begun, "max_tokens": 3}, extra_body={"temperature": 0}
    )
    (block,) = answer.content
    assert block.type == "text"
    assert block.text.startswith(" Paris")


def test_count_tokens_is_what_a_message_uses(client: anthropic.Anthropic) -> None:
    system = "Answer in one word."
    count = client.messages.count_tokens(model="claude-sonnet", messages=ASK, system=system)
    usage = client.messages.create(**OPTIONS, system=system).usage
    assert count.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_errors_are_the_sdks_own(client: anthropic.Anthropic, server: ServerProcess) -> None:
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(**{**OPTIONS, "model": "claude-opus"})
    with pytest.raises(anthropic.BadRequestError) as bad:
        client.messages.create(**OPTIONS, stop_sequences=["x"] * 20)
    assert "stop_sequences has 20 entries; the limit is 16" in str(bad.value)
    stranger = anthropic.Anthropic(base_url=server.url, api_key="wrong", max_retries=0)
    with stranger, pytest.raises(anthropic.AuthenticationError):
        stranger.messages.create(**OPTIONS)


def test_an_abandoned_stream_frees_its_blocks(
    client: anthropic.Anthropic, server: ServerProcess
) -> None:
    long: dict[str, Any] = {**OPTIONS, "max_tokens": 4000, "extra_body": {"ignore_eos": True}}
    stream = client.messages.create(**long, stream=True)
    next(iter(stream))
    stream.close()
    with httpx.Client(base_url=server.url, headers={"x-api-key": KEY}) as http:
        for _ in range(500):
            if not http.get("/debug/requests").json():
                break
        assert http.get("/debug/requests").json() == {}
        assert http.get("/debug/kv").json()["groups"][0]["tables"] == {}
