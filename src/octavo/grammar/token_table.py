"""The vocabulary as grammars see it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTable:
    """The vocabulary as a grammar sees it: the bytes that each id adds, and the special ids.

    ``encode`` gives the ids of plain text: where a grammar allows one text only, its tokens are the
    model's usual ones. ``token_bytes`` and ``is_special`` are asked of every id below
    ``vocab_size``, once. All are called on any thread.
    """

    vocab_size: int
    encode: Callable[[str], list[int]]
    token_bytes: Callable[[int], bytes]
    is_special: Callable[[int], bool]
    eos_token_ids: Sequence[int]
