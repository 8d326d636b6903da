"""The real SDKs in strict mode: every protocol × streamed or not × what may be asked of an answer.

An answer is brought into one form, whatever said it; a stream's must be the whole one's. A cell
that a protocol does not have is refused by the field's name.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from octavo.testing.processes import serve_argv
from served import KEY

ASK: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
SCHEMA = {
    "type": "object", "properties": {"city": {"enum": ["Oslo", "Paris"]}}, "required": ["city"],
    "additionalProperties": False,
}  # fmt: skip
TOOL = {"name": "weather", "description": "The weather in a city."}
THOUGHT = {"structured_outputs": {"regex": "<think>Hm{1,9}</think>Paris[.!]"}}
Answer = dict[str, Any]


def server_argv(_folder: Path, model: Path) -> list[str]:
    return serve_argv(
        str(model), "--api-key", KEY, "--served-model-name", "m", "--kv-memory", "128MiB",
        "--max-model-len", "1024",
    )  # fmt: skip


# -- each protocol: whole and streamed, in one form ----------------------------------------------


def blank(count: int = 1) -> Answer:
    names = ("text", "reasoning", "finish", "logprobs", "ids", "calls")
    return {name: [[] for _ in range(count)] for name in names}


def joined(answer: Answer) -> Answer:
    for name in ("text", "reasoning", "finish"):
        answer[name] = ["".join(parts) for parts in answer[name]]
    return answer


def chat(sdk: openai.OpenAI, options: dict[str, Any], *, stream: bool) -> Answer:
    options = {"model": "m", "messages": ASK, "seed": 5, "max_tokens": 40, **options}
    answer = blank(options.get("n", 1))
    if stream:
        usage = {"include_usage": True}
        chunks = list(sdk.chat.completions.create(**options, stream=True, stream_options=usage))
        assert chunks[-1].choices == []
        answer["usage"] = chunks[-1].usage
        choices = [(choice, choice.delta) for chunk in chunks for choice in chunk.choices]
    else:
        whole = sdk.chat.completions.create(**options)
        answer["usage"] = whole.usage
        choices = [(choice, choice.message) for choice in whole.choices]
    for choice, said in choices:
        at = choice.index
        answer["text"][at].append(said.content or "")
        answer["reasoning"][at].append((said.model_extra or {}).get("reasoning_content") or "")
        answer["finish"][at].append(choice.finish_reason or "")
        answer["ids"][at] += (choice.model_extra or {}).get("token_ids") or []
        for entry in (choice.logprobs and choice.logprobs.content) or []:
            answer["logprobs"][at].append((entry.token, entry.logprob, len(entry.top_logprobs)))
        for call in said.tool_calls or []:
            if call.function.name:
                answer["calls"][at].append([call.function.name, ""])
            answer["calls"][at][-1][1] += call.function.arguments or ""
    return joined(answer)


def completions(sdk: openai.OpenAI, options: dict[str, Any], *, stream: bool) -> Answer:
    options = {
        "model": "m", "prompt": "The capital of France is", "seed": 5, "max_tokens": 24, **options
    }  # fmt: skip
    answer = blank(options.get("n", 1))
    if stream or options.get("echo"):
        # The SDK's type has no null where the protocol has: for the finish of a chunk that is not
        # the last, and the logprob of a prompt's first token.
        sdk = sdk.copy()
        sdk._strict_response_validation = False
    if stream:
        usage = {"include_usage": True}
        chunks = list(sdk.completions.create(**options, stream=True, stream_options=usage))
        answer["usage"] = chunks[-1].usage
    else:
        chunks = [sdk.completions.create(**options)]
        answer["usage"] = chunks[0].usage
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        at = choice.index
        answer["text"][at].append(choice.text)
        answer["finish"][at].append(choice.finish_reason or "")
        answer["ids"][at] += (choice.model_extra or {}).get("token_ids") or []
        if choice.logprobs is not None:
            found = choice.logprobs
            lists = (found.tokens, found.token_logprobs, found.text_offset)
            answer["logprobs"][at] += zip(*(part or [] for part in lists), strict=True)
    return joined(answer)


def responses(sdk: openai.OpenAI, options: dict[str, Any], *, stream: bool) -> Answer:
    extra = {"seed": 5, **options.pop("extra_body", {})}
    options = {
        "model": "m", "input": ASK, "max_output_tokens": 40, "extra_body": extra, **options
    }  # fmt: skip
    if stream:
        with sdk.responses.stream(**options) as events:
            for _ in events:
                pass
            whole: Any = events.get_final_response()
    else:
        whole = sdk.responses.create(**options)
    answer = blank()
    answer["usage"] = whole.usage
    answer["finish"][0].append(whole.status)
    for item in whole.output:
        if item.type == "function_call":
            answer["calls"][0].append([item.name, item.arguments])
        elif item.type == "reasoning":
            answer["reasoning"][0] += [part.text for part in item.content]
        else:
            answer["text"][0] += [part.text for part in item.content]
            answer["logprobs"][0] += [
                (entry.token, entry.logprob, len(entry.top_logprobs))
                for part in item.content
                for entry in part.logprobs or []
            ]
    return joined(answer)


def messages(claude: anthropic.Anthropic, options: dict[str, Any], *, stream: bool) -> Answer:
    extra = {"seed": 5, **options.pop("extra_body", {})}
    options = {"model": "m", "messages": ASK, "max_tokens": 40, "extra_body": extra, **options}
    if stream:
        with claude.messages.stream(**options) as events:
            whole: Any = events.get_final_message()
    else:
        whole = claude.messages.create(**options)
    answer = blank()
    answer["usage"] = whole.usage
    answer["finish"][0].append(whole.stop_reason)
    for block in whole.content:
        if block.type == "tool_use":
            answer["calls"][0].append([block.name, json.dumps(block.input)])
        elif block.type == "thinking":
            answer["reasoning"][0].append(block.thinking)
        else:
            answer["text"][0].append(block.text)
    return joined(answer)


# -- what may be asked, how each protocol says it, and what the answer must be --------------------

FORMAT = {"type": "json_schema", "json_schema": {"name": "c", "schema": SCHEMA, "strict": True}}
FLAT = {"type": "json_schema", "name": "c", "schema": SCHEMA, "strict": True}
ONE = {"disable_parallel_tool_use": True}
SAYS: dict[str, dict[str, dict[str, Any]]] = {
    "chat": {
        "plain": {},
        "n": {"n": 3},
        "logprobs": {"logprobs": True, "top_logprobs": 2},
        "ids": {"extra_body": {"return_token_ids": True}},
        "tools": {
            "tools": [{"type": "function", "function": {**TOOL, "parameters": SCHEMA}}],
            "tool_choice": "required", "parallel_tool_calls": False,
        },
        "json_schema": {"response_format": FORMAT},
        "reasoning": {"extra_body": THOUGHT, "reasoning_effort": "low"},
    },
    "completions": {
        "plain": {},
        "n": {"n": 3},
        "logprobs": {"logprobs": 2},
        "echo": {"echo": True, "logprobs": 1},
        "ids": {"prompt": [504, 3575, 282, 4649], "extra_body": {"return_token_ids": True}},
        "json_schema": {"extra_body": {"structured_outputs": {"json": SCHEMA}}},
    },
    "responses": {
        "plain": {},
        "logprobs": {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
        "tools": {
            "tools": [{"type": "function", **TOOL, "parameters": SCHEMA, "strict": True}],
            "tool_choice": "required", "parallel_tool_calls": False,
        },
        "json_schema": {"text": {"format": FLAT}},
        "reasoning": {"extra_body": THOUGHT, "reasoning": {"effort": "low"}},
    },
    "messages": {
        "plain": {},
        "tools": {
            "tools": [{**TOOL, "input_schema": SCHEMA}], "tool_choice": {"type": "any", **ONE},
        },
        "json_schema": {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        "reasoning": {"extra_body": THOUGHT, "thinking": {"type": "adaptive"}},
    },
}  # fmt: skip
ASKERS: dict[str, Callable[..., Answer]] = {
    "chat": chat, "completions": completions, "responses": responses, "messages": messages
}  # fmt: skip
MISSING = [
    ("chat", "echo", {"echo": True}), ("completions", "tools", {"tools": []}),
    ("responses", "n", {"n": 2}), ("responses", "echo", {"echo": True}),
    ("responses", "return_token_ids", {"return_token_ids": True}), ("messages", "n", {"n": 2}),
    ("messages", "logprobs", {"logprobs": True}), ("messages", "echo", {"echo": True}),
    ("messages", "return_token_ids", {"return_token_ids": True}),
]  # fmt: skip
CELLS = [
    pytest.param(protocol, feature, id=f"{protocol}-{feature}")
    for protocol, features in SAYS.items()
    for feature in features
]


def check(protocol: str, feature: str, answer: Answer) -> None:
    texts, ids, logprobs = answer["text"], answer["ids"], answer["logprobs"]
    if feature == "n":
        assert len(texts) == 3
        assert all(texts)
        assert len(set(texts)) > 1
    elif feature == "logprobs":
        assert len(logprobs[0]) > 3
        assert all(entry[1] <= 0 for entry in logprobs[0])
    elif feature == "echo":
        assert texts[0].startswith("The capital of France is")
        assert "".join(entry[0] for entry in logprobs[0]) == texts[0]
        assert [entry[1] is None for entry in logprobs[0][:3]] == [True, False, False]
    elif feature == "ids":
        assert len(ids[0]) == answer["usage"].completion_tokens
    elif feature == "tools":
        ((name, arguments),) = answer["calls"][0]
        assert name == "weather"
        assert json.loads(arguments)["city"] in ("Oslo", "Paris")
        assert answer["finish"] == [
            {"chat": "tool_calls", "responses": "completed", "messages": "tool_use"}[protocol]
        ]
    elif feature == "json_schema":
        assert json.loads(texts[0])["city"] in ("Oslo", "Paris")
    elif feature == "reasoning":
        assert answer["reasoning"][0].startswith("Hm")
        assert texts[0].startswith("Paris")
        assert "think" not in texts[0] + answer["reasoning"][0]
    else:
        assert texts[0]


def counts(usage: Any) -> tuple[int, ...]:
    """Tokens out, and of them those of the reasoning."""
    told = usage.model_dump()
    out = told.get("completion_tokens") or told.get("output_tokens")
    details = told.get("completion_tokens_details") or told.get("output_tokens_details") or {}
    return out, details.get("reasoning_tokens") or details.get("thinking_tokens") or 0


@pytest.mark.parametrize(("protocol", "feature"), CELLS)
def test_a_cell(
    sdk: openai.OpenAI, claude: anthropic.Anthropic, protocol: str, feature: str
) -> None:
    client = claude if protocol == "messages" else sdk
    whole, streamed = (
        ASKERS[protocol](client, dict(SAYS[protocol][feature]), stream=stream)
        for stream in (False, True)
    )
    check(protocol, feature, whole)
    usages = [counts(answer.pop("usage")) for answer in (whole, streamed)]
    assert streamed == whole
    assert usages[0] == usages[1]
    assert (usages[0][1] > 0) == (feature == "reasoning")


@pytest.mark.parametrize(("protocol", "field", "body"), MISSING)
@pytest.mark.parametrize("stream", [False, True])
def test_a_cell_that_a_protocol_lacks(
    sdk: openai.OpenAI,
    claude: anthropic.Anthropic,
    protocol: str,
    field: str,
    body: dict,
    stream: bool,
) -> None:
    client = claude if protocol == "messages" else sdk
    with pytest.raises((openai.BadRequestError, anthropic.BadRequestError), match=field):
        ASKERS[protocol](client, {"extra_body": body}, stream=stream)


def test_a_background_stream_is_read_again(sdk: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": "m", "input": ASK, "max_output_tokens": 24}
    events = list(sdk.responses.create(**options, background=True, stream=True))
    last = events[-1]
    assert last.type in ("response.completed", "response.incomplete")
    again = list(sdk.responses.retrieve(last.response.id, stream=True, starting_after=4))
    assert again == events[5:]
    assert sdk.responses.retrieve(last.response.id).output == last.response.output
    (item,) = sdk.responses.input_items.list(last.response.id)
    assert item.type == "message"
    assert item.role == "user"
