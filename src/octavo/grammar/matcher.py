"""One branch's place in a compiled grammar."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.core.grammar import NOT_ALLOWED

if TYPE_CHECKING:
    from llguidance import LLMatcher

MAX_STEP_ITEMS = 5000
# Where a message of llguidance begins to dump its parser.
STATE = "<state>"
# What such a message has → what has happened.
_FAILURES = {
    "doesn't satisfy the grammar": NOT_ALLOWED,
    "NoExtension": "no token of the model goes on to a text that the grammar allows; simplify it",
    "oneOf": "oneOf is not supported here; use anyOf",
    " items": f"one token took over {MAX_STEP_ITEMS} items of the parser; use fewer, shorter rules",
    "": "the grammar met the limit of the lexer's work for one token; simplify its expressions",
}


def failure_of(error: str) -> str:
    """What a matcher's ``get_error`` says of a step, with the limit and a remedy."""
    told = error.partition(STATE)[0]
    return next(text for sign, text in _FAILURES.items() if sign in told)


class Matcher:
    """A ``core.grammar.GrammarState`` over llguidance's matcher.

    A mask is computed once per place and kept: a preempted branch, or a plan that starts over,
    asks for it again.
    """

    __slots__ = ("_failure", "_mask", "_matcher", "_num_bytes")

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._num_bytes = 4 * -(-vocab_size // 32)
        self._mask: bytes | None = None
        self._failure = ""

    def mask(self) -> bytes:
        """See ``GrammarState``."""
        if self._mask is None:
            mask = b"" if self._failure else self._matcher.compute_bitmask()
            if self._matcher.is_error():
                self._failure = self._failure or failure_of(self._matcher.get_error())
                mask = b""
            # llguidance keeps a word of its own behind the vocabulary's.
            self._mask = mask[: self._num_bytes].ljust(self._num_bytes, b"\0")
        return self._mask

    def accept(self, token_id: int) -> None:
        """See ``GrammarState``."""
        self._mask = None
        if not self._failure and not self._matcher.consume_token(token_id):
            self._failure = failure_of(self._matcher.get_error())

    def fork(self) -> Matcher:
        """See ``GrammarState``."""
        other = Matcher.__new__(Matcher)
        other._matcher = self._matcher.deep_copy()
        other._num_bytes = self._num_bytes
        other._mask = self._mask
        other._failure = self._failure
        return other

    @property
    def is_complete(self) -> bool:
        """See ``GrammarState``."""
        return not self._failure and self._matcher.is_stopped()

    @property
    def failure(self) -> str:
        """See ``GrammarState``."""
        return self._failure
