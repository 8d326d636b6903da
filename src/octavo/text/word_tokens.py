"""Words as runs of tokens: how a model would write them, alone or behind a space."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.text.tokenizer import Tokenizer


def spell_words(words: Iterable[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """The runs of token ids that spell ``words``, each once."""
    runs = (
        tuple(tokenizer.encode(text, add_special_tokens=False))
        for word in words
        for text in (word, f" {word}")
    )
    return tuple(dict.fromkeys(run for run in runs if run))
