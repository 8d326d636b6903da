"""A step that is planned, and what it hands to the next while the same rows decode.

Most steps differ from the last by a token per row and now and then a block. So what follows from
who runs is worked out once: the rows of the plan, who is told, what tenants are charged, which rows
open a block when, and for how long nobody can end. A step brings it up to date in place.
``tests/sim/test_steady_rows.py`` holds plans and outputs against those made from scratch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Values
from dataclasses import dataclass, field

from octavo.core.request import TokenRun
from octavo.core.step import BlockCopy, RowPlan, StepPlan
from octavo.kv import PrefixHit, SequenceKV, StepReservation
from octavo.scheduler.fair_queue import HELD_STEPS
from octavo.scheduler.sequence import Sequence


@dataclass(slots=True)
class StepDraft:
    """A plan in the making. Its first ``num_decodes`` rows compute one token each.

    ``drafts`` are the tokens to be verified behind a row's own.
    """

    reservation: StepReservation
    budget: int
    rows: list[tuple[Sequence, int]] = field(default_factory=list)
    prefilling: list[Sequence] = field(default_factory=list)
    admitted: list[tuple[Sequence, PrefixHit | None]] = field(default_factory=list)
    num_decodes: int = 0
    drafts: dict[Sequence, tuple[int, ...]] = field(default_factory=dict)
    paths: list[Sequence] = field(default_factory=list)


@dataclass(slots=True)
class ScheduledStep:
    """A plan, and the sequence and number of tokens behind each of its rows, drafts not counted.

    ``answering`` are the rows that sample or score; ``is_plain`` says that each of them draws one
    token, without drafts, for one branch that is no beam. ``paths`` are those of the sequences that
    were forked for this step and end with it. ``steady`` are its rows, if they are the same as in
    the step before.
    """

    plan: StepPlan
    rows: list[tuple[Sequence, int]]
    answering: list[int]
    is_plain: bool
    paths: list[Sequence] = field(default_factory=list)
    steady: SteadyRows | None = None

    def settle(self, running: list[Sequence], *, turns: int) -> None:
        """Make the rows ``steady`` if all who run have one here and decode, and do no more.

        See ``SteadyRows`` for ``turns``.
        """
        if [(seq, 1) for seq in running] == self.rows and len(self.answering) == len(running):
            kvs = [seq.kv for seq in running if seq.kv is not None and _goes_on(seq, seq.kv)]
            if len(kvs) == len(running):
                self.steady = SteadyRows(list(running), kvs, turns=turns)

    def go_on(self, step_id: int, copies: list[BlockCopy], *, block_size: int) -> None:
        """Become the next step, of the same ``steady`` rows, whose blocks are reserved."""
        steady = self.steady
        assert steady is not None, "only what is steady goes on"
        steady.advance()
        for index in steady.moved:
            row, kv, _ = steady.columns[index]
            row.tables = kv.take_updates(block_size)
        self.plan = StepPlan(
            step_id=step_id, generation=self.plan.generation, rows=steady.rows, copies=tuple(copies)
        )


def _goes_on(seq: Sequence, kv: SequenceKV) -> bool:
    """Whether a sequence has one token to compute, and nothing else is to be asked of it."""
    is_bare = seq.grammar is None and seq.state.scores is None
    return is_bare and seq.num_lost <= kv.num_computed == len(seq.token_ids) - 1


class SteadyRows:
    """The rows of ``seqs``: each has one token to compute, and room for it in its tail or none.

    ``columns`` are per row what every step changes: its plan, its KV, its tokens. The rows ``due``
    may need a block before the next step; until that is planned, they are those that may just have
    filled one; ``moved`` were due for this step. ``service`` is what each tenant gets in a step,
    see ``FairQueue``.
    """

    def __init__(self, seqs: list[Sequence], kvs: list[SequenceKV], *, turns: int) -> None:
        """A row is due whenever the number of its computed tokens is a multiple of ``turns``."""
        self.seqs = seqs
        self.rows = tuple([RowPlan(seq.slot, 0, (), (), 1) for seq in seqs])
        self.columns = list(zip(self.rows, kvs, [seq.token_ids for seq in seqs], strict=True))
        self._lanes = tuple([seq.lane for seq in seqs])
        self._positions = [seq.num_output - 1 for seq in seqs]
        self._stop_ids = frozenset[int]().union(*[seq.state.stop_ids for seq in seqs])
        self._room = min([seq.max_output - seq.num_output for seq in seqs]) + 1
        self._growth = Counter([seq.state.request.tenant for seq in seqs])
        self.service = {name: count * HELD_STEPS for name, count in self._growth.items()}
        self._turns: list[list[int]] = [[] for _ in range(turns)]
        for index, kv in enumerate(kvs):
            self._turns[-kv.num_computed % turns].append(index)
            self.service[seqs[index].state.request.tenant] += kv.num_computed
        self._turn, self.due = 0, self._turns[0]
        self.moved: list[int] = []

    def grow(self, reservation: StepReservation) -> bool:
        """Add a slot for each row that is due; False if there are too few blocks."""
        return all(reservation.grow(self.columns[index][1], 1) for index in self.due)

    def advance(self) -> None:
        """Bring all up to the step in which each row computes the token that it drew last."""
        for index in self.moved:
            self.rows[index].tables = ()
        # Hot: once per row and step.
        for row, kv, tokens in self.columns:
            row.start = start = kv.num_computed
            row.token_ids = (tokens[-1],)
            kv.num_reserved = start + 1
        for name, count in self._growth.items():
            self.service[name] += count
        self._positions = [position + 1 for position in self._positions]
        self._room -= 1
        self._turn += 1
        self.moved, self.due = self.due, self._turns[self._turn % len(self._turns)]

    def take(self, token_ids: Values[int]) -> TokenRun | None:
        """Give each row the token that it drew; None, and no change, if that may end a row."""
        if self._room <= 1 or not self._stop_ids.isdisjoint(token_ids):
            return None
        # Hot: once per row and step.
        for (_, kv, tokens), token_id in zip(self.columns, token_ids, strict=True):
            kv.num_computed += 1
            tokens.append(token_id)
        return TokenRun(self._lanes, self._positions, list(token_ids))
