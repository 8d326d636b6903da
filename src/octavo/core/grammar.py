"""What a branch's tokens may spell: a grammar as a value, and what the engine needs of one.

The control plane compiles nothing: it asks a ``GrammarSource`` for a state, and waits for a
``GrammarReady`` event where the answer is "not yet". A state is a function of the grammar and of
the tokens accepted so far, so it survives preemption and is rebuilt by replay after a crash.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from octavo.errors import InvalidRequestError

# A fault of the engine: a mask forbids such tokens.
NOT_ALLOWED = "a token was accepted that the grammar does not allow"
GRAMMAR_KINDS = ("json_schema", "regex", "choice", "lark")
MAX_GRAMMAR_CHARS = 1 << 16
MAX_GRAMMAR_CHOICES = 1024

GrammarIdentity = tuple[str, str, tuple[str, ...], tuple[str, ...], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """A constraint on a branch's whole text.

    ``text`` is a JSON schema (as JSON), a regular expression that must match all of it, or a Lark
    grammar whose rule is ``start``; ``choices`` are the texts allowed by kind "choice".
    ``thoughts`` are the begin and the end of reasoning that may come before it, or must where the
    begin is empty: then the prompt has it. ``calls`` is a Lark grammar of what may stand in its
    place. ``field`` names the request field that asked, for error messages, and is no part of the
    identity.
    """

    kind: str
    text: str = ""
    choices: tuple[str, ...] = ()
    thoughts: tuple[str, ...] = ()
    calls: str = ""
    field: str = "grammar"

    @property
    def identity(self) -> GrammarIdentity:
        """Equal for grammars that allow the same texts by the same words."""
        return self.kind, self.text, self.choices, self.thoughts, self.calls

    @property
    def size(self) -> int:
        """Characters of its source."""
        return len(self.text) + sum(map(len, self.choices)) + len(self.calls)


def validate_grammar(grammar: Grammar) -> None:
    """Hold a grammar against the limits, before anything is compiled.

    Raises:
        InvalidRequestError: naming the field that asked, and the limit.
    """
    param = grammar.field
    if grammar.kind not in GRAMMAR_KINDS:
        raise InvalidRequestError(
            f"a grammar must be one of {', '.join(GRAMMAR_KINDS)}", param=param
        )
    if grammar.size > MAX_GRAMMAR_CHARS:
        raise InvalidRequestError(
            f"the grammar has {grammar.size} characters; the limit is {MAX_GRAMMAR_CHARS}",
            param=param,
        )
    is_choice = grammar.kind == "choice"
    if is_choice and (not grammar.choices or not all(grammar.choices)):
        raise InvalidRequestError("choice must list texts, none of them empty", param=param)
    if len(grammar.choices) > MAX_GRAMMAR_CHOICES:
        raise InvalidRequestError(
            f"choice lists {len(grammar.choices)} texts; the limit is {MAX_GRAMMAR_CHOICES}",
            param=param,
        )
    if not is_choice and not grammar.text:
        raise InvalidRequestError("the grammar is empty", param=param)


class GrammarState(Protocol):
    """Where one branch stands in its grammar."""

    def mask(self) -> bytes:
        """Tokens that may come next: ⌈V / 32⌉ little-endian uint32 words, bit set = allowed.

        All zero once the grammar has failed (``failure`` says why).
        """

    def accept(self, token_id: int) -> None:
        """Advance by a token that the mask allowed."""

    def fork(self) -> GrammarState:
        """An independent state at the same place."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing but an end may follow."""

    @property
    def failure(self) -> str:
        """Why it can go no further, empty while it can: a limit was met, or a token was refused."""


class GrammarSource(Protocol):
    """Compiles grammars outside the step and keeps them."""

    def open(self, grammar: Grammar) -> GrammarState | None:
        """A state at the start; None when it is still to be compiled, which a ``GrammarReady``
        event will end.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarReady:
    """A grammar that ``open`` had no state of has been compiled, or refused with ``error``."""

    grammar: Grammar
    error: str = ""
