"""Stop strings and detokenisation: any split of the stream gives the same answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from octavo.errors import InvalidRequestError
from octavo.text import IncrementalDetokenizer, TextStream, Tokenizer
from octavo.text.stop_strings import StopStringMatcher
from octavo.text.vocabulary import AddedToken, Vocabulary

letters = st.text("abc", max_size=40)
stop_lists = st.lists(st.text("abc", min_size=1, max_size=5), max_size=4)


def obvious_stop(text: str, stops: list[str], *, include: bool) -> tuple[str, str | None]:
    """Look at every prefix in turn; of the stops that end there, take the longest."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[:end] if include else text[: end - len(stop)], stop
    return text, None


def cut(text: str, sizes: list[int]) -> list[str]:
    pieces = []
    for size in sizes:
        pieces.append(text[:size])
        text = text[size:]
    return [*pieces, text]


@given(letters, stop_lists, st.booleans(), st.lists(st.integers(0, 4), max_size=30))
def test_the_automaton_finds_what_a_search_finds(text, stops, include, sizes):
    matcher = StopStringMatcher(stops, include_stop_str=include)
    sent, found = "", None
    for piece in cut(text, sizes):
        result = matcher.push(piece)
        sent += result.text
        found = found or result.stop
    sent += matcher.flush()
    assert (sent, found) == obvious_stop(text, stops, include=include)


@given(letters, stop_lists)
def test_no_more_is_held_back_than_a_stop_could_need(text, stops):
    matcher = StopStringMatcher(stops)
    sent = ""
    for i, character in enumerate(text):
        result = matcher.push(character)
        sent += result.text
        if result.stop is not None:
            break
        held = text[len(sent) : i + 1]
        assert held == "" or any(stop.startswith(held) for stop in stops)
        longer = range(len(held) + 1, i + 2)
        assert not any(s.startswith(text[i + 1 - n : i + 1]) for n in longer for s in stops)


def test_a_partial_stop_never_leaks_and_returns_when_it_is_none():
    matcher = StopStringMatcher(["###", "\nUser:"])
    assert [matcher.push(t).text for t in ("a#", "#", "b", "\nUs", "e", "x")] == [
        "a", "", "##b", "", "", "\nUsex",
    ]  # fmt: skip
    assert matcher.push("\nUser").text == ""
    assert matcher.push(": hi") == type(matcher.push(""))("", "\nUser:")
    assert matcher.push("more").text == ""
    assert matcher.flush() == ""


def test_an_empty_stop_is_refused():
    with pytest.raises(InvalidRequestError, match="empty"):
        StopStringMatcher(["a", ""])


# A vocabulary of every single byte, some pairs that cut characters, and a special token.
CHUNKS = [bytes([b]) for b in range(256)] + [
    "é".encode(),
    "€".encode()[:2],
    b"ab",
    "🙂".encode()[1:],
]
SPECIAL = len(CHUNKS)


def byte_tokenizer(*, strips_leading_space: bool = False) -> Tokenizer:
    spelled = ["".join(_spelling(b) for b in chunk) for chunk in CHUNKS]
    backend = Backend(BPE({spelling: i for i, spelling in enumerate(spelled)}, []))
    return Tokenizer(
        Vocabulary(
            first=backend,
            rest=backend,
            tokens=[*spelled, "<end>"],
            added=(AddedToken(SPECIAL, "<end>", special=True),),
            byte_level=True,
            strips_leading_space=strips_leading_space,
        )
    )


def _spelling(byte: int) -> str:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    if byte in printable:
        return chr(byte)
    return chr(0x100 + sum(b not in printable for b in range(byte)))


TOKENIZERS = {flag: byte_tokenizer(strips_leading_space=flag) for flag in (False, True)}
id_lists = st.lists(
    st.one_of(
        st.integers(0, SPECIAL),
        st.sampled_from([*"é€🙂 a".encode(), 256, 257, 259, SPECIAL]),
    ),
    max_size=40,
)


def test_the_alphabet_is_the_byte_level_one():
    assert [TOKENIZERS[False].token_bytes(i) for i in range(len(CHUNKS))] == CHUNKS


@given(id_lists, st.lists(st.integers(0, 3), max_size=40), st.booleans(), st.booleans())
def test_pieces_join_to_the_whole(ids, sizes, skip, strip):
    tokenizer = TOKENIZERS[strip]
    stream = IncrementalDetokenizer(tokenizer, skip_special_tokens=skip)
    text, rest = "", ids
    for size in sizes:
        text += stream.push(rest[:size])
        rest = rest[size:]
    text += stream.push(rest) + stream.flush()
    assert text == tokenizer.decode(ids, skip_special_tokens=skip)


@given(st.text(max_size=20))
def test_a_character_is_never_split(text):
    stream = IncrementalDetokenizer(TOKENIZERS[False])
    pieces = [stream.push([byte]) for byte in text.encode()]
    assert stream.flush() == ""
    assert [piece for piece in pieces if piece] == list(text)


def test_ids_out_of_the_vocabulary_are_refused():
    tokenizer = TOKENIZERS[False]
    for bad in (-1, SPECIAL + 1, 10**9):
        for call in (tokenizer.decode, IncrementalDetokenizer(tokenizer).push):
            with pytest.raises(InvalidRequestError, match="outside the vocabulary"):
                call([bad])


@given(st.text("abc€", max_size=20), stop_lists, st.lists(st.integers(0, 4), max_size=30))
def test_a_stream_says_how_many_tokens_count(text, stops, sizes):
    ids = list(text.encode())
    stream = TextStream(TOKENIZERS[False], stops=stops)
    sent, counted, rest, stop = "", 0, ids, None
    for size in [*sizes, len(ids)]:
        delta = stream.push(rest[:size])
        sent, counted, rest, stop = (
            sent + delta.text,
            counted + delta.num_tokens,
            rest[size:],
            delta.stop,
        )
        if stop is not None:
            break
    else:
        sent += stream.flush().text
    assert (sent, stop) == obvious_stop(text, stops, include=False)
    if stop is None:
        assert counted == len(ids)
    else:
        kept = bytes(ids[:counted]).decode("utf-8", "ignore")
        assert kept == sent + stop


def obvious_late_stop(pieces: list[str], stops: list[str], least: int) -> tuple[str, str | None]:
    """As ``obvious_stop``, but no stop may end within the first ``least`` pieces."""
    text, early = "".join(pieces), len("".join(pieces[:least]))
    for end in range(early + 1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end - len(stop)], stop
    return text, None


@given(
    st.text("abc€", max_size=20), stop_lists, st.integers(0, 12),
    st.lists(st.integers(0, 4), max_size=30),
)  # fmt: skip
def test_no_stop_ends_the_first_min_tokens(text, stops, least, sizes):
    ids = list(text.encode())
    tokenizer = TOKENIZERS[False]
    alone = IncrementalDetokenizer(tokenizer)
    pieces = [alone.push([token_id]) for token_id in ids]
    stream = TextStream(tokenizer, stops=stops, min_tokens=least)
    sent, counted, rest, stop = "", 0, ids, None
    for size in [*sizes, len(ids)]:
        delta = stream.push(rest[:size])
        sent, counted, rest, stop = (
            sent + delta.text, counted + delta.num_tokens, rest[size:], delta.stop,
        )  # fmt: skip
        if stop is not None:
            break
    else:
        sent += stream.flush().text
    assert (sent, stop) == obvious_late_stop(pieces, stops, least)
    assert stop is None or counted > least


def test_a_stop_may_begin_before_min_tokens_and_end_after():
    for least, sent, stop in (
        (1, "", "ab"),
        (2, "ab", "ab"),
        (3, "ab", "ab"),
        (4, "aba", "bb"),
        (5, "ababb", None),
    ):
        stream = TextStream(TOKENIZERS[False], stops=["ab", "bb"], min_tokens=least)
        delta = stream.push(b"ababb")
        text = delta.text + ("" if delta.stop else stream.flush().text)
        assert (text, delta.stop) == (sent, stop)
