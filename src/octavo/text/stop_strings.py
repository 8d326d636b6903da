"""Stop strings in a stream of text, found across any token boundary.

Which stop ends a text depends on the text alone, never on how it arrived: the one that is complete
first wins, and of those that complete at the same character the longest.

All stops are matched at once by the automaton of Aho and Corasick (1975): a state is the longest
end of the text so far that begins some stop. So the text that must be held back, since it may
become a stop, is exactly as long as the state is deep.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from octavo.errors import InvalidRequestError
from octavo.text.detokenizer import IncrementalDetokenizer
from octavo.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class StopResult:
    """``text`` is safe to send. ``stop`` is the stop string that ended the stream, or None."""

    text: str
    stop: str | None = None


class StopStringMatcher:
    """Passes text through, holding back only what may still become a stop string."""

    def __init__(self, stops: Sequence[str], *, include_stop_str: bool = False) -> None:
        """``include_stop_str`` sends the stop string itself too.

        Raises:
            InvalidRequestError: a stop string is empty.
        """
        if any(not stop for stop in stops):
            raise InvalidRequestError("a stop string is empty; leave it out", param="stop")
        self._include = include_stop_str
        self._build(stops)
        self._state = 0
        self._held = ""
        self._stopped = False

    def push(self, text: str, *, may_stop: bool = True) -> StopResult:
        """Add text. After a stop was found, everything pushed is dropped.

        Without ``may_stop`` no stop is complete in ``text``, but one may begin there.
        """
        if self._stopped:
            return StopResult("")
        if len(self._next) == 1:
            return StopResult(text)
        pending = self._held + text
        for index in range(len(self._held), len(pending)):
            self._state = self._advance(self._state, pending[index])
            if may_stop and (stop := self._found[self._state]):
                return self._stop(pending[: index + 1], stop)
        depth = self._depth[self._state]
        self._held = pending[len(pending) - depth :]
        return StopResult(pending[: len(pending) - depth])

    def flush(self) -> str:
        """The text held back, at the end of a stream that did not stop."""
        held, self._held, self._state = self._held, "", 0
        return held

    def _stop(self, text: str, stop: str) -> StopResult:
        self._stopped = True
        self._held = ""
        return StopResult(text if self._include else text[: -len(stop)], stop)

    def _advance(self, state: int, character: str) -> int:
        while character not in self._next[state]:
            if not state:
                return 0
            state = self._fallback[state]
        return self._next[state][character]

    def _build(self, stops: Sequence[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._found = [""]
        for stop in stops:
            state = 0
            for character in stop:
                if character not in self._next[state]:
                    self._next[state][character] = len(self._next)
                    self._next.append({})
                    self._depth.append(self._depth[state] + 1)
                    self._found.append("")
                state = self._next[state][character]
            self._found[state] = stop
        self._fallback = [0] * len(self._next)
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            for character, child in self._next[state].items():
                self._fallback[child] = self._advance(self._fallback[state], character)
                queue.append(child)
            self._found[state] = self._found[state] or self._found[self._fallback[state]]


@dataclass(slots=True)
class TextDelta:
    """What some tokens add to a text. Made for every token, hence not frozen.

    ``num_tokens`` of the pushed ids belong to the answer: all of them, or those up to and including
    the one that completed ``stop``. The ids after it are to be discarded everywhere.
    """

    text: str
    num_tokens: int
    stop: str | None = None


class TextStream:
    """Ids in, sendable text out: detokenisation, then stop strings.

    A stop string that is complete within the text of the first ``min_tokens`` ids ends nothing.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stops: Sequence[str] = (),
        include_stop_str: bool = False,
        skip_special_tokens: bool = True,
        min_tokens: int = 0,
    ) -> None:
        self._num_unstoppable = min_tokens
        self._detokenizer = IncrementalDetokenizer(
            tokenizer, skip_special_tokens=skip_special_tokens
        )
        self._has_stops = bool(stops)
        self._matcher = StopStringMatcher(stops, include_stop_str=include_stop_str)

    def push(self, ids: Sequence[int]) -> TextDelta:
        """Add ids; nothing may be pushed after a delta with a stop."""
        if not self._has_stops:
            return TextDelta(self._detokenizer.push(ids), len(ids))
        texts = []
        count = 0
        for count, token_id in enumerate(ids, 1):
            result = self._matcher.push(
                self._detokenizer.push((token_id,)), may_stop=self._num_unstoppable <= 0
            )
            self._num_unstoppable -= 1
            texts.append(result.text)
            if result.stop is not None:
                return TextDelta("".join(texts), count, result.stop)
        return TextDelta("".join(texts), count)

    def flush(self) -> TextDelta:
        """The end of the stream: what was held back, unless it completes a stop."""
        result = self._matcher.push(self._detokenizer.flush(), may_stop=self._num_unstoppable < 0)
        return TextDelta(result.text + self._matcher.flush(), 0, result.stop)
