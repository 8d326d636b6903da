"""``best_of`` and beam search over HTTP: what is chosen, and refusals by name."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from served import Served, served

BEAM = {"use_beam_search": True, "best_of": 4}


def play(text: Any, test: Any, **engine: Any) -> None:
    async def main() -> None:
        async with served(text, **engine) as here:
            await test(here)

    asyncio.run(main())


def refused(response: Any, param: str) -> str:
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param), error
    return str(error["message"])


def mean(choice: dict[str, Any]) -> float:
    content = choice["logprobs"]["content"]
    return sum(entry["logprob"] for entry in content) / len(content)


def test_best_of_chooses_among_the_branches_of_n(smollm2_text: Any) -> None:
    async def test(here: Served) -> None:
        every = (await here.chat(n=5, logprobs=True)).json()
        body = (await here.chat(n=2, best_of=5)).json()
        ranked = sorted(every["choices"], key=mean, reverse=True)
        assert [c["message"] for c in body["choices"]] == [c["message"] for c in ranked[:2]]
        assert [c["index"] for c in body["choices"]] == [0, 1]
        assert all(choice["logprobs"] is None for choice in body["choices"])
        assert body["usage"]["completion_tokens"] == every["usage"]["completion_tokens"]
        shown = (await here.chat(best_of=5, logprobs=True)).json()["choices"]
        assert [mean(choice) for choice in shown] == [mean(ranked[0])]

    play(smollm2_text, test)


def test_best_of_per_prompt(smollm2_text: Any) -> None:
    async def test(here: Served) -> None:
        body = (await here.complete(prompt=["a", "b"], n=1, best_of=3)).json()
        alone = [(await here.complete(prompt=p, n=1, best_of=3)).json() for p in ("a", "b")]
        assert [c["index"] for c in body["choices"]] == [0, 1]
        assert [c["text"] for c in body["choices"]] == [a["choices"][0]["text"] for a in alone]

    play(smollm2_text, test)


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"n": 3, "best_of": 2}, "best_of", "best_of (2) is less than n (3)"),
        ({"best_of": 200}, "best_of", "between 1 and 128"),
        ({"best_of": 100}, "best_of", "at most"),
        ({"best_of": 0}, "best_of", "between 1 and 128"),
        ({"best_of": 1.5}, "best_of", "integer"),
        ({"best_of": True}, "best_of", "integer"),
        ({"best_of": "2"}, "best_of", "integer"),
        ({"best_of": 2, "stream": True}, "stream", "cannot be streamed"),
        ({"use_beam_search": 1}, "use_beam_search", "true or false"),
        ({**BEAM, "n": 5}, "best_of", "best_of (4) is less than n (5)"),
        ({**BEAM, "best_of": 65}, "best_of", "is 65; it must be between 2 and 64"),
        ({"use_beam_search": True}, "best_of", "(best_of, else n) is 1; it must be between 2"),
        ({**BEAM, "temperature": 0.5}, "temperature", "temperature 0.5 has no meaning"),
        ({**BEAM, "top_p": 0.5}, "top_p", "it must be 1"),
        ({**BEAM, "top_k": 3}, "top_k", "it must be 0"),
        ({**BEAM, "presence_penalty": 1}, "presence_penalty", "it must be 0"),
        ({**BEAM, "logit_bias": {"1": 1}}, "logit_bias", "leave it out"),
        ({**BEAM, "stop": "x"}, "stop", "leave it out"),
        ({**BEAM, "stream": True}, "stream", "cannot be streamed"),
        ({**BEAM, "structured_outputs": {"regex": "a"}}, "structured_outputs.regex", "leave one"),
        ({**BEAM, "length_penalty": 11}, "length_penalty", "between -10 and 10"),
        ({**BEAM, "length_penalty": "1"}, "length_penalty", "number"),
        ({**BEAM, "early_stopping": "ever"}, "early_stopping", "one of true, false, never, not"),
        ({**BEAM, "early_stopping": 2}, "early_stopping", "one of true, false, never, not"),
        ({"length_penalty": 2}, "length_penalty", "needs use_beam_search"),
        ({"early_stopping": True}, "early_stopping", "needs use_beam_search"),
    ],
)
def test_impossible_fields_are_refused_by_name(
    smollm2_text: Any, fields: dict[str, Any], param: str, said: str
) -> None:
    async def test(here: Served) -> None:
        for ask in (here.chat, here.complete):
            assert said in refused(await ask(**fields), param)
        assert here.engine.engine is not None
        assert here.engine.engine.stats().counters["requests"] == 0

    play(smollm2_text, test)


def test_too_many_choices_over_all_prompts(smollm2_text: Any) -> None:
    async def test(here: Served) -> None:
        message = refused(await here.complete(prompt=["x"] * 40, best_of=4), "best_of")
        assert "40 prompts with best_of = 4 make 160 choices; the limit is 128" in message

    play(smollm2_text, test)


def test_beam_search_gives_the_best_and_a_seed_changes_nothing(smollm2_text: Any) -> None:
    async def test(here: Served) -> None:
        for ask in (here.chat, here.complete):
            body = (await ask(**BEAM, n=3, logprobs=1 if ask == here.complete else True)).json()
            again = (await ask(**BEAM, n=3, seed=77)).json()
            assert [c["index"] for c in body["choices"]] == [0, 1, 2]
            texts = [c.get("text") or c["message"]["content"] for c in body["choices"]]
            assert texts == [c.get("text") or c["message"]["content"] for c in again["choices"]]
            assert len(set(texts)) == 3
            assert body["usage"]["completion_tokens"] == 15
        assert here.engine.engine is not None
        assert here.engine.engine.stats().counters["beam_steps"] == 20

    play(smollm2_text, test)


def test_a_pool_too_small_for_the_width_is_said_with_both_numbers(smollm2_text: Any) -> None:
    async def test(here: Served) -> None:
        message = refused(await here.complete(**BEAM, max_tokens=100), "max_tokens")
        assert "needs up to" in message
        assert "best_of 4); the pool has 16 blocks" in message

    play(smollm2_text, test, num_blocks=16)
