"""A grammar without a compiler: tokens that must follow each other, one set per place.

Grammar(kind="choice", choices=("3 4", "5"), …)  →  first 3 or 4, then 5, then the end
"""

from __future__ import annotations

from octavo.core.grammar import Grammar, GrammarIdentity, GrammarReady


class ToyState:
    """A ``GrammarState``: the set of tokens allowed at each place of a branch's output."""

    def __init__(self, places: list[frozenset[int]], *, vocab_size: int, at: int = 0) -> None:
        self._places = places
        self._vocab_size = vocab_size
        self._at = at
        self._failure = ""

    @classmethod
    def of(cls, grammar: Grammar, *, vocab_size: int) -> ToyState:
        """The state at the start of ``grammar``."""
        places = [frozenset(map(int, choice.split())) for choice in grammar.choices]
        return cls(places, vocab_size=vocab_size)

    def mask(self) -> bytes:
        """See ``GrammarState``; a place that allows nothing is a grammar that fails there."""
        allowed = self._places[self._at] if self._at < len(self._places) else frozenset()
        if not allowed:
            self._failure = "nothing may follow"
        bits = sum(1 << token for token in allowed)
        return bits.to_bytes(4 * -(-self._vocab_size // 32), "little")

    def accept(self, token_id: int) -> None:
        """See ``GrammarState``."""
        if self._at >= len(self._places) or token_id not in self._places[self._at]:
            self._failure = "a token was not allowed"
        self._at += 1

    def fork(self) -> ToyState:
        """See ``GrammarState``."""
        return ToyState(self._places, vocab_size=self._vocab_size, at=self._at)

    @property
    def is_complete(self) -> bool:
        """See ``GrammarState``."""
        return not self._failure and self._at >= len(self._places)

    @property
    def failure(self) -> str:
        """See ``GrammarState``."""
        return self._failure


class ToyGrammars:
    """A ``GrammarSource`` that compiles when it is told to (``finish``)."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._ready: set[GrammarIdentity] = set()
        self.asked: list[Grammar] = []

    def open(self, grammar: Grammar) -> ToyState | None:
        """See ``GrammarSource``."""
        if grammar.identity not in self._ready:
            self.asked.append(grammar)
            return None
        return ToyState.of(grammar, vocab_size=self._vocab_size)

    def finish(self, grammar: Grammar, error: str = "") -> GrammarReady:
        """The event that says that a grammar has been compiled, or refused."""
        if not error:
            self._ready.add(grammar.identity)
        return GrammarReady(grammar=grammar, error=error)
