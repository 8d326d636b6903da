"""Prompts of a wanted length for a server whose tokenizer is not ours.

Short common words are one token each in nearly every vocabulary, but a chat template adds its
own and some words split. So two requests of known word counts are sent first, and their usage
gives the line tokens = constant + slope · words that lengths are then converted with.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from octavo.bench.workload import PlannedRequest, Segment

_COMMON = """
time year people way day man thing woman life child world school state family student group
country problem hand part place case week company system program question work government
number night point home water room mother area money story fact month lot right study book
eye job word business issue side kind head house service friend father power hour game line
end member law car city community name president team minute idea body information back
parent face others level office door health person art war history party result change
morning reason research girl guy moment air teacher force education
"""
WORDS = _COMMON.split()
PROBE_WORDS = (16, 144)


@dataclass(frozen=True, slots=True)
class TokenLine:
    """tokens = ``constant`` + ``slope`` · words."""

    constant: float = 0.0
    slope: float = 1.0

    @classmethod
    def through(cls, probes: Sequence[tuple[int, int]]) -> TokenLine:
        """The line through two measured (words, tokens); a senseless one falls back to 1 : 1."""
        (words_a, tokens_a), (words_b, tokens_b) = probes
        slope = (tokens_b - tokens_a) / (words_b - words_a)
        return cls(tokens_a - slope * words_a, slope) if slope > 0 else cls()

    def words(self, tokens: int) -> int:
        """How many words make about ``tokens`` tokens, the constant aside."""
        return max(0, round(tokens / self.slope))


def prompt_text(request: PlannedRequest, line: TokenLine) -> str:
    """The text of a planned request; the last segment gives way to what the template adds."""
    *head, last = request.segments
    words = [word for segment in head for word in _words(segment.key, line.words(segment.tokens))]
    own = line.words(max(0, last.tokens - round(line.constant)))
    return " ".join([*words, *_words(last.key, max(1, own))])


def probe_request(num_words: int) -> PlannedRequest:
    """A request of ``num_words`` words, unlike any planned one, for one token of output."""
    segments = (Segment(f"probe/{num_words}", num_words),)
    return PlannedRequest(index=-1, at_s=0.0, segments=segments, output_tokens=1)


@lru_cache(maxsize=4096)
def _words(key: str, count: int) -> tuple[str, ...]:
    """The first ``count`` words of an endless text that ``key`` names."""
    rng = random.Random(key)
    return tuple(rng.choice(WORDS) for _ in range(count))
