"""The real ``anthropic`` SDK in strict mode against ``octavo serve`` with the real model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest

from octavo.testing.processes import ServerProcess, serve_argv
from served import KEY

ASK: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
OPTIONS: dict[str, Any] = {"model": "claude-sonnet", "messages": ASK, "max_tokens": 32}


def server_argv(_folder: Path, model: Path) -> list[str]:
    return serve_argv(
        str(model), "--api-key", KEY, "--served-model-name", "claude-sonnet", "--kv-memory",
        "256MiB", "--max-model-len", "2048",
    )  # fmt: skip


def test_the_capital_of_france(claude: anthropic.Anthropic) -> None:
    answer = claude.messages.create(**OPTIONS, extra_body={"temperature": 0})
    (block,) = answer.content
    assert block.type == "text"
    assert "Paris" in block.text
    assert answer.stop_reason == "end_turn"
    assert answer.model == "claude-sonnet"


def test_a_stream_equals_the_answer(claude: anthropic.Anthropic) -> None:
    options: dict[str, Any] = {**OPTIONS, "extra_body": {"seed": 11, "min_p": 0.05}}
    whole = claude.messages.create(**options)
    with claude.messages.stream(**options) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    (block,) = whole.content
    assert block.type == "text"
    assert text == block.text
    assert [part.type for part in final.content] == ["text"]
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_a_prefill_is_continued(claude: anthropic.Anthropic) -> None:
    begun = [*ASK, {"role": "assistant", "content": "The capital of France is"}]
    answer = claude.messages.create(
        **{**OPTIONS, "messages": begun, "max_tokens": 3}, extra_body={"temperature": 0}
    )
    (block,) = answer.content
    assert block.type == "text"
    assert block.text.startswith(" Paris")


def test_count_tokens_is_what_a_message_uses(claude: anthropic.Anthropic) -> None:
    system = "Answer in one word."
    count = claude.messages.count_tokens(model="claude-sonnet", messages=ASK, system=system)
    usage = claude.messages.create(**OPTIONS, system=system).usage
    assert count.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_errors_are_the_sdks_own(claude: anthropic.Anthropic, server: ServerProcess) -> None:
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.create(**{**OPTIONS, "model": "claude-opus"})
    with pytest.raises(anthropic.BadRequestError) as bad:
        claude.messages.create(**OPTIONS, stop_sequences=["x"] * 20)
    assert "stop_sequences has 20 entries; the limit is 16" in str(bad.value)
    stranger = anthropic.Anthropic(base_url=server.url, api_key="wrong", max_retries=0)
    with stranger, pytest.raises(anthropic.AuthenticationError):
        stranger.messages.create(**OPTIONS)


def test_an_abandoned_stream_frees_its_blocks(
    claude: anthropic.Anthropic, server: ServerProcess
) -> None:
    long: dict[str, Any] = {**OPTIONS, "max_tokens": 4000, "extra_body": {"ignore_eos": True}}
    stream = claude.messages.create(**long, stream=True)
    next(iter(stream))
    stream.close()
    with httpx.Client(base_url=server.url, headers={"x-api-key": KEY}) as http:
        for _ in range(500):
            if not http.get("/debug/requests").json():
                break
        assert http.get("/debug/requests").json() == {}
        assert http.get("/debug/kv").json()["groups"][0]["tables"] == {}
