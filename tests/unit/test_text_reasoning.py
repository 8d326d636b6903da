"""Reasoning is told from text whatever the tags, their balance and the cuts of the stream."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.text.reasoning import GENERIC, Reasoning, ReasoningParser, reasoning_format

THINK = reasoning_format("{{ '<think>' }}")


def split(pieces: list[str], *, family: object = THINK, opened: bool = False) -> tuple[str, str]:
    parser = ReasoningParser(family, opened=opened)  # type: ignore[arg-type]
    found = [part for piece in pieces for part in parser.feed(piece)] + parser.finish()
    reasons = "".join(part.text for part in found if isinstance(part, Reasoning))
    return reasons, "".join(part for part in found if isinstance(part, str))


@pytest.mark.parametrize(
    ("answer", "opened", "reasoning", "text"),
    [
        ("Hello.", False, "", "Hello."),
        ("<think>\nHm.\n</think>\n\nHello. ", False, "Hm.", "Hello. "),
        ("\n <think>Hm.</think>Hello.", False, "Hm.", "Hello."),
        ("Hm. So.\n</think>\n\nHello.", True, "Hm. So.", "Hello."),
        # Empty, never ended, never begun, begun twice, nested, further on, in pieces of a tag.
        ("<think>\n\n</think>\n\nHello.", False, "", "Hello."),
        ("<think>Hm. ", False, "Hm. ", ""),
        ("Hm. ", True, "Hm. ", ""),
        ("<think>", False, "", ""),
        ("<thi", False, "", "<thi"),
        (" \n", False, "", " \n"),
        ("Hm.</think>Hello.", False, "", "Hm.</think>Hello."),
        ("</think>Hello.", True, "", "Hello."),
        ("<think>a<think>b</think>c</think>d", False, "a<think>b", "c</think>d"),
        ("<think>a</think>b<think>c</think>", False, "a", "b<think>c</think>"),
        ("Use <think>a</think>.", False, "", "Use <think>a</think>."),
        ("<think>a </th </think\n</think>b", False, "a </th </think", "b"),
        ("<think>a<</think>b", False, "a<", "b"),
        ("<think>a\n\n b</think>c", False, "a\n\n b", "c"),
        ("<think>a</thin", False, "a</thin", ""),
        ("<thinker> Hello.", False, "", "<thinker> Hello."),
        ("", False, "", ""),
        ("", True, "", ""),
    ],
)
def test_every_cut_gives_the_same(answer: str, opened: bool, reasoning: str, text: str) -> None:
    wanted = (reasoning, text)
    assert split([answer], opened=opened) == wanted
    assert split(list(answer), opened=opened) == wanted
    for cuts in combinations(range(len(answer) + 1), 2):
        pieces = [answer[: cuts[0]], answer[cuts[0] : cuts[1]], answer[cuts[1] :]]
        assert split(pieces, opened=opened) == wanted


def twin(answer: str) -> tuple[str, str]:
    """The plain definition, over the whole answer."""
    shown = answer.lstrip()
    if not shown.startswith("<think>"):
        return "", answer
    inside, end, rest = shown.removeprefix("<think>").partition("</think>")
    return (inside.strip(), rest.lstrip()) if end else (inside.lstrip(), "")


SHREDS = st.lists(st.sampled_from(["<think>", "</think>", "<", "think", "/", ">", " ", "\n", "a"]))


@given(SHREDS, st.lists(st.integers(0, 60)))
def test_it_is_the_plain_definition(shreds: list[str], cuts: list[int]) -> None:
    answer = "".join(shreds)
    at = sorted({0, len(answer), *(cut for cut in cuts if cut < len(answer))})
    pieces = [answer[a:b] for a, b in pairwise(at)]
    assert split(pieces) == twin(answer)


@pytest.mark.parametrize(
    ("source", "name", "begin"),
    [
        ("{% if '</think>' in content %}", "think", "<think>"),
        ("[THINK]{{ x }}[/THINK]", "mistral", "[THINK]"),
        ("<seed:think>", "seed", "<seed:think>"),
        ("<|START_THINKING|>", "cohere", "<|START_THINKING|>"),
        ("<|im_start|>", "generic", "<think>"),
    ],
)
def test_a_template_tells_its_family(source: str, name: str, begin: str) -> None:
    family = reasoning_format(source)
    assert (family.name, family.begin) == (name, begin)
    assert split([f"{begin} a {family.end} b"], family=family) == ("a", "b")
    assert family.is_known is (name != "generic")


def test_what_a_prompt_has_opened() -> None:
    assert GENERIC.opened_by("<|im_start|>assistant\n<think>\n")
    assert not GENERIC.opened_by("Say <think> and <|im_end|>\n<|im_start|>assistant\n")
    assert GENERIC.closed_by("<think>\n\n</think>\n\n")
    assert GENERIC.is_open_in("<think> I wonder")
    assert not GENERIC.is_open_in("<think>a</think> So")


def test_where_the_reasoning_ends() -> None:
    parser = ReasoningParser(THINK)
    assert parser.end is None
    for char in " <think>ab\n</think>\n\ncd":
        parser.feed(char)
    assert parser.end == len(" <think>ab\n</think>")
    assert parser.is_text
