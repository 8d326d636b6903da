"""Token ids to text, a few at a time."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from octavo.text.tokenizer import Tokenizer

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class IncrementalDetokenizer:
    """Turns a stream of ids into text that never splits a character.

    For any split of ``ids`` into pushes, the pushed texts and the flushed one join to exactly
    ``tokenizer.decode(ids)``. The only state is the head of an unfinished character (at most three
    bytes), so a stream costs time linear in its length.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._decoder = _Utf8Decoder("replace")
        self._strip = tokenizer.strips_leading_space

    def push(self, ids: Iterable[int]) -> str:
        """The text that ``ids`` completes.

        Raises:
            InvalidRequestError: an id is outside the vocabulary.
        """
        tokenizer, skips = self._tokenizer, self._skip_special_tokens
        data = b"".join(
            [tokenizer.streamed_bytes(i) for i in ids if not (skips and tokenizer.is_special(i))]
        )
        return self._first(self._decoder.decode(data))

    def flush(self) -> str:
        """What an unfinished character decodes to (U+FFFD), at the end of the stream."""
        return self._first(self._decoder.decode(b"", final=True))

    def _first(self, text: str) -> str:
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text
