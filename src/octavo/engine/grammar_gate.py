"""Requests whose grammar is still to be compiled: booked, in no queue, ended like any other."""

from __future__ import annotations

from octavo.core.grammar import Grammar, GrammarIdentity, GrammarReady, GrammarSource
from octavo.core.step import RowResult
from octavo.errors import InvalidRequestError
from octavo.scheduler import RequestState, Sequence, Status


class GrammarGate:
    """Holds requests at the entrance, by grammar, and gives their branches the grammar's state."""

    def __init__(self, source: GrammarSource | None) -> None:
        self._source = source
        self._held: dict[GrammarIdentity, list[RequestState]] = {}

    def admits(self, state: RequestState) -> bool:
        """Give the branches their grammar; False while it is being compiled.

        Raises:
            InvalidRequestError: nothing here compiles grammars.
            OverloadedError: too many are being compiled.
        """
        grammar = state.request.sampling.grammar
        if grammar is None:
            return True
        if self._source is None:
            raise InvalidRequestError(
                "structured output is not available here; leave the field out", param=grammar.field
            )
        start = self._source.open(grammar)
        if start is None:
            self._hold(grammar, state)
            return False
        for seq in state.branches.values():
            seq.grammar = start.fork()
            # A resumed branch: the state is a function of the tokens.
            for token_id in seq.token_ids[seq.num_prompt :]:
                seq.grammar.accept(token_id)
        return True

    def take(self, event: GrammarReady) -> list[RequestState]:
        """The requests that waited for a grammar and still live, in order of arrival."""
        return self._held.pop(event.grammar.identity, [])

    def forget(self, state: RequestState) -> None:
        """A request left. Idempotent."""
        grammar = state.request.sampling.grammar
        held = self._held.get(grammar.identity) if grammar is not None else None
        if grammar is None or held is None or state not in held:
            return
        held.remove(state)
        if not held:
            del self._held[grammar.identity]

    @property
    def num_held(self) -> int:
        """Requests that wait for a grammar (0 when idle)."""
        return sum(map(len, self._held.values())) if self._held else 0

    def tenants(self) -> list[str]:
        """Whose requests wait for a grammar, one entry each."""
        return [state.request.tenant for held in self._held.values() for state in held]

    def _hold(self, grammar: Grammar, state: RequestState) -> None:
        self._held.setdefault(grammar.identity, []).append(state)
        for seq in state.branches.values():
            seq.status = Status.COMPILING


def dead_end(seq: Sequence, row: RowResult) -> str:
    """Why the grammar of a row that failed allows nothing there; "" where it does, or is none.

    It may have met its limit behind drafts that were right, which the sequence does not have yet.
    """
    if seq.grammar is None:
        return ""
    ahead = seq.grammar.fork()
    for token_id in row.token_ids[: row.num_verified]:
        ahead.accept(token_id)
    ahead.mask()
    return ahead.failure
