"""Splits a model's answer into text and tool calls, as it streams.

    TEXT ──begin──▶ HEAD ──{"name": "f", "arguments": ──▶ ARGUMENTS ──}──▶ TAIL ──▶ TEXT or HEAD

An automaton over characters, so that no way of cutting the answer into pieces changes anything.
Nothing but white space beside calls is lost: what turns out to be no call is text, begin tag
included. Arguments leave as they come, so they may be cut off where the answer is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from octavo.text.tool_formats import MAX_PARALLEL_CALLS, ToolFormat

# A name and what comes before it are short; past this it is no call.
MAX_HEAD_CHARS: Final = 1024
_HEAD: Final = re.compile(
    r'\s*\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*"([^"\\]{1,256})"\s*,\s*'
    r'"(?:arguments|parameters)"\s*:\s*\{'
)
# What may stand before the brace of an answer that is a call: a fence, whole or begun.
_FENCE: Final = re.compile(r"\s*(`{1,2}|```(j|js|jso|json)?\s*)?")


@dataclass(frozen=True, slots=True)
class ToolDelta:
    """A piece of call ``index``: its ``name`` with the first, fragments of arguments after."""

    index: int
    name: str = ""
    arguments: str = ""


Piece = str | ToolDelta


class ToolParser:
    """One choice's parser.

    ``names`` are the functions that may be called; others, and calls past ``max_calls``, stay text.
    """

    def __init__(
        self, family: ToolFormat, names: Collection[str], *, max_calls: int = MAX_PARALLEL_CALLS
    ) -> None:
        self._names = names
        self._max_calls = max_calls
        self._begin = family.begin.strip()
        # What may follow a call, and the state that it leads to.
        self._after: dict[str, Callable[[str], None]] = {}
        if family.end:
            self._after[family.end.strip()] = self._text
        self._after["```"] = self._text
        if not self._begin:
            self._after["{"] = self._head
        if family.joint.strip():
            self._after[family.joint.strip()] = self._head
        self._state: Callable[[str], None] = self._start
        # What has been read and not been given out: the begin of a tag, of a call, of an end.
        self._held = ""
        self._opening = ""
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._skips_space = False
        self._pieces: list[Piece] = []
        self.num_calls = 0

    def feed(self, text: str) -> list[Piece]:
        """What is certain once ``text`` has come too."""
        for char in text:
            self._state(char)
        pieces, self._pieces = self._pieces, []
        return pieces

    @property
    def is_in_call(self) -> bool:
        """Whether the arguments of a call have begun and not ended."""
        return self._state == self._arguments

    def finish(self) -> list[Piece]:
        """The rest: the answer has ended."""
        while self._held or self._opening:
            if self._state == self._head:
                self._no_call()
            else:
                held, self._held = self._held, ""
                self._emit(held)
        return self.feed("")

    # -- states ------------------------------------------------------------------------------

    def _text(self, char: str) -> None:
        self._held += char
        if not self._begin:
            self._release()
            return
        while self._held and not self._begin.startswith(self._held):
            self._emit(self._held[0])
            self._held = self._held[1:]
        if self._held == self._begin:
            self._opening, self._held = self._begin, ""
            self._state = self._head

    def _start(self, char: str) -> None:
        """The begin of an answer that is a call as a whole, or none.

        Models write calls so, in a fence or bare, whatever their family's own way is.
        """
        if char == "{" and _FENCE.fullmatch(self._held):
            self._opening, self._held = self._held, ""
            self._state = self._head
            self._head(char)
            return
        self._held += char
        if not _FENCE.fullmatch(self._held):
            held, self._held = self._held, ""
            self._state = self._text
            for each in held:
                self._state(each)

    def _head(self, char: str) -> None:
        self._held += char
        match = _HEAD.fullmatch(self._held) if char == "{" else None
        if match is None:
            if len(self._held) > MAX_HEAD_CHARS:
                self._no_call()
        elif match[1] not in self._names or self.num_calls == self._max_calls:
            self._no_call()
        else:
            self._pieces.append(ToolDelta(self.num_calls, name=match[1]))
            self._opening = self._held = ""
            self._depth, self._in_string, self._escaped = 0, False, False
            self.num_calls += 1
            self._state = self._arguments
            self._arguments(char)

    def _arguments(self, char: str) -> None:
        last = self._pieces[-1] if self._pieces else None
        index = self.num_calls - 1
        if isinstance(last, ToolDelta) and last.index == index and not last.name:
            self._pieces[-1] = ToolDelta(index, arguments=last.arguments + char)
        else:
            self._pieces.append(ToolDelta(index, arguments=char))
        if self._ends_object(char):
            self._state = self._close

    def _ends_object(self, char: str) -> bool:
        """Whether ``char`` closes the object that the arguments are."""
        if self._in_string:
            self._in_string = self._escaped or char != '"'
            self._escaped = char == "\\" and not self._escaped
            return False
        self._in_string = char == '"'
        self._depth += (char in "{[") - (char in "}]")
        return self._depth == 0

    def _close(self, char: str) -> None:
        """Behind the arguments: the brace of the call itself."""
        if char == "}":
            self._state = self._tail
        elif not char.isspace():
            self._leave_call(char)

    def _tail(self, char: str) -> None:
        """Behind a call: an end, another call, or text."""
        if not self._held and char.isspace():
            return
        self._held += char
        after = self._after.get(self._held)
        if after is not None:
            self._opening, self._held = (self._held, "") if after == self._head else ("", "")
            self._state = after
            self._skips_space = True
            if self._opening == "{":
                self._opening = ""
                self._head("{")
        elif not any(mark.startswith(self._held) for mark in self._after):
            held, self._held = self._held, ""
            self._leave_call(held)

    def _leave_call(self, text: str) -> None:
        self._state = self._text
        self._skips_space = True
        for char in text:
            self._state(char)

    def _no_call(self) -> None:
        """What began like a call is none: its opening is text, the rest is read again as such."""
        opening, held = self._opening, self._held
        self._opening = self._held = ""
        self._state = self._text
        self._emit(opening)
        for char in held:
            self._state(char)

    # -- output ------------------------------------------------------------------------------

    def _release(self) -> None:
        held, self._held = self._held, ""
        self._emit(held)

    def _emit(self, text: str) -> None:
        if self._skips_space:
            text = text.lstrip()
        if not text:
            return
        self._skips_space = False
        last = self._pieces[-1] if self._pieces else None
        if isinstance(last, str):
            self._pieces[-1] = last + text
        else:
            self._pieces.append(text)
