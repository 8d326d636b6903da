"""Embeddings, scores and scored labels over HTTP: shapes, usage, limits, cancelling."""

from __future__ import annotations

import asyncio
import base64
import math
import struct
from typing import Any

import pytest

from served import HELLO, QUESTIONS, Served, check_error, check_place

EMBEDDINGS, SCORE, SYSTEMONE = "/v1/embeddings", "/v1/score", "/v1/systemone"


@pytest.mark.parametrize(
    ("given", "count"),
    [("Hello there.", 1), (["Hello", "there"], 2), ([5, 6, 7], 1), ([[5, 6], [7]], 2)],
)
def test_an_embedding_for_each_input(play: Any, given: Any, count: int) -> None:
    async def test(here: Served) -> None:
        body = (await here.post(EMBEDDINGS, input=given)).json()
        assert (body["object"], body["model"]) == ("list", "tiny")
        assert [item["index"] for item in body["data"]] == list(range(count))
        for item in body["data"]:
            assert item["object"] == "embedding"
            assert math.hypot(*item["embedding"]) == pytest.approx(1, abs=1e-6)
        assert body["usage"]["prompt_tokens"] == body["usage"]["total_tokens"] >= count
        packed = (await here.post(EMBEDDINGS, input=given, encoding_format="base64")).json()
        for item, plain in zip(packed["data"], body["data"], strict=True):
            values = struct.unpack("<2f", base64.b64decode(item["embedding"]))
            assert list(values) == plain["embedding"]
        [short, *_] = (await here.post(EMBEDDINGS, input=given, dimensions=1)).json()["data"]
        assert short["embedding"] == [1.0]

    play(test)


def test_a_text_that_is_known_is_read_from_the_cache(play: Any) -> None:
    async def test(here: Served) -> None:
        details = []
        for _ in range(2):
            body = (await here.post(EMBEDDINGS, input="Hello there." * 30)).json()
            details.append(body["usage"]["prompt_tokens_details"]["cached_tokens"])
        assert details[0] == 0
        assert details[1] == (body["usage"]["prompt_tokens"] - 1) // 16 * 16 > 0

    play(test)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"), ({"input": ""}, "input"), ({"input": []}, "input"), ({"input": 5}, "input"),
        ({"input": ["a", ""]}, "input"), ({"input": [[1], [1.5]]}, "input"),
        ({"input": [1, 99999]}, "input"), ({"input": ["a"] * 129}, "input"),
        ({"input": [7] * 1024}, "input"), ({"input": "a", "encoding_format": "int8"},
         "encoding_format"), ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": 3}, "dimensions"),
        ({"input": "a", "priority": 5}, "priority"),
    ],
)  # fmt: skip
def test_senseless_inputs_are_refused(play: Any, body: dict[str, Any], param: str) -> None:
    async def test(here: Served) -> None:
        check_place(await here.post(EMBEDDINGS, **body), param)

    play(test)


def test_a_score_is_the_cosine_of_two_embeddings(play: Any) -> None:
    async def test(here: Served) -> None:
        texts = ["Hello there.", "Good day.", "It rains."]
        data = (await here.post(EMBEDDINGS, input=texts)).json()["data"]
        vectors = [item["embedding"] for item in data]

        def cosine(a: int, b: int) -> Any:
            pairs = zip(vectors[a], vectors[b], strict=True)
            return pytest.approx(sum(x * y for x, y in pairs), abs=1e-6)

        body = (await here.post(SCORE, text_1=texts[0], text_2=texts)).json()
        assert [item["index"] for item in body["data"]] == [0, 1, 2]
        assert [item["score"] for item in body["data"]] == [cosine(0, i) for i in range(3)]
        body = (await here.post(SCORE, text_1=texts[:2], text_2=texts[1:])).json()
        assert [item["score"] for item in body["data"]] == [cosine(0, 1), cosine(1, 2)]
        check_error(await here.post(SCORE, text_1=["a", "b"], text_2="c"), 400, "text_1")
        check_error(await here.post(SCORE, text_1="a"), 400, "text_2")
        check_error(await here.post(SCORE, text_1="a", text_2=["b"] * 128), 400, "text_2")

    play(test)


@pytest.mark.parametrize("state", ["It rains.", HELLO])
def test_questions_on_one_state(play: Any, state: Any) -> None:
    async def test(here: Served) -> None:
        questions = [*QUESTIONS, {"question": " Why?", "labels": [" because", " who knows", " ."]}]
        body = (await here.post(SYSTEMONE, state=state, questions=questions)).json()
        assert body["object"] == "systemone"
        for index, (answer, question) in enumerate(zip(body["answers"], questions, strict=True)):
            assert answer["index"] == index
            assert [item["label"] for item in answer["labels"]] == question["labels"]
            best = max(answer["labels"], key=lambda item: item["logprob"])
            assert answer["label"] == best["label"]
            assert sum(item["probability"] for item in answer["labels"]) == pytest.approx(1)
        counted = sum(i["num_tokens"] for a in body["answers"] for i in a["labels"])
        assert body["usage"]["completion_tokens"] == counted > 5

    play(test)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"state": None}, "state"), ({"state": 5}, "state"), ({"state": "", "questions": [
            {"question": "", "labels": ["a"]}]}, "state"), ({"state": "a" * 9000}, "state"),
        ({"questions": []}, "questions"), ({"questions": "?"}, "questions"),
        ({"questions": [5]}, "questions[0]"),
        ({"questions": [{"question": "?", "labels": ["a"], "more": 1}]}, "questions[0].more"),
        ({"questions": [{"labels": ["a"]}]}, "questions[0].question"),
        ({"questions": [*QUESTIONS, {"question": "?"}]}, "questions[1].labels"),
        ({"questions": [{"question": "?", "labels": ["a", "a"]}]}, "questions[0].labels"),
        ({"questions": [{"question": "?", "labels": ["a", ""]}]}, "questions[0].labels[1]"),
        ({"questions": [{"question": "?", "labels": [f"{i}" for i in range(70)]}]},
         "questions[0].labels"),
        ({"questions": [{"question": "?", "labels": ["a b c " * 99]}]}, "questions[0].labels"),
        ({"questions": [{"question": "?", "labels": list("abcde")}] * 30}, "questions"),
    ],
)  # fmt: skip
def test_senseless_questions_are_refused(play: Any, change: dict[str, Any], param: str) -> None:
    async def test(here: Served) -> None:
        body = {"state": "It rains.", "questions": QUESTIONS, **change}
        check_error(await here.post(SYSTEMONE, **body), 400, param)

    play(test)


@pytest.mark.parametrize("path", [EMBEDDINGS, SCORE, SYSTEMONE])
def test_a_probe_whose_deadline_passes_is_an_error_and_holds_nothing(play: Any, path: str) -> None:
    async def test(here: Served) -> None:
        long = " word" * 900
        bodies = {
            EMBEDDINGS: {"input": [long] * 8},
            SCORE: {"text_1": long, "text_2": long},
            SYSTEMONE: {"state": long, "questions": QUESTIONS},
        }
        late = await here.post(path, **bodies[path], timeout=1e-9)
        assert check_error(late, 504)["code"] == "deadline_exceeded"
        task = asyncio.create_task(here.post(path, **bodies[path]))
        while not here.client.num_active:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert (await task).status_code == 200
        await here.settle()
        assert here.engine.engine is not None
        assert here.engine.engine.ledger().held == 0

    play(test)
