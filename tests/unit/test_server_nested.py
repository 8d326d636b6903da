"""Nothing inside a field is ignored in silence: each part of it is changed, and the server says so.

An unknown member, and every value as each other kind of JSON, is refused with its place, or stands
below: as what the protocol takes there, or as one of the members that are ignored.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from typing import Any

import pytest
from jsonschema_rs import Draft202012Validator

from field_samples import beside
from nested_bodies import BODIES, KINDS, MESSAGES, RESPONSES, TEMPLATED, mutations
from octavo.server import FIELDS, Treatment
from octavo.server.endpoints import ANTHROPIC, Endpoint
from octavo.text.shapes import COMPONENTS
from served import HELLO, LEAST, PATHS, Served

ALL = {*KINDS, "unknown"}
# A refusal says what would be taken, or what to do.
REMEDY = re.compile(
    r"must (be|have|not|fit)\b|the limit is|known here are|; (use|send|leave)|needs|takes exactly"
    r"|exclude each other|it reads:|send |served:"
)
VALUES: tuple[Any, ...] = (
    "",
    "x" * 300,
    0,
    -1,
    10**30,
    -1.5,
    1e300,
    [""],
    [-1],
    [1.5],
    [[]],
    [[-1]],
    [10**30],
    ["x" * 300],
    [None],
    {"": ""},
    {"5": "x"},
    {"5": 1e9},
    {"01": 1, "1": 1},
    [{}],
    ["a"] * 5000,
)
SHARED = {"schemas": COMPONENTS}
# What is wrong in words that name the field elsewhere.
ELSEWHERE_NAMED: dict[str, set[str]] = defaultdict(
    set,
    max_completion_tokens={"max_completion_tokens"},
    previous_response_id={"previous_response_id"},
    continue_final_message={"messages"},
)
# What a change of kind, or an unknown member, may be taken as: place, kinds.
TAKEN: tuple[tuple[str, set[str]], ...] = (
    # Null is as if it were not there.
    (r"(messages|state)\[\d+\]\.(name|reasoning_content|parsed)", {"null"}),
    (r".*\.tool_calls\[\d+\]\.(index|type|function\.parsed_arguments)", {"null"}),
    (r".*\.(cache_control(\.(ttl|scope))?|caller|signature|is_error)", {"null"}),
    (r"input\[\d+\]\.(id|status|phase|encrypted_content|summary|content|type)", {"null"}),
    (r"input\[\d+\]\.content\[0\]\.(annotations|logprobs)", {"null"}),
    (r"(reasoning|thinking|output_config|text|stream_options)\.\w+", {"null"}),
    (r"(response_format\.json_schema|\w+\.format)\.(name|description|strict)", {"null"}),
    (r"tools\[0\](\.function)?\.(description|strict|type|parameters|input_schema"
     r"|eager_input_streaming)", {"null"}),
    (r"tool_choice\.disable_parallel_tool_use", {"null"}),
    # A content is a text or a list of parts; beside calls there need not be one.
    (r"(messages|state|input)\[\d+\]\.(content|output)", {"string"}),
    (r"(messages|state)\[5\]\.content", {"list"}),
    (r"(messages|state)\[2\]\.content", {"null"}),
    (r"(messages|state)\[2\]\.content", {"null"}),
    (r"messages\[2\]\.content\[0\]\.content", {"string", "null", "list"}),
    # What a client's library adds, and says nothing that is not said beside it.
    (r".*\.(parsed|parsed_arguments)(\..*)?", ALL),
    (r".*\.(annotations|logprobs)\[0\](\..*)?", ALL),
    (r".*\[\d+\]\.caller(\..*)?", ALL),
    # What a call was made with.
    (r"messages\[1\]\.content\[2\]\.input(\..*)?", ALL),
    # A JSON schema: a schema is an object or a boolean, and says what it likes besides.
    (r".*(parameters|input_schema|schema|json)", {"member", "object"}),
    (r".*(parameters|input_schema|schema|json)(\..*)?\.surprise", {"unknown"}),
    (r".*\.(d|a|b|c|items|anyOf\[\d\]|additionalProperties)",
     {"boolean", "member", "object", "list", "listed"}),
    (r".*\.(anyOf|enum)", {"listed"}),
    (r".*\.enum\[0\]", ALL),
    (r".*\.(minimum|exclusiveMaximum)", {"number", "boolean"}),
    (r"prompt\[\d\]", {"string", "integer"}),
)  # fmt: skip
# What is wrong with a change may show at another place.
ELSEWHERE = {
    r"(messages|state)\[2\]\.tool_calls": r"(messages|state)\[3\]\.tool_call_id",
    r"messages\[1\]\.content": r"messages\[2\]\.content\[0\]\.tool_use_id",
    r"(messages|state)\[5\]\.tool_calls": r"(messages|state)\[5\]\.content",
    r"structured_outputs\.surprise": r"structured_outputs takes exactly one",
    r"input\[\d+\]\.type": r"input\[\d+\]\.role",
}


def is_taken(path: str, kind: str) -> bool:
    return any(kind in kinds and re.fullmatch(place, path) for place, kinds in TAKEN)


def names(said: str, path: str) -> bool:
    places = [there for place, there in ELSEWHERE.items() if re.fullmatch(place, path)]
    return any(re.match(rf"{place}(?!\w)", said) for place in [re.escape(path), *places])


@pytest.mark.parametrize("endpoint", sorted(BODIES))
def test_what_is_changed_is_refused_by_its_place(play: Any, endpoint: Endpoint) -> None:
    missed: list[Any] = []

    async def test(here: Served) -> None:
        for body in BODIES[endpoint]:
            whole = {**LEAST[endpoint], **body}
            response = await here.post(PATHS[endpoint], **whole)
            assert response.status_code == 200, response.text
            for path, kind, changed in mutations(body):
                response = await here.post(PATHS[endpoint], **{**whole, **changed})
                if response.status_code == 200:
                    if not is_taken(path, kind):
                        missed.append((path, kind, "taken"))
                    continue
                error = response.json()["error"]
                said = error["message"] if endpoint in ANTHROPIC else error["param"]
                if path == "structured_outputs.surprise":
                    said = error["message"]
                if response.status_code != 400 or not names(said or "", path):
                    missed.append((path, kind, error))
                if not REMEDY.search(error["message"]):
                    missed.append((path, kind, "what would be right", error))

    play(test)
    assert missed == [], "\n".join(str(m)[:230] for m in missed)


@pytest.mark.parametrize("endpoint", sorted(PATHS))
def test_a_value_that_does_not_fit_is_refused_by_place_limit_and_remedy(
    play: Any, endpoint: Endpoint
) -> None:
    """Every field, ignored ones too, given every kind of value: taken where it fits its shape."""
    missed: list[Any] = []

    async def test(here: Served) -> None:
        for field in FIELDS:
            if endpoint not in field.endpoints or field.treatment is Treatment.REFUSED:
                continue
            fits = Draft202012Validator({**field.shape, "components": SHARED}).is_valid
            for value in (*KINDS.values(), *VALUES):
                body = {**LEAST[endpoint], **beside(field, endpoint), field.name: value}
                response = await here.post(PATHS[endpoint], **body)
                if response.status_code == 200 and (fits(value) or value is None):
                    continue
                error = response.json()["error"]
                message, status = error["message"], response.status_code
                named = re.match(rf"(the |a token id of )?{field.name}(?!\w)", message)
                absent = value is None and error.get("param") == "prompt"
                if not (
                    status == (404 if "; served: " in message else 400)
                    and (named or absent or error.get("param") in ELSEWHERE_NAMED[field.name])
                    and REMEDY.search(message)
                ):
                    missed.append((field.name, value, status, message))
        while here.client.num_active:  # noqa: ASYNC110 - made in the background
            await asyncio.sleep(0)

    play(test)
    assert missed == [], "\n".join(str(m)[:230] for m in missed)


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
RESULT = {"role": "tool", "tool_call_id": "c", "content": "x"}
CALLING = {"role": "assistant", "tool_calls": [CALL]}
ITEM = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "x"}
USE = {"role": "assistant", "content": [
    {"type": "tool_use", "id": "c", "name": "f", "input": {}}]}  # fmt: skip
TOLD = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c"}]}


@pytest.mark.parametrize(
    ("endpoint", "name", "talk", "at"),
    [
        (Endpoint.CHAT, "messages", [RESULT], "messages[0].tool_call_id"),
        (Endpoint.CHAT, "messages", [CALLING, RESULT, RESULT], "messages[2].tool_call_id"),
        (Endpoint.CHAT, "messages", [CALLING, CALLING, RESULT], "messages[1].tool_calls[0].id"),
        (Endpoint.CHAT, "messages", [CALLING, RESULT, CALLING, RESULT], ""),
        (Endpoint.SYSTEMONE, "state", [RESULT], "state[0].tool_call_id"),
        (Endpoint.RESPONSES, "input", [OUTPUT], "input[0].call_id"),
        (Endpoint.RESPONSES, "input", [ITEM, OUTPUT, OUTPUT], "input[2].call_id"),
        (Endpoint.RESPONSES, "input", [ITEM, ITEM, OUTPUT], "input[1].call_id"),
        (Endpoint.RESPONSES, "input", [ITEM, OUTPUT, ITEM, OUTPUT], ""),
        (Endpoint.MESSAGES, "messages", [TOLD], "messages[0].content[0].tool_use_id"),
        (Endpoint.MESSAGES, "messages", [USE, USE, TOLD], "messages[1].content[0].id"),
        (Endpoint.MESSAGES, "messages", [USE, TOLD, USE, TOLD], ""),
    ],
)
def test_a_result_is_that_of_one_call(
    play: Any, endpoint: Endpoint, name: str, talk: Any, at: str
) -> None:
    async def test(here: Served) -> None:
        response = await here.ask(endpoint, **{name: talk})
        assert response.status_code == (400 if at else 200)
        assert at in response.text

    play(test)


@pytest.mark.parametrize(
    ("endpoint", "body", "ignored"),
    [
        (Endpoint.CHAT, TEMPLATED[0], {
            "messages[].tool_calls[].index", "messages[].parsed", "tools[].function.strict",
            "messages[].tool_calls[].function.parsed_arguments"}),
        (Endpoint.CHAT, {"user": "me", "response_format": {
            "type": "json_schema", "json_schema": {"name": "n", "schema": {}, "strict": None}}},
         {"user", "response_format.json_schema.name"}),
        (Endpoint.RESPONSES, RESPONSES[0], {
            "tools[].strict", "reasoning", "reasoning.summary", "reasoning.generate_summary",
            "reasoning.context", "input[].id", "input[].status", "input[].phase",
            "input[].summary", "input[].encrypted_content", "input[].content[].annotations",
            "input[].content[].logprobs"}),
        (Endpoint.MESSAGES, MESSAGES[0], {
            "system[].cache_control", "tools[].strict", "tools[].cache_control",
            "tools[].eager_input_streaming", "thinking", "thinking.budget_tokens",
            "thinking.display", "messages[].content[].cache_control",
            "messages[].content[].signature", "messages[].content[].caller",
            "messages[].content[].content[].cache_control"}),
        (Endpoint.CHAT, {"messages": HELLO}, set()),
        (Endpoint.TOKENIZE, {**TEMPLATED[1], "reasoning_effort": "low"},
         {"tools[].function.strict", "reasoning_effort"}),
        (Endpoint.APPLY_TEMPLATE, TEMPLATED[1], {"tools[].function.strict"}),
    ],
)  # fmt: skip
def test_what_is_ignored_inside_a_field_is_named(
    play: Any, endpoint: Endpoint, body: dict[str, Any], ignored: set[str]
) -> None:
    async def test(here: Served) -> None:
        response = await here.ask(endpoint, **body)
        assert response.status_code == 200, response.text
        named = response.headers.get("x-octavo-ignored", "")
        assert set(filter(None, named.split(", "))) == ignored

    play(test)


def test_what_libraries_send_back_is_taken(play: Any) -> None:
    async def test(here: Served) -> None:
        echoed = {
            "role": "assistant", "content": "Hm.", "refusal": None, "audio": None,
            "function_call": None, "tool_calls": None, "annotations": [], "parsed": None,
        }  # fmt: skip
        assert (await here.chat(messages=[echoed, RESULT | {"role": "user"}])).status_code == 400
        user = {"role": "user", "content": "x"}
        assert (await here.chat(messages=[echoed, user])).status_code == 200
        # Null and an empty list say nothing, whatever they are called.
        for name in ("tool_call_id", "name", "reasoning_content"):
            for nothing in (None, []):
                told = await here.chat(messages=[{**user, name: nothing}])
                assert told.status_code == 200, (name, nothing, told.text)

    play(test)
