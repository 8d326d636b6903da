"""Token ids to text, a few at a time."""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Sequence

from octavo.text.tokenizer import Tokenizer


class IncrementalDetokenizer:
    """Turns a stream of ids into text that never splits a character.

    For any split of ``ids`` into pushes, the pushed texts and the flushed one join to exactly
    ``tokenizer.decode(ids)``. The only state is the head of an unfinished character (at most three
    bytes), so a stream costs time linear in its length.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._head = b""
        self._strip = tokenizer.strips_leading_space

    def push(self, ids: Sequence[int]) -> str:
        """The text that ``ids`` completes.

        Raises:
            InvalidRequestError: an id is outside the vocabulary.
        """
        data = self._head + self._tokenizer.streamed_bytes(
            ids, skip_special_tokens=self._skip_special_tokens
        )
        text, used = utf_8_decode(data, "replace", False)
        self._head = data[used:]
        return self._first(text) if self._strip else text

    def flush(self) -> str:
        """What an unfinished character decodes to (U+FFFD), at the end of the stream."""
        data, self._head = self._head, b""
        return self._first(data.decode("utf-8", "replace"))

    def _first(self, text: str) -> str:
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text
