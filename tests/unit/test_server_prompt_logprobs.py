"""``prompt_logprobs`` and ``echo`` with ``logprobs``: shapes, streams, prompts and choices."""

from __future__ import annotations

from typing import Any

from octavo.text import spell_words
from served import Served, check_place, events

IDS = [1011, 1012, 1013, 1014, 1015]


def joined(chunks: list[Any], index: int) -> dict[str, Any]:
    """A choice as its chunks make it."""
    whole: dict[str, Any] = {"text": "", "logprobs": {}}
    for chunk in chunks:
        for choice in chunk["choices"]:
            if choice["index"] != index:
                continue
            whole["text"] += choice["text"]
            for key, values in (choice["logprobs"] or {}).items():
                whole["logprobs"].setdefault(key, []).extend(values)
            for key in ("prompt_logprobs", "prompt_token_ids"):
                if key in choice:
                    assert key not in whole
                    whole[key] = choice[key]
    return whole


def test_an_echo_has_the_prompts_logprobs_before_its_own(play: Any) -> None:
    async def test(here: Served) -> None:
        ask = {"prompt": [IDS, [2021, 2022]], "echo": True, "logprobs": 2, "n": 2, "max_tokens": 3}
        whole = (await here.complete(**ask)).json()["choices"]
        *chunks, done = events(await here.complete(**ask, stream=True))
        assert done == "[DONE]"
        for index, choice in enumerate(whole):
            logprobs = choice["logprobs"]
            prompt = IDS if index < 2 else [2021, 2022]
            assert len(logprobs["tokens"]) == len(prompt) + 3
            assert logprobs["token_logprobs"][0] is None
            assert logprobs["top_logprobs"][0] is None
            assert all(isinstance(value, float) for value in logprobs["token_logprobs"][1:])
            assert 2 <= len(logprobs["top_logprobs"][1]) <= 3
            echoed = here.state.tokenizer.decode(prompt)
            assert "".join(logprobs["tokens"][: len(prompt)]) == echoed
            assert choice["text"].startswith(echoed)
            assert "prompt_logprobs" not in choice
            again = joined(chunks, index)
            assert (again["text"], again["logprobs"]) == (choice["text"], logprobs)
        refused = await here.complete(
            echo=True, logprobs=1, use_beam_search=True, best_of=2, temperature=0
        )
        assert refused.json()["error"]["param"] == "echo"

    play(test)


def test_what_is_told_of_a_prompt(play: Any) -> None:
    async def test(here: Served) -> None:
        ask = {"prompt": IDS, "prompt_logprobs": 1, "return_token_ids": True}
        (whole,) = (await here.complete(**ask)).json()["choices"]
        first, *told = whole["prompt_logprobs"]
        assert first is None
        assert [str(token) in entry for token, entry in zip(IDS[1:], told, strict=True)] == [
            True
        ] * 4
        assert set(told[0]["1012"]) == {"logprob", "decoded_token"}
        *chunks, _ = events(await here.complete(**ask, stream=True))
        assert joined(chunks, 0)["prompt_logprobs"] == whole["prompt_logprobs"]
        chat = (await here.chat(prompt_logprobs=0, return_token_ids=True)).json()
        scored = chat["prompt_logprobs"]
        assert [list(entry) for entry in scored[1:]] == [
            [str(token)] for token in chat["prompt_token_ids"][1:]
        ]
        *chunks, _ = events(await here.chat(prompt_logprobs=0, stream=True))
        told = [c["prompt_logprobs"] for chunk in chunks for c in chunk["choices"][:1]
                if "prompt_logprobs" in c]  # fmt: skip
        assert told == [scored]
        assert "prompt_logprobs" not in (await here.chat()).json()
        for bad in (-1, 21, True, "1"):
            refused = await here.complete(prompt_logprobs=bad)
            assert refused.json()["error"]["param"] == "prompt_logprobs"

    play(test)


def test_what_may_be_sampled(play: Any) -> None:
    async def test(here: Served) -> None:
        ask = {"allowed_token_ids": [9, 5, 9], "return_token_ids": True, "max_tokens": 12}
        for body in (await here.complete(**ask), await here.chat(**ask)):
            assert set(body.json()["choices"][0]["token_ids"]) <= {5, 9}
        for field, bad in (
            ("allowed_token_ids", []), ("allowed_token_ids", [1.5]), ("allowed_token_ids", [10**9]),
            ("allowed_token_ids", 5), ("bad_words", [""]), ("bad_words", [1]),
            ("bad_words", ["x"] * 500),
        ):  # fmt: skip
            check_place(await here.chat(**{field: bad}), field)
        runs = spell_words(["no", "never again"], here.state.tokenizer)
        assert (await here.chat(bad_words=["no", "never again"])).is_success
        assert min(map(len, runs)) == 1
        assert max(map(len, runs)) > 1
        spelled = {here.state.tokenizer.decode(run) for run in runs}
        assert spelled == {"no", " no", "never again", " never again"}

    play(test)
