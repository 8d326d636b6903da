"""A model's reasoning, told from its answer: how families mark it, and the parser of it.

think     <think>…</think>          (Qwen, DeepSeek and most others)
mistral   [THINK]…[/THINK]
seed      <seed:think>…</seed:think>
cohere    <|START_THINKING|>…<|END_THINKING|>
generic   as think, of a model whose template says nothing of reasoning

    START ──begin──▶ INSIDE ──end──▶ GAP ──▶ TEXT        a prompt may have opened it: then INSIDE

Only what an answer begins with is reasoning; the same tags further on are text, and so is an end
without a begin. Reasoning that is never ended goes on to the answer's end. White space beside the
tags is dropped, nothing else is, and no cut of the stream changes anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningFormat:
    """One family's tags. ``is_known``: its template speaks of them, so its models reason."""

    name: str
    begin: str = "<think>"
    end: str = "</think>"
    is_known: bool = True

    def opened_by(self, prompt_end: str) -> bool:
        """Whether a prompt that ends so has begun the reasoning already."""
        return prompt_end.rstrip().endswith(self.begin)

    def closed_by(self, prompt_end: str) -> bool:
        """Whether a prompt that ends so leaves no room for reasoning."""
        return prompt_end.rstrip().endswith(self.end)

    def is_open_in(self, text: str) -> bool:
        """Whether an answer that began with ``text`` is still reasoning."""
        return text.rfind(self.begin) > text.rfind(self.end)


GENERIC: Final = ReasoningFormat(name="generic", is_known=False)
_FAMILIES: Final = (
    ReasoningFormat(name="think"),
    ReasoningFormat(name="mistral", begin="[THINK]", end="[/THINK]"),
    ReasoningFormat(name="seed", begin="<seed:think>", end="</seed:think>"),
    ReasoningFormat(name="cohere", begin="<|START_THINKING|>", end="<|END_THINKING|>"),
)
# Tokens of these spellings are text, also where a vocabulary calls them control tokens.
REASONING_TAGS: Final = frozenset(tag for family in _FAMILIES for tag in (family.begin, family.end))


def reasoning_format(template_source: str) -> ReasoningFormat:
    """The family of a chat template."""
    for family in _FAMILIES:
        if family.begin in template_source or family.end in template_source:
            return family
    return GENERIC


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of reasoning, tags left out."""

    text: str


class ReasoningParser:
    """One choice's parser. ``opened``: the prompt has begun the reasoning.

    ``end`` is how many characters of the answer belong to the reasoning, tags included, once it has
    ended.
    """

    def __init__(self, family: ReasoningFormat, *, opened: bool = False) -> None:
        self._begin = family.begin
        self._end = family.end
        self._state: Callable[[str], list[Reasoning | str]] = (
            self._inside if opened else self._start
        )
        self._held = ""
        self._num_fed = 0
        self._is_blank = True
        self.has_begun = opened
        self.end: int | None = None

    @property
    def is_text(self) -> bool:
        """Whether all that follows is text."""
        return self._state == self._text

    def feed(self, text: str) -> list[Reasoning | str]:
        """What is certain once ``text`` has come too."""
        self._num_fed += len(text)
        held, self._held = self._held, ""
        return self._state(held + text)

    def finish(self) -> list[Reasoning | str]:
        """The rest: the answer has ended."""
        held, self._held = self._held, ""
        if self._state == self._inside:
            return self._reasoning(held)
        return [held] if held and self._state == self._start else []

    # -- states ------------------------------------------------------------------------------

    def _start(self, text: str) -> list[Reasoning | str]:
        shown = text.lstrip()
        if shown.startswith(self._begin):
            self._state = self._inside
            self.has_begun = True
            return self._inside(shown[len(self._begin) :])
        if self._begin.startswith(shown):
            self._held = text
            return []
        self._state = self._text
        return [text]

    def _inside(self, text: str) -> list[Reasoning | str]:
        at = text.find(self._end)
        if at >= 0:
            rest = text[at + len(self._end) :]
            self.end = self._num_fed - len(rest)
            self._state = self._gap
            return self._reasoning(text[:at].rstrip()) + self._gap(rest)
        tail = next(n for n in range(len(self._end) - 1, -1, -1) if text.endswith(self._end[:n]))
        certain = text[: len(text) - tail].rstrip()
        self._held = text[len(certain) :]
        return self._reasoning(certain)

    def _gap(self, text: str) -> list[Reasoning | str]:
        text = text.lstrip()
        if not text:
            return []
        self._state = self._text
        return [text]

    def _text(self, text: str) -> list[Reasoning | str]:
        return [text] if text else []

    def _reasoning(self, text: str) -> list[Reasoning | str]:
        if self._is_blank:
            text = text.lstrip()
        if not text:
            return []
        self._is_blank = False
        return [Reasoning(text)]
