"""Many schemas, the real model, an independent validator: what ends is valid, and most ends."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from json_schemas import Schema, all_schemas
from octavo import LLM, SamplingParams
from octavo.core.request import FinishReason
from octavo.grammar import GrammarCompiler
from octavo.server.structured import schema_grammar
from octavo.worker import token_table

MAX_TOKENS = 512
NUM_DRAWN = 260
SAMPLE = 10  # in a run that is not slow: every tenth schema


def finished(path: Path, schemas: dict[str, Schema]) -> dict[str, str]:
    """Name → text of those that ended within their tokens; what is not valid JSON for its schema
    fails the test. Nothing is tried twice or repaired.
    """
    ended: dict[str, str] = {}
    with LLM(str(path)) as llm:
        asked = [
            f"Fill in this form. Be brief; leave lists empty and optional fields out.\n{schema}"
            for schema in map(json.dumps, schemas.values())
        ]
        prompts = [
            llm.model.chat_template.encode([{"role": "user", "content": text}]) for text in asked
        ]
        params = [
            SamplingParams(
                temperature=0.7,
                top_p=0.95,
                seed=seed,
                max_tokens=MAX_TOKENS,
                grammar=schema_grammar(schema, "response_format"),
            )
            for seed, schema in enumerate(schemas.values())
        ]
        done = llm.generate(prompts, params)
        assert llm.engine.gate.num_held == 0
    for (name, schema), completion in zip(schemas.items(), done, strict=True):
        if completion.finish_reason is FinishReason.LENGTH:
            continue
        assert completion.finish_reason is FinishReason.STOP
        value = json.loads(completion.text)
        validator = jsonschema_rs.validator_for(schema, validate_formats=True)
        errors = [error.message for error in validator.iter_errors(value)]
        assert errors == [], (name, completion.text)
        ended[name] = completion.text
    return ended


def test_a_sample_of_schemas(smollm2_path: Path) -> None:
    schemas = dict(list(all_schemas(NUM_DRAWN).items())[::SAMPLE])
    assert len(finished(smollm2_path, schemas)) >= 0.85 * len(schemas)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_all_schemas(smollm2_path: Path) -> None:
    schemas = all_schemas(NUM_DRAWN)
    assert len(schemas) >= 300
    ended = finished(smollm2_path, schemas)
    late = sorted(schemas.keys() - ended.keys())
    print(f"{len(ended)} of {len(schemas)} ended within {MAX_TOKENS} tokens; not: {late}")  # noqa: T201
    assert len(ended) >= 0.95 * len(schemas)


REFUSED = {
    "uniqueItems": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
    "not": {"not": {"type": "string"}},
    "if": {"if": {"type": "string"}, "then": {"minLength": 2}},
    "contains": {"type": "array", "contains": {"const": 1}},
    "propertyNames": {"type": "object", "propertyNames": {"pattern": "^a"}},
    "dependentRequired": {"type": "object", "dependentRequired": {"a": ["b"]}},
    "strange": {"type": "string", "format": "strange"},
    "oneOf": {"oneOf": [{"type": "integer"}, {"type": "number"}]},
    "unsatisfiable": {"type": "integer", "minimum": 3, "maximum": 2},
}


@pytest.mark.parametrize("word", REFUSED)
def test_what_cannot_be_bound_is_refused_by_name(refusals: Callable[..., str], word: str) -> None:
    """Never ignored: the answer would not be what was asked for."""
    assert word.lower() in refusals(REFUSED[word]).lower()


@pytest.fixture(scope="module")
def refusals(smollm2_text: Any) -> Iterator[Callable[[Schema], str]]:
    compiler = GrammarCompiler(token_table(smollm2_text[1]))

    def refusal(schema: Schema) -> str:
        assert compiler.open(schema_grammar(schema, "response_format")) is None
        while not (ready := compiler.take_ready()):
            time.sleep(0.001)
        return ready[0].error

    yield refusal
    compiler.close()
