"""Tool calls in a stream: the same whatever the split, nothing lost, and as one look at it all."""

from __future__ import annotations

import itertools
import json
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from octavo.text.tool_formats import ToolFormat, tool_format
from octavo.text.tool_parser import Piece, ToolDelta, ToolParser

HERMES = tool_format("{% if tools %}<tool_call>{% endif %}")
MISTRAL = tool_format("{% if tools %}[TOOL_CALLS]{% endif %}")
LLAMA3 = tool_format("{% if tools %}<|python_tag|>{% endif %}")
GENERIC = tool_format("{{ messages }}")
FAMILIES = (HERMES, MISTRAL, LLAMA3, GENERIC)
NAMES = ("f", "get_weather")

Outcome = tuple[str, list[tuple[str, str]]]


def outcome(pieces: list[Piece]) -> Outcome:
    text, calls = "", []
    for piece in pieces:
        if isinstance(piece, str):
            text += piece
        elif piece.name:
            assert piece.index == len(calls)
            calls.append((piece.name, ""))
        else:
            name, so_far = calls[piece.index]
            calls[piece.index] = (name, so_far + piece.arguments)
    return text, calls


def parse(family: ToolFormat, chunks: list[str]) -> Outcome:
    parser = ToolParser(family, NAMES)
    pieces: list[Piece] = []
    for chunk in chunks:
        pieces += parser.feed(chunk)
    return outcome(pieces + parser.finish())


def spelled(family: ToolFormat, name: str, arguments: object) -> str:
    call = json.dumps({"name": name, family.key: arguments})
    return f"{family.begin}{call}{family.end}"


def twin(text: str) -> Outcome:
    """Hermes, from the whole answer at once."""
    calls = []

    def take(match: re.Match[str]) -> str:
        try:
            call = json.loads(match[1])
            assert isinstance(call["arguments"], dict)
            assert call["name"] in NAMES
        except (ValueError, KeyError, TypeError, AssertionError):
            return match[0]
        calls.append((call["name"], call["arguments"]))
        return ""

    return re.sub(r"<tool_call>(.*?)</tool_call>", take, text, flags=re.DOTALL), calls


PARTS = st.sampled_from(
    [
        "Hello ", "<tool_call>", "</tool_call>", "<tool", "_call>", "\n", "{", "}", '"', "\\", " ",
        '{"name": "f", "arguments": {}}', '{"name": "f", "arguments": {"a": "}\\"{"}}',
        '{"name": "g", "arguments": {}}', '{"name": "f", "parameters": {"x": [1, {}]}}',
        '"name": ', "[TOOL_CALLS]", "[", "]", ", ", "; ", "```json\n", "```", "é😀",
    ]
)  # fmt: skip


@given(st.lists(PARTS, max_size=12), st.sampled_from(FAMILIES), st.randoms())
@example(['{"name": "f", "parameters": {"x": [1, {}]}}', "; "], LLAMA3, None)
def test_any_split_gives_the_same(parts: list[str], family: ToolFormat, random) -> None:
    whole = "".join(parts)
    expected = parse(family, [whole])
    assert parse(family, list(whole)) == expected
    cuts = sorted(random.randrange(len(whole) + 1) for _ in range(4)) if random else []
    borders = [0, *cuts, len(whole)]
    assert parse(family, [whole[a:b] for a, b in itertools.pairwise(borders)]) == (expected)
    # Without a call nothing is lost.
    if not expected[1]:
        assert expected[0] == whole


@given(
    st.lists(
        st.one_of(
            st.text(alphabet="ab <{}", min_size=1, max_size=6).map(lambda t: ("text", t)),
            st.tuples(
                st.sampled_from(["f", "get_weather", "unknown"]),
                st.dictionaries(st.text(max_size=4), st.text(alphabet='"}{\\a<', max_size=4)),
            ),
        ),
        max_size=5,
    )
)
def test_as_the_twin_that_sees_the_whole_answer(items: list) -> None:
    text = "".join(
        value if kind == "text" else spelled(HERMES, kind, value) for kind, value in items
    )
    found, calls = parse(HERMES, [text])
    wanted, wanted_calls = twin(text)
    assert [(name, json.loads(arguments)) for name, arguments in calls] == wanted_calls
    # White space beside calls may go.
    assert re.sub(r"\s", "", found) == re.sub(r"\s", "", wanted)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_each_family_streams_its_arguments(family: ToolFormat) -> None:
    answer = spelled(family, "get_weather", {"city": "Tromsø", "days": [1, {"x": "}"}]})
    parser = ToolParser(family, NAMES)
    seen: list[Piece] = []
    for char in answer:
        seen += parser.feed(char)
    assert sum(isinstance(piece, ToolDelta) for piece in seen) > 10
    text, calls = outcome(seen + parser.finish())
    assert text == ""
    assert [(n, json.loads(a)) for n, a in calls] == [
        ("get_weather", {"city": "Tromsø", "days": [1, {"x": "}"}]})
    ]


@pytest.mark.parametrize(
    ("family", "answer", "text", "names"),
    [
        (HERMES, "I will look.\n" + spelled(HERMES, "f", {}) + "\n" + spelled(HERMES, "f", {}),
         "I will look.\n", ["f", "f"]),
        (MISTRAL, '[TOOL_CALLS][{"name": "f", "arguments": {}}, {"name": "f", "arguments": {}}]',
         "", ["f", "f"]),
        (LLAMA3, '{"name": "f", "parameters": {}}; {"name": "f", "parameters": {"a": 1}}',
         "", ["f", "f"]),
        (LLAMA3, '{"type": "function", "name": "f", "parameters": {}}', "", ["f"]),
        (GENERIC, '```json\n{"name": "f", "arguments": {}}\n```', "", ["f"]),
        (GENERIC, '{"name": "g", "arguments": {}}', '{"name": "g", "arguments": {}}', []),
        (GENERIC, '{"answer": 42}', '{"answer": 42}', []),
        (GENERIC, '{"name": "f", "arguments": "x"}', '{"name": "f", "arguments": "x"}', []),
        (GENERIC, 'Say {"name": "f", "arguments": {}}', 'Say {"name": "f", "arguments": {}}', []),
        (HERMES, "<tool_call>{not json}</tool_call>", "<tool_call>{not json}</tool_call>", []),
        (HERMES, "a < b <tool", "a < b <tool", []),
        (HERMES, '```json\n{\n  "name": "f",\n  "arguments": {}\n}\n```', "", ["f"]),
        (HERMES, '```json\n{"a": 1}\n```', '```json\n{"a": 1}\n```', []),
        (HERMES, "``" + spelled(HERMES, "f", {}), "``", ["f"]),
        (HERMES, "<tool_call>" + "x" * 5000, "<tool_call>" + "x" * 5000, []),
        (HERMES, "<tool_call>" + spelled(HERMES, "f", {}), "<tool_call>", ["f"]),
        (HERMES, '<tool_call>{"name": "f", "arguments": {"cut', "", ["f"]),
    ],
)  # fmt: skip
def test_what_is_a_call_and_what_is_text(
    family: ToolFormat, answer: str, text: str, names: list[str]
) -> None:
    for chunks in ([answer], list(answer)):
        found, calls = parse(family, chunks)
        assert found == text
        assert [name for name, _ in calls] == names
