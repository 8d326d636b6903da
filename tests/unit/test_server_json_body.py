from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.errors import InvalidRequestError
from octavo.server import json_body
from octavo.server.json_body import MAX_DEPTH, parse_json_object

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False,
    allow_infinity=False) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), inner,
                      max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(value=st.dictionaries(st.text("abc", max_size=3), VALUES, max_size=4), ascii_=st.booleans())
def test_what_json_writes_is_read_back(value: dict[str, object], ascii_: bool) -> None:
    assert parse_json_object(json.dumps(value, ensure_ascii=ascii_).encode()) == value


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not valid JSON"),
        (b"[]", "must be a JSON object"),
        (b'"text"', "must be a JSON object"),
        (b"{", "not valid JSON"),
        (b"{}{}", "not valid JSON"),
        (b"{'a': 1}", "not valid JSON"),
        (b'{"a": 1,}', "not valid JSON"),
        (b'{"a": 01}', "not valid JSON"),
        (b'{"a": NaN}', "NaN is not a JSON number"),
        (b'{"a": Infinity}', "Infinity is not"),
        (b'{"a": -Infinity}', "-Infinity is not"),
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', 'duplicate key "c"'),
        (b'{"a": 1, "\\u0061": 2}', 'duplicate key "a"'),
        (b'{"a": "\xff"}', "not valid UTF-8"),
        (b'\xef\xbb\xbf{"a": 1}', "not valid JSON"),
        (b'{"a": "\\ud800"}', "lone surrogate"),
        (b'{"\\udfff": 1}', "lone surrogate"),
        (b'{"a": "x\ny"}', "not valid JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "too many digits"),
        (b"[" * 1_000_000, "nested too deep"),
        (b'{"a":' * 1_000_000, "nested too deep"),
        (b'{"a": [' + b"[]," * 200_000 + b"1]}", "more than 65536 values"),
        (b'{"a": [' + b'"",' * 20_000 + b"1]}", "more than 16384 strings"),
        (b'{"a": {' + b'"b": 1,' * 20_000 + b"1}}", "more than 16384 strings"),
    ],
)
def test_what_is_ambiguous_or_hostile_is_refused(body: bytes, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        parse_json_object(body)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"a": 1, "temperature": NaN}', "temperature"),
        (b'{"logit_bias": {"5": -Infinity}}', "logit_bias.5"),
        (b'{"messages": [{}, {"content": "\\ud800"}]}', "messages[1].content"),
        (b'{"a": {"\\udfff": 1}}', "a.?"),
        (b'{"prompt": [1, ' + b"9" * 5000 + b"]}", "prompt[1]"),
        (b'{"seed": -' + b"9" * 5000 + b', "a": NaN}', "seed"),
        (b'{"a": [{"b": 1, "b": 2}]}', "a[0].b"),
        (b"NaN", None),
    ],
)
def test_a_value_that_does_not_fit_is_named_by_its_place(body: bytes, param: str | None) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_json_object(body)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"n": 1, "prompt": [' + b"[1]," * 40_000 + b"[1]]}", "prompt"),
        (b'{"messages": [' + b'{"role": "x"},' * 30_000 + b"1]}", "messages"),
        (b'{"a": [[1]], "b": {"c": [' + b'[""],' * 30_000 + b"1]}}", "b"),
        (b"{" + b'"a": [],' * 30_000 + b'"b": 1}', None),
    ],
)
def test_too_many_values_over_many_lists_are_named_by_their_field(
    body: bytes, param: str | None
) -> None:
    with pytest.raises(InvalidRequestError, match="more than 65536 values") as caught:
        parse_json_object(body)
    assert caught.value.param == param


def test_surrogate_pairs_are_text() -> None:
    assert parse_json_object(b'{"a": "\\ud83c\\udf89"}') == {"a": "🎉"}


def test_brackets_in_strings_are_no_depth() -> None:
    text = "[{" * 1000 + '\\"'
    assert parse_json_object(json.dumps({"a": text}).encode()) == {"a": text}


def test_the_depth_limit_is_exact() -> None:
    def nested(depth: int) -> bytes:
        return b'{"a":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"

    assert parse_json_object(nested(MAX_DEPTH))
    with pytest.raises(InvalidRequestError):
        parse_json_object(nested(MAX_DEPTH + 1))


def test_a_key_in_an_error_is_short_and_printable() -> None:
    key = "\\u0007" + "k" * 1000
    with pytest.raises(InvalidRequestError) as caught:
        parse_json_object(f'{{"{key}": 1, "{key}": 2}}'.encode())
    assert len(caught.value.message) < 100
    assert caught.value.message.isprintable()


@pytest.mark.timeout(20)
@pytest.mark.parametrize("tail", [b"", b"\\", b"x"])
def test_an_open_string_full_of_quotes_takes_no_quadratic_time(tail: bytes) -> None:
    # Two million characters: tried again from each quote, this would take hours.
    with pytest.raises(InvalidRequestError, match="not valid JSON"):
        parse_json_object(b'{"model":"' + b'\\"' * 1_000_000 + tail)


def counted(body: bytes) -> tuple[int, int, int]:
    """Strings and brackets, most strings in a row, deepest nesting: a character at a time."""
    total = run = longest = depth = deepest = 0
    text = body.decode()
    at = 0
    while at < len(text):
        character = text[at]
        if character == '"':
            at += 1
            while text[at] != '"':
                at += 1 + (text[at] == "\\")
            run += 1
        elif character in "[]{}":
            run = 0
            depth += 1 if character in "[{" else -1
        total += character in '"[]{}'
        longest, deepest = max(longest, run), max(deepest, depth)
        at += 1
    return total, longest, deepest


@given(value=st.dictionaries(st.text("ab", max_size=3), VALUES, max_size=4))
def test_what_is_counted_is_what_a_reader_of_characters_counts(value: dict[str, object]) -> None:
    body = json.dumps(value).encode()
    total, longest, deepest = counted(body)
    limits = {"MAX_STRUCTURE": total, "MAX_RUN": max(longest, 1), "MAX_DEPTH": deepest}
    with pytest.MonkeyPatch.context() as patch:
        for name, limit in limits.items():
            patch.setattr(json_body, name, limit)
        assert parse_json_object(body) == value
        patch.setattr(json_body, "MAX_DEPTH", deepest - 1)
        with pytest.raises(InvalidRequestError, match="deep"):
            parse_json_object(body)
