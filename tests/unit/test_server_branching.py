"""``best_of`` over HTTP: chosen among the very branches that ``n`` gives; refusals by name."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from served import Served, served


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
