"""Values that no request may have, a class each, are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from served import CHAT, COMPLETIONS, Served, check_error, check_place

# -- bad values: a class each ------------------------------------------------------------------

HUGE = 10**30
BAD_NUMBERS: list[tuple[str, Any]] = [
    (name, value)
    for name in ("n", "max_tokens", "min_tokens", "top_k")
    for value in (-2, HUGE, -HUGE, 1.5, False, "1", [1], {"a": 1})
] + [
    (name, value)
    for name in ("temperature", "top_p", "min_p", "presence_penalty", "repetition_penalty",
                 "frequency_penalty")
    for value in (1e308, -1e308, HUGE**20, True, "0.5", [0.5])
] + [("seed", 1.5), ("seed", True), ("seed", HUGE), ("n", 65), ("max_tokens", 0)]  # fmt: skip
BAD_IDS: list[tuple[str, Any]] = [
    ("logit_bias", {"50000": 1}), ("logit_bias", {"-1": 1}), ("logit_bias", {"x": 1}),
    ("logit_bias", {"1": "a"}), ("logit_bias", {"1": 1e9}), ("logit_bias", [1]),
    ("logit_bias", {str(i): 1 for i in range(2000)}), ("logit_bias", {"1": 1, "01": 2}),
    ("stop_token_ids", [49152]), ("stop_token_ids", [-1]), ("stop_token_ids", [True]),
    ("stop_token_ids", ["1"]), ("stop_token_ids", 5), ("stop_token_ids", list(range(1000))),
    ("stop", ["x"] * 10_000), ("stop", ["x"] * 100_000),
    ("stop", [""]), ("stop", ""), ("stop", [1]), ("stop", {"a": 1}),
    ("stop", "x" * 1000), ("stream", "true"), ("stream", 1), ("ignore_eos", "no"),
]  # fmt: skip


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_bad_numbers_and_ids_name_their_field(play: Any, path: str) -> None:
    async def test(here: Served) -> None:
        ask = here.chat if path == CHAT else here.complete
        for name, value in [*BAD_NUMBERS, *BAD_IDS]:
            check_place(await ask(**{name: value}), name)
        assert not here.engine.engine.requests.states

    play(test)


def test_an_integer_is_told_from_what_is_none(play: Any) -> None:
    async def test(here: Served) -> None:
        shown = ("7", '"7"'), (1.5, "a number"), (True, "true or false"), ([7], "a list")
        for value, kind in shown:
            error = check_error(await here.complete(max_tokens=value), 400, "max_tokens")
            assert error["message"] == f"max_tokens must be an integer, not {kind}"
        error = check_error(await here.complete(max_tokens=HUGE), 400, "max_tokens")
        assert "must be between 1 and 1048576, not a number of many" in error["message"]
        name = "truncate_prompt_tokens"
        error = check_error(await here.complete(**{name: HUGE}), 400, name)
        assert error["message"] == f"{name} must be an integer of at most 64 bits"

    play(test)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"logprobs": 2}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_completion_tokens"),
        ({"min_tokens": 9}, "min_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [1]}, "messages[0]"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
         "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [1]}]},
         "messages[0].tool_calls"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ],
)  # fmt: skip
def test_bad_chats(play: Any, body: dict[str, Any], param: str) -> None:
    async def test(here: Served) -> None:
        check_error(await here.chat(**body), 400, param)

    play(test)


@pytest.mark.parametrize(
    "prompt", ["", [], [[]], [""], {"a": 1}, 5, None, [1.5], [True], [-1], [49152], [["a"]], [None]]
)
def test_bad_prompts(play: Any, prompt: Any) -> None:
    async def test(here: Served) -> None:
        check_place(await here.complete(prompt=prompt), "prompt")

    play(test)


def test_odd_but_legal_prompts(play: Any) -> None:
    async def test(here: Served) -> None:
        for prompt in ("\x00", "<|im_end|>", "🎉", " "):
            assert (await here.complete(prompt=prompt)).status_code == 200
        special = here.state.tokenizer.special_tokens["<|im_end|>"]
        spelled = (await here.post("/tokenize", prompt="<|im_end|>")).json()["tokens"]
        assert special not in spelled

    play(test)


def test_too_long_for_the_model_or_the_pool(play: Any) -> None:
    async def test(here: Served) -> None:
        error = check_error(await here.complete(prompt=[5] * 2000), 400, "prompt")
        assert error["code"] == "context_length_exceeded"
        assert "2000" in error["message"]
        assert "1024" in error["message"]
        error = check_error(await here.complete(prompt=[5] * 1000, max_tokens=100), 400)
        assert error["code"] == "context_length_exceeded"
        assert "1100" in error["message"]
        answer = await here.complete(prompt=[5] * 1000, max_tokens=24)
        assert answer.status_code == 200

    play(test)


def test_the_pool_bounds_what_the_model_would_take(play: Any) -> None:
    async def test(here: Served) -> None:
        error = check_error(await here.complete(prompt=[5] * 100), 400)
        assert "KV pool is 64 tokens" in error["message"]
        error = check_error(await here.complete(max_tokens=60, n=4), 400)
        assert error["code"] == "context_length_exceeded"
        assert (await here.chat(max_tokens=None)).json()["choices"][0]["finish_reason"]

    play(test, num_blocks=4)
