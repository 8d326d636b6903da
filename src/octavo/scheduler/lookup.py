"""Draft tokens out of a sequence's own past: what followed the last tokens when they stood before.

    tokens   … the quick fox … over the quick →         ngram: after the latest "over the quick"
                   └──────────── drafts: fox …           suffix: after the place that shares most
                                                         tree: after every place, most first

A pure function of the tokens. The index is a hash table of n-gram ends with chains, 4 bytes per
token and 4 per bucket; a token costs one insertion, a proposal a bounded walk. Hits are compared
token by token, so that buckets may collide.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from operator import itemgetter

NGRAM = 3
_MAX_BUCKETS = 1 << 15
_MAX_CANDIDATES = 8
_MAX_MATCH = 32
MAX_PATHS = 4


class Lookup:
    """One sequence's index. It grows with the tokens that it is shown; those never change."""

    __slots__ = ("_heads", "_mask", "_num_indexed", "_previous")

    def __init__(self, num_tokens: int) -> None:
        buckets = min(_MAX_BUCKETS, max(64, 1 << num_tokens.bit_length()))
        self._mask = buckets - 1
        self._heads = array("i", [-1]) * buckets
        self._previous = array("i")
        self._num_indexed = 0

    def ngram(self, tokens: Sequence[int], limit: int) -> list[int]:
        """What followed the latest earlier place of the last three tokens (Saxena, 2023)."""
        places = self._places(tokens)
        return _continuation(tokens, places[0], limit) if places else []

    def suffix(self, tokens: Sequence[int], limit: int) -> list[int]:
        """What followed the place that shares the longest suffix, at most twice its length.

        Among the latest few places; the latest of equals (Oliaro et al., 2024, chains only).
        """
        best, longest = -1, 0
        for place in self._places(tokens, _MAX_CANDIDATES):
            shared = _shared_suffix(tokens, place)
            if shared > longest:
                best, longest = place, shared
        return _continuation(tokens, best, min(limit, 2 * longest)) if longest else []

    def tree(self, tokens: Sequence[int], limit: int) -> list[list[int]]:
        """What followed the places that share most: paths, the first as by ``suffix``.

        At most ``MAX_PATHS``, of which none is the beginning of another.
        """
        found = [
            (_shared_suffix(tokens, place), place)
            for place in self._places(tokens, _MAX_CANDIDATES)
        ]
        paths: list[list[int]] = []
        for shared, place in sorted(found, key=itemgetter(0), reverse=True):
            path = _continuation(tokens, place, min(limit, 2 * shared))
            if all(path[: len(other)] != other[: len(path)] for other in paths):
                paths.append(path)
            if len(paths) == MAX_PATHS:
                break
        return paths

    def _places(self, tokens: Sequence[int], most: int = 1) -> list[int]:
        """Indices of earlier ends of the last n-gram, latest first, at most ``most``."""
        if len(tokens) <= NGRAM:
            return []
        self._catch_up(tokens)
        last = tokens[-NGRAM:]
        place = self._heads[self._bucket(tokens, len(tokens) - 1)]
        places: list[int] = []
        for _ in range(_MAX_CANDIDATES):
            if place < 0 or len(places) == most:
                break
            if tokens[place - NGRAM + 1 : place + 1] == last:
                places.append(place)
            place = self._previous[place]
        return places

    def _catch_up(self, tokens: Sequence[int]) -> None:
        """Index every n-gram that has a successor."""
        heads, previous = self._heads, self._previous
        for end in range(self._num_indexed, len(tokens) - 1):
            if end < NGRAM - 1:
                previous.append(-1)
                continue
            bucket = self._bucket(tokens, end)
            previous.append(heads[bucket])
            heads[bucket] = end
        self._num_indexed = len(tokens) - 1

    def _bucket(self, tokens: Sequence[int], end: int) -> int:
        mixed = (tokens[end - 2] * 0x9E3779B1 ^ tokens[end - 1]) * 0x85EBCA77 ^ tokens[end]
        mixed *= 0xC2B2AE3D
        return (mixed >> 32 ^ mixed >> 15) & self._mask


def _shared_suffix(tokens: Sequence[int], place: int) -> int:
    """How many tokens up to ``place`` equal those up to the end."""
    shared = 0
    while shared <= place and shared < _MAX_MATCH and tokens[place - shared] == tokens[-1 - shared]:
        shared += 1
    return shared


def _continuation(tokens: Sequence[int], place: int, limit: int) -> list[int]:
    """``limit`` tokens from behind ``place``; past the end the copy goes on with itself."""
    drafts = list(tokens[place + 1 : place + 1 + limit])
    while len(drafts) < limit:
        drafts += drafts[: limit - len(drafts)]
    return drafts
