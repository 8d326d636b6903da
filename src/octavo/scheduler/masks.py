"""What a grammar lets the samples of one row be, drafts included."""

from __future__ import annotations

from collections.abc import Iterator

from octavo.core.grammar import GrammarState
from octavo.core.step import GrammarMask


def grammar_masks(
    grammar: GrammarState, drafts: tuple[int, ...], *, row: int, offset: int
) -> Iterator[GrammarMask]:
    """A mask behind the row's own tokens (``offset``) and one behind each draft that may stand.

    Behind a draft that may not, or that ends the text, nothing that is sampled is kept.
    """
    words = grammar.mask()
    yield GrammarMask(row=row, offset=offset, words=words)
    ahead = grammar.fork() if drafts else grammar
    for draft in drafts:
        if not words[draft >> 3] >> (draft & 7) & 1:
            return
        ahead.accept(draft)
        if ahead.is_complete:
            return
        words, offset = ahead.mask(), offset + 1
        yield GrammarMask(row=row, offset=offset, words=words)
