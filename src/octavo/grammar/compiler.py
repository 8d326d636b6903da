"""Compiles grammars on a thread of its own, under caps, and keeps what it compiled.

llguidance drops the interpreter lock while it compiles, so a step goes on meanwhile. Its own limits
(states, fuel, size of the grammar) bound time and memory of one grammar; the cache is bounded by an
estimate of bytes, and the thread's queue by length.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from octavo.core.grammar import Grammar, GrammarIdentity, GrammarReady
from octavo.errors import OverloadedError
from octavo.grammar.matcher import STATE, Matcher, failure_of
from octavo.grammar.token_table import TokenTable

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MAX_PENDING = 64
MAX_CACHE_BYTES = 64 << 20
# What one compiled grammar is taken to hold, beside a multiple of its source: llguidance does not
# say. Resident memory grew by 0.25 MB with schemas of 2 kB and by 1.1 MB with schemas of 24 kB.
_BYTES_PER_GRAMMAR = 256 << 10
_BYTES_PER_CHAR = 48
_MAX_ERROR_CHARS = 300
# Of a line: a long pattern is quoted twice, before what is wrong with it.
_MAX_LINE_CHARS = 90
_MAX_QUOTED_CHARS = 42
_NESTED_SIGN = "failed to compile JSON schema: "
_REGEX_SIGN = "regex parse error:\n"
# How a message about a schema begins → what it does not say.
_REMEDIES = {
    "Unimplemented keys": "; leave them out",
    "Unknown format": "; leave it out, or say it with pattern",
    "Pointer ": "; a $ref must lead to a place in the schema",
}


class GrammarCompiler:
    """A ``core.grammar.GrammarSource``: owns a thread, a cache and what is to be told.

    The owner calls ``open`` and ``take_ready`` from one thread and hands what the latter gives to
    the engine.
    """

    def __init__(self, table: TokenTable, *, max_cache_bytes: int = MAX_CACHE_BYTES) -> None:
        self._table = table
        self._max_cache_bytes = max_cache_bytes
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="octavo-grammar")
        self._tokenizer: LLTokenizer | None = None
        self._cache: OrderedDict[GrammarIdentity, LLMatcher] = OrderedDict()
        self._pending: dict[GrammarIdentity, Future[LLMatcher]] = {}
        self._done: deque[Grammar] = deque()
        self.cache_bytes = 0
        self.num_compiled = 0

    def open(self, grammar: Grammar) -> Matcher | None:
        """A state at the start, or None: ``take_ready`` will name the grammar.

        Raises:
            OverloadedError: too many grammars wait to be compiled.
        """
        known = self._cache.get(grammar.identity)
        if known is not None:
            self._cache.move_to_end(grammar.identity)
            return Matcher(known.deep_copy(), self._table.vocab_size)
        if grammar.identity not in self._pending:
            if len(self._pending) >= MAX_PENDING:
                raise OverloadedError(
                    f"{MAX_PENDING} grammars are being compiled, the limit; retry later"
                )
            self._begin(grammar)
        return None

    @property
    def num_pending(self) -> int:
        """Grammars that are being compiled."""
        return len(self._pending)

    def take_ready(self) -> list[GrammarReady]:
        """What has been compiled, or refused, since the last call."""
        ready = []
        while self._done:
            grammar = self._done.popleft()
            future = self._pending.pop(grammar.identity)
            error = "the grammar could not be compiled"
            if future.exception() is None:
                matcher = future.result()
                error = _one_line(matcher.get_error()) if matcher.is_error() else ""
                if not error:
                    self._keep(grammar, matcher)
            ready.append(GrammarReady(grammar=grammar, error=error))
        return ready

    def close(self) -> None:
        """End the thread. Idempotent."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _begin(self, grammar: Grammar) -> None:
        future = self._thread.submit(self._compile, grammar)
        self._pending[grammar.identity] = future
        future.add_done_callback(lambda _: self._done.append(grammar))

    def _compile(self, grammar: Grammar) -> LLMatcher:
        """On the compiler's thread."""
        from octavo.grammar.notation import new_matcher, new_tokenizer

        if self._tokenizer is None:
            self._tokenizer = new_tokenizer(self._table)
        return new_matcher(self._tokenizer, grammar)

    def _keep(self, grammar: Grammar, matcher: LLMatcher) -> None:
        self.num_compiled += 1
        self._cache[grammar.identity] = matcher
        self.cache_bytes += _estimated_bytes(grammar.identity)
        # The newest stays, whatever its size: somebody is about to open it.
        while self.cache_bytes > self._max_cache_bytes and len(self._cache) > 1:
            identity, _ = self._cache.popitem(last=False)
            self.cache_bytes -= _estimated_bytes(identity)


def _estimated_bytes(identity: GrammarIdentity) -> int:
    _, text, choices, _, calls = identity
    num_chars = len(text) + sum(map(len, choices)) + len(calls)
    return _BYTES_PER_GRAMMAR + _BYTES_PER_CHAR * num_chars


def _one_line(text: str) -> str:
    """A library's message, short, without a control character or its inner state."""
    if STATE in text or text.startswith("oneOf "):
        return failure_of(text)
    _, nested, inner = text.partition(_NESTED_SIGN)
    if nested:  # the schema of a tool, in a grammar that nobody sent
        text = inner if inner.startswith(_REGEX_SIGN) else inner.splitlines()[0]
    if _REGEX_SIGN in text:
        text = _regex_failure(text)
    elif text.startswith("Resource "):
        return "a $ref leads out of the schema, and nothing is fetched; put what it means in $defs"
    text += next((said for sign, said in _REMEDIES.items() if text.startswith(sign)), "")
    lines = (" ".join(line.split()) for line in text.splitlines())
    flat = " ".join(s[:_MAX_LINE_CHARS] + "…" * (len(s) > _MAX_LINE_CHARS) for s in lines if s)
    return flat if len(flat) <= _MAX_ERROR_CHARS else flat[:_MAX_ERROR_CHARS] + "…"


def _regex_failure(text: str) -> str:
    """What is wrong, and at what of an expression: it is quoted whole, maybe twice, before that."""
    quoted, _, reason = text.partition(_REGEX_SIGN)[2].rpartition("\nerror: ")
    expression, _, marks = quoted.partition("\n")
    rest = expression[marks.find("^") :]
    # An expression of many lines is marked in another way.
    known = "\n" not in marks and "^" in marks
    shown = rest[:_MAX_QUOTED_CHARS] + "…" * (len(rest) > _MAX_QUOTED_CHARS)
    where = f',\nat "{shown}"' if known else ""
    return f"invalid regular expression:\n{reason.splitlines()[0]}{where}"
