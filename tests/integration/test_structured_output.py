"""Structured output of the real model: valid, and the same whatever the schedule."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo import LLM, SamplingParams
from octavo.config import CacheConfig, SchedulerConfig
from octavo.core.grammar import Grammar
from octavo.errors import InvalidRequestError

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
GRAMMARS = [
    Grammar(kind="json_schema", text=json.dumps(PERSON)),
    Grammar(kind="regex", text=r"\d{4}-\d{2}-\d{2}"),
    Grammar(kind="choice", choices=("yes", "no", "perhaps")),
    Grammar(kind="lark", text='start: "(" start ")" | /[a-z]{1,4}/'),
    None,
]
PROMPT = "Describe a person who lives by the sea, as data: "


def params(index: int, *, n: int = 1) -> SamplingParams:
    return SamplingParams(
        temperature=index % 2, seed=index, n=n, max_tokens=48, logprobs=2, grammar=GRAMMARS[index]
    )


def make(path: Path, **scheduler) -> LLM:
    return LLM(
        str(path),
        scheduler=SchedulerConfig(policy="optimistic", check_every_n_steps=1, **scheduler),
        cache=CacheConfig(num_blocks=scheduler.pop("num_blocks", 256)),
    )


@pytest.fixture(scope="module")
def llm(smollm2_path: Path) -> Iterator[LLM]:
    with make(smollm2_path) as llm:
        yield llm


def test_what_ends_is_valid(llm: LLM) -> None:
    done = [llm.generate(PROMPT, params(i, n=3)) for i in range(4)]
    assert {c.finish_reason.value for c in [*done[0], *done[1], *done[2]]} == {"stop"}
    for completion in done[0]:
        value = json.loads(completion.text)
        assert set(value) == set(PERSON["properties"])
        assert 0 <= value["age"] <= 120
        assert set(value["tags"]) <= {"a", "b"}
    assert all(re.fullmatch(r"\d{4}-\d{2}-\d{2}", c.text) for c in done[1])
    assert all(c.text in GRAMMARS[2].choices for c in done[2])
    # Nothing that is not text slips in.
    assert all("<|" not in c.text for each in done for c in each)


def test_together_chunked_and_preempted_is_as_alone(llm: LLM, smollm2_path: Path) -> None:
    prompts = [f"{PROMPT}{i} " * 4 for i in range(5)]
    alone = [llm.generate(p, params(i)) for i, p in enumerate(prompts)]
    with LLM(
        str(smollm2_path),
        scheduler=SchedulerConfig(
            policy="optimistic", check_every_n_steps=1, max_num_batched_tokens=24
        ),
        cache=CacheConfig(num_blocks=12),
    ) as crowded:
        together = crowded.generate(prompts, [params(i) for i in range(5)])
        counters = crowded.stats().counters
        assert crowded.engine.violations == []
    assert counters["preemptions"] > 0
    assert counters["mixed_steps"] > 0
    assert [(c.token_ids, c.logprobs, c.text) for c in together] == [
        (c.token_ids, c.logprobs, c.text) for each in alone for c in each
    ]


def test_a_bad_grammar_is_named_and_the_model_goes_on(llm: LLM) -> None:
    bad = SamplingParams(grammar=Grammar(kind="regex", text="(a", field="structured_outputs.regex"))
    with pytest.raises(InvalidRequestError) as caught:
        llm.generate(PROMPT, bad)
    assert caught.value.param == "structured_outputs.regex"
    assert llm.generate(PROMPT, params(2))[0].text in GRAMMARS[2].choices
    assert llm.engine.gate.num_held == 0
