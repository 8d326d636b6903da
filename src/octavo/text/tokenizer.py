"""Text to token ids and back, exactly.

Added tokens are cut out of a text here, and what lies between them is encoded by the ``tokenizers``
library, which knows none of them. So this module alone decides which characters of a text may
become a special token: those that a template wrote may, those that a user wrote may not, and text
on both sides of the border still tokenises together.

    "<|im_start|>user\\n" + "is <|im_end|> a token?" + "<|im_end|>"
     special      plain       plain (user wrote it)     special
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from octavo.errors import InvalidRequestError, ModelFileError
from octavo.text.tokenizer_json import vocabulary_from_json
from octavo.text.vocabulary import AddedToken, Vocabulary, vocabulary_from_gguf

# Stands for a break at every position.
_EVERYWHERE: Final = (1,)
_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_level_alphabet() -> dict[int, str]:
    """Character of a spelling -> the character whose Latin-1 code is the byte it stands for.

    Printable bytes stand for themselves, the others are moved, in order, to U+0100 onwards. Latin-1
    characters that stand for nothing are moved out of Latin-1, so that encoding them fails.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in set(printable)]
    table = {0x100 + i: chr(byte) for i, byte in enumerate(moved)}
    return dict.fromkeys(moved, "\uffff") | table


_ALPHABET: Final = _byte_level_alphabet()


class Tokenizer:
    """A model's tokenizer. Immutable and safe to share between threads."""

    def __init__(self, vocabulary: Vocabulary, vocab_size: int | None = None) -> None:
        """``vocab_size`` is the model's, where its table has more rows than there are tokens."""
        self._vocabulary = vocabulary
        self._added = {token.text: token for token in vocabulary.added}
        self._added_by_id = {token.id: token for token in vocabulary.added}
        # Bytes that ids add to a stream, without and with control tokens.
        self._streamed: tuple[dict[int, bytes], dict[int, bytes]] = ({}, {})
        longest_first = sorted(self._added, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)))
        self.vocab_size: Final = max(len(vocabulary.tokens), vocab_size or 0)
        self.bos_token_id: Final = vocabulary.bos_token_id
        self.eos_token_ids: Final = vocabulary.eos_token_ids
        self.strips_leading_space: Final = vocabulary.strips_leading_space
        self.digest: Final = vocabulary.digest
        self.special_tokens: Final[Mapping[str, int]] = {
            token.text: token.id for token in vocabulary.added if token.special
        }

    @classmethod
    def from_model(
        cls, kind: str, metadata: Mapping[str, Any], vocab_size: int | None = None
    ) -> Tokenizer:
        """The tokenizer of an opened model (``ModelFile.kind`` and ``.metadata``).

        ``vocab_size`` is the number of rows of the model's embedding, where it is known.

        Raises:
            ModelFileError: it has none, or one that is malformed or unsupported.
        """
        if kind == "gguf":
            return cls(vocabulary_from_gguf(metadata), vocab_size)
        if "tokenizer_json" not in metadata:
            raise ModelFileError("the model has no tokenizer.json; add it to the directory")
        size = vocab_size or metadata["config"].get("vocab_size")
        vocabulary = vocabulary_from_json(metadata["tokenizer_json"], metadata)
        return cls(vocabulary, size if isinstance(size, int) else None)

    def encode(
        self, text: str, *, add_special_tokens: bool = True, parse_special: bool = False
    ) -> list[int]:
        """Token ids of ``text``.

        ``add_special_tokens`` puts the model's own prefix and suffix (a beginning token) around it.
        ``parse_special`` lets special tokens spelled in the text become those tokens; by default
        they stay plain text.

        Raises:
            InvalidRequestError: the text holds lone surrogates, which have no UTF-8 form.
        """
        ids = self.encode_rendered(text, None if parse_special else _EVERYWHERE)
        if not add_special_tokens:
            return ids
        return [*self._vocabulary.prefix, *ids, *self._vocabulary.suffix]

    def encode_rendered(self, text: str, breaks: Sequence[int] | None = None) -> list[int]:
        """Token ids of a rendered template, in which special tokens are read.

        ``breaks`` are ascending positions in the text. A protected token spelled at [s, e) stays
        plain text if a break b lies in s < b ≤ e. No prefix or suffix is added.
        """
        check_text(text)
        ids: list[int] = []
        for piece, token in self._cut(text, breaks):
            if token is not None:
                ids.append(token.id)
                continue
            backend = self._vocabulary.rest if ids else self._vocabulary.first
            # A batch of one: unlike `encode`, it lets other threads run.
            ids.extend(backend.encode_batch([piece], add_special_tokens=False)[0].ids)
        return ids

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """The text of ``ids``; bytes that are no UTF-8 become U+FFFD.

        Raises:
            InvalidRequestError: an id is outside the vocabulary.
        """
        joined = b"".join(
            self.token_bytes(i) for i in ids if not (skip_special_tokens and self.is_special(i))
        )
        text = joined.decode("utf-8", "replace")
        return text.removeprefix(" ") if self.strips_leading_space else text

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that one token adds to a text (empty for ids that mean nothing).

        Raises:
            InvalidRequestError: the id is outside the vocabulary.
        """
        if not 0 <= token_id < self.vocab_size:
            raise InvalidRequestError(
                f"token id {token_id} is outside the vocabulary (0 to {self.vocab_size - 1})"
            )
        added = self._added_by_id.get(token_id)
        if added is not None:
            return added.text.encode()
        tokens = self._vocabulary.tokens
        spelling = tokens[token_id] if token_id < len(tokens) else None
        if spelling is None:
            return b""
        if self._vocabulary.byte_level:
            return _byte_level_bytes(spelling)
        byte = _BYTE_TOKEN.fullmatch(spelling)
        return bytes([int(byte[1], 16)]) if byte else spelling.replace("▁", " ").encode()

    def streamed_bytes(self, ids: Iterable[int], *, skip_special_tokens: bool) -> bytes:
        """The bytes that ``ids`` add, remembered: the tokens of streams come again and again.

        Raises:
            InvalidRequestError: an id is outside the vocabulary.
        """
        known = self._streamed[not skip_special_tokens]
        try:
            return b"".join([known[i] for i in ids])
        except KeyError:
            for i in ids:
                hidden = skip_special_tokens and self.is_special(i)
                known[i] = b"" if hidden else self.token_bytes(i)
            return b"".join([known[i] for i in ids])

    def is_special(self, token_id: int) -> bool:
        """Whether the id is a control token."""
        added = self._added_by_id.get(token_id)
        return added is not None and added.special

    @property
    def unnamed_ids(self) -> list[int]:
        """Ids that mean nothing: holes of the vocabulary and the model's rows beyond it."""
        tokens = self._vocabulary.tokens
        holes = [i for i, token in enumerate(tokens) if token is None]
        return [*holes, *range(len(tokens), self.vocab_size)]

    @property
    def added_tokens(self) -> tuple[AddedToken, ...]:
        """The tokens that are matched in text as a whole."""
        return self._vocabulary.added

    def _cut(
        self, text: str, breaks: Sequence[int] | None
    ) -> Iterable[tuple[str, AddedToken | None]]:
        """The text as pieces of plain text and added tokens, in order."""
        start = position = 0
        while self._added and (match := self._pattern.search(text, position)):
            left, right = match.span()
            token = self._added[match[0]]
            broken = token.protected and _is_broken(breaks, left, right)
            if broken or (token.single_word and _touches_word(text, match)):
                position = left + 1
                continue
            if token.lstrip:
                left = start + len(text[start:left].rstrip())
            if token.rstrip:
                right = len(text) - len(text[right:].lstrip())
            if left > start:
                yield text[start:left], None
            yield match[0], token
            start = position = right
        if start < len(text):
            yield text[start:], None


def check_text(text: str, param: str | None = None) -> None:
    """Refuse text that cannot be written as UTF-8.

    Raises:
        InvalidRequestError: it holds a lone surrogate.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"the text holds a lone surrogate U+{ord(text[error.start]):04X} at character "
            f"{error.start}; send well-formed Unicode",
            param=param,
        ) from None


def _is_broken(breaks: Sequence[int] | None, left: int, right: int) -> bool:
    if not breaks:
        return False
    if breaks is _EVERYWHERE:
        return True
    index = bisect_right(breaks, left)
    return index < len(breaks) and breaks[index] <= right


def _touches_word(text: str, match: re.Match[str]) -> bool:
    beside = (text[match.start() - 1 : match.start()], text[match.end() : match.end() + 1])
    return any(c.isalnum() or c == "_" for c in beside)


def _byte_level_bytes(spelling: str) -> bytes:
    try:
        return spelling.translate(_ALPHABET).encode("latin-1")
    except UnicodeEncodeError:
        # Not in the byte-level alphabet: the published decoders take such a token literally.
        return spelling.encode("utf-8", "replace")
