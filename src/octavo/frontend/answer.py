"""What an answer consists of, whatever the protocol: reasoning, text, calls of functions.

    text ──ReasoningParser──▶ Reasoning, text ──ToolParser──▶ text, ToolDelta

Each protocol renders the same pieces in its own way; no cut of the stream changes them.
"""

from __future__ import annotations

import uuid
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from octavo.core.grammar import Grammar
from octavo.frontend.outputs import BranchDelta
from octavo.frontend.tools import ToolUse
from octavo.text import IncrementalDetokenizer, Tokenizer
from octavo.text.reasoning import GENERIC, Reasoning, ReasoningFormat, ReasoningParser
from octavo.text.tool_parser import ToolDelta

Piece = Reasoning | ToolDelta | str


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerForm:
    """What an answer may hold.

    ``opened``: the prompt has begun the reasoning; ``goes_on``: it has begun the text. ``tools``
    are what may be called.
    """

    tokenizer: Tokenizer
    family: ReasoningFormat = GENERIC
    opened: bool = False
    goes_on: bool = False
    skips_special_tokens: bool = True
    tools: ToolUse | None = None

    def reader(self) -> AnswerReader:
        """A reader for one choice."""
        return AnswerReader(self)

    def message(self, text: str, token_ids: Sequence[int]) -> dict[str, object]:
        """A whole answer as a chat's message; see ``answer_message``."""
        return answer_message(self.reader().read_text(text, token_ids, is_last=True))

    def bound(self, grammar: Grammar) -> Grammar:
        """The grammar, and before it what this model may think."""
        if self.goes_on or not (self.family.is_known or self.opened):
            return grammar
        begin = "" if self.opened else self.family.begin
        return replace(grammar, thoughts=(begin, self.family.end))


class AnswerReader:
    """Reads one choice: deltas in, pieces out."""

    def __init__(self, form: AnswerForm) -> None:
        self._reasoning = None if form.goes_on else ReasoningParser(form.family, opened=form.opened)
        self._tools = form.tools.parser() if form.tools is not None else None
        self._detokenizer = IncrementalDetokenizer(
            form.tokenizer, skip_special_tokens=form.skips_special_tokens
        )
        # Where in the answer's text each token begins, as long as that may matter.
        self._starts: list[int] = []
        self._num_chars = 0

    @property
    def num_calls(self) -> int:
        """Calls that have begun."""
        return self._tools.num_calls if self._tools is not None else 0

    @property
    def has_called(self) -> bool:
        """Whether there are calls, of which the last was not cut off, say by a stop string."""
        return self._tools is not None and self.num_calls > 0 and not self._tools.is_in_call

    @property
    def num_reasoning_tokens(self) -> int:
        """Tokens of the reasoning so far, up to the one that completes its end."""
        parser = self._reasoning
        if parser is None or not parser.has_begun:
            return 0
        if parser.end is None:
            return len(self._starts)
        return bisect_left(self._starts, parser.end)

    @property
    def is_reasoning(self) -> bool:
        """Whether text has not begun yet."""
        return self._reasoning is not None and not self._reasoning.is_text

    def read(self, delta: BranchDelta) -> list[Piece]:
        """What is certain once ``delta`` has come too; with its finish, all that is left."""
        return self.read_text(delta.text, delta.token_ids, is_last=delta.finish_reason is not None)

    def read_text(self, text: str, token_ids: Sequence[int], *, is_last: bool) -> list[Piece]:
        """The same of a text and its tokens."""
        pieces = self._split(text, token_ids, is_last=is_last)
        tools = self._tools
        if tools is None:
            return pieces
        found: list[Piece] = []
        for piece in pieces:
            found += tools.feed(piece) if isinstance(piece, str) else [piece]
        return [*found, *tools.finish()] if is_last else found

    def _split(self, text: str, token_ids: Sequence[int], *, is_last: bool) -> list[Piece]:
        parser = self._reasoning
        if parser is None or parser.is_text:
            return [text] if text else []
        found = parser.feed(text)
        if parser.has_begun or not parser.is_text:
            self._locate(token_ids, parser.end)
        return [*found, *parser.finish()] if is_last else [*found]

    def _locate(self, token_ids: Iterable[int], end: int | None) -> None:
        for token_id in token_ids:
            if end is not None and self._num_chars >= end:
                return
            self._starts.append(self._num_chars)
            self._num_chars += len(self._detokenizer.push((token_id,)))


@dataclass(slots=True)
class Part:
    """One stretch of an answer: ``kind`` is "reasoning", "text" or "call".

    A call has a ``name`` and an ``id``, and its arguments as its text.
    """

    kind: str
    pieces: list[str] = field(default_factory=list)
    name: str = ""
    id: str = ""

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self.pieces)

    def as_call(self) -> dict[str, object]:
        """A call as a chat's message has it."""
        function = {"name": self.name, "arguments": self.text}
        return {"id": self.id, "type": "function", "function": function}


class Parts:
    """Gathers pieces into parts."""

    def __init__(self) -> None:
        self.all: list[Part] = []

    def add(self, piece: Piece) -> tuple[Part, str]:
        """The part that a piece belongs to, which may be new, and the text that it adds."""
        if isinstance(piece, ToolDelta):
            if piece.name:
                self.all.append(Part("call", name=piece.name, id=new_id("call")))
            text = piece.arguments
        else:
            kind, text = ("text", piece) if isinstance(piece, str) else ("reasoning", piece.text)
            if not self.all or self.all[-1].kind != kind:
                self.all.append(Part(kind))
        part = self.all[-1]
        part.pieces.append(text)
        return part, text

    def joined(self, kind: str) -> str:
        """The text of all parts of one kind."""
        return "".join(part.text for part in self.all if part.kind == kind)

    @property
    def calls(self) -> list[Part]:
        """The calls."""
        return [part for part in self.all if part.kind == "call"]


def answer_message(pieces: Iterable[Piece]) -> dict[str, object]:
    """A whole answer as a chat's message: ``content``, and what there is of reasoning and calls."""
    parts = Parts()
    for piece in pieces:
        parts.add(piece)
    text, reasoning, calls = parts.joined("text"), parts.joined("reasoning"), parts.calls
    content = text or (None if calls else "")
    message: dict[str, object] = {"role": "assistant", "content": content}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [call.as_call() for call in calls]
    return message


def piece_delta(piece: Piece) -> dict[str, object]:
    """A piece as a chat's ``delta``: one of ``content``, ``reasoning_content``, ``tool_calls``."""
    if isinstance(piece, str):
        return {"content": piece}
    if isinstance(piece, Reasoning):
        return {"reasoning_content": piece.text}
    call: dict[str, object] = {"index": piece.index}
    if piece.name:
        call |= {"id": new_id("call"), "type": "function"}
        call["function"] = {"name": piece.name, "arguments": ""}
    else:
        call["function"] = {"arguments": piece.arguments}
    return {"tool_calls": [call]}


def new_id(prefix: str) -> str:
    """An id that no other object has."""
    return f"{prefix}_{uuid.uuid4().hex[:24]}"
