"""A deterministic runner without a model: its answers depend on what it reads back from its KV.

Each KV slot holds (token, position). A sampled token is a hash of (seed, branch, position, the
sequence's own tokens) where those tokens are read *through the block tables*, so a block that is
shared wrongly, reused early, copied late or never written changes the answer or raises. A slot can
also hold NOT_A_NUMBER: whoever reads it can sample nothing, and that is the request's own failure.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from math import gcd

from octavo.core.grammar import GrammarState
from octavo.core.request import TokenLogprobs
from octavo.core.runner import KVGroupSpec, RunnerInfo
from octavo.core.step import RowPlan, RowResult, SlotState, StepPlan, StepResult
from octavo.testing.beam_reference import BeamTask, Hypothesis, beam_search

POISON = -1
NOT_A_NUMBER = -2
_POSITION_BITS = 24

# Per KV group the tokens that a position sees.
Histories = Sequence[tuple[int, ...]]


class FakeRunnerError(Exception):
    """The plan made the fake runner read or write something that no correct plan touches."""


def visible(tokens: Sequence[int], windows: Sequence[int | None]) -> list[tuple[int, ...]]:
    """What the last of ``tokens`` sees in each KV group: itself and what stands before it."""
    return [tuple(tokens) if window is None else tuple(tokens[-window:]) for window in windows]


def next_token(
    state: SlotState,
    branch: int,
    histories: Histories,
    *,
    position: int,
    vocab_size: int,
    mask: bytes = b"",
) -> int:
    """The token at ``position``: a pure function of what each KV group shows, and of the key.

    A probe's label gives it.
    """
    # Hot: once per sample, and once more per token that is verified.
    if state.probe is not None and state.probe.labels:
        return state.probe.labels[branch][position - state.num_prompt_tokens]
    token = hash((state.seed, branch, position, *histories)) % vocab_size
    banned: tuple[int, ...] = ()
    if state.banned_until and position - state.num_prompt_tokens < state.banned_until:
        banned = state.banned_token_ids
        while token in banned:
            token = (token + 1) % vocab_size
    if state.sampling.allowed_token_ids:
        left = [one for one in state.sampling.allowed_token_ids if one not in banned]
        token = left[token % len(left)]
    if mask:
        allowed = set_bits(mask)
        token = allowed[token % len(allowed)]
    return token


def set_bits(mask: bytes) -> list[int]:
    """The tokens that a grammar's mask allows, in order."""
    bits, found = int.from_bytes(mask, "little"), []
    while bits:
        lowest = bits & -bits
        found.append(lowest.bit_length() - 1)
        bits ^= lowest
    return found


def next_candidates(
    state: SlotState, histories: Histories, *, count: int, vocab_size: int
) -> tuple[tuple[int, float], ...]:
    """The likeliest tokens and their logprobs: a pure function of what each KV group shows.

    Logprobs are multiples of 1/8, so that sums are exact and ties are frequent.
    """
    key = hash((state.sampling.width, *histories))
    # A stride without a common factor names distinct tokens.
    stride = 1 + key % 61
    while gcd(stride, vocab_size) > 1:
        stride += 1
    falls = accumulate([key >> 2 * place & 3 for place in range(count)])
    steps = range(key % vocab_size, key % vocab_size + stride * count, stride)
    found = [(fall, token % vocab_size) for fall, token in zip(falls, steps, strict=True)]
    found.sort()
    return tuple([(token, -fall / 8) for fall, token in found])


def hidden_state(histories: Histories) -> bytes:
    """What a probe is told of a row: a pure function of what each KV group shows."""
    key = hash(tuple(histories))
    return struct.pack("<2f", key % 1009 + 1, key % 1013)


def score(state: SlotState, histories: Histories, token: int, *, vocab_size: int) -> TokenLogprobs:
    """What is told of a prompt's token: a pure function of what each KV group shows before it."""
    count = state.sampling.prompt_logprobs or 0
    top = next_candidates(state, histories, count=count, vocab_size=vocab_size)
    return TokenLogprobs(token, -(hash(tuple(histories)) % 64) / 8, top)


def _is_bare(row: RowPlan, sample: RowResult) -> bool:
    """Whether a row's result is one token and nothing else."""
    told = sample.logprobs or sample.candidates or sample.scores or sample.hidden or sample.failed
    return len(sample.token_ids) == row.num_samples == 1 and not (told or row.num_drafts)


def in_rows(plan: StepPlan, result: StepResult) -> StepResult:
    """The same result, bare tokens as rows: for tests that change what rows say."""
    answering = [index for index, row in enumerate(plan.rows) if row.answers]
    rows = tuple(map(RowResult, answering, zip(result.token_ids, strict=False)))
    return replace(result, rows=result.rows or rows, token_ids=())


def _with_drafts(plan: StepPlan, proposals: dict[int, tuple[int, ...]]) -> StepPlan:
    """The plan with the runner's own drafts in their rows."""
    rows = list(plan.rows)
    for index, drafts in proposals.items():
        tokens = rows[index].token_ids + drafts
        rows[index] = replace(rows[index], token_ids=tokens, num_drafts=len(drafts))
    return replace(plan, rows=tuple(rows))


def _values(tokens: list[int], start: int, end: int) -> list[int]:
    """What the slots of positions ``start`` to ``end`` hold."""
    return [token << _POSITION_BITS | at for at, token in enumerate(tokens[start:end], start)]


@dataclass(slots=True)
class _Slot:
    state: SlotState
    history: list[int]
    values: list[int]
    tables: list[list[int]]
    first_blocks: list[int]


@dataclass(slots=True)
class RunnerCounts:
    """What the plans so far made the runner do."""

    steps: int = 0
    rows: int = 0
    tokens: int = 0
    copies: int = 0
    samples: int = 0
    mixed_steps: int = 0
    fork_rows: int = 0
    generations: int = 0
    drafts: int = 0
    accepted: int = 0


@dataclass(slots=True)
class FakeRunner:
    """Implements ``Runner``. ``fail_next`` makes the next step raise, after half of its writes.

    ``spoil_next`` makes the next step's last row (a chunk, if there is any) write NOT_A_NUMBER.
    Of the drafts that it proposes itself, number ``first_wrong()`` is not what it will sample.
    """

    info: RunnerInfo
    fail_next: bool = False
    spoil_next: bool = False
    first_wrong: Callable[[], int] = lambda: 99
    counts: RunnerCounts = field(default_factory=RunnerCounts)
    _store: list[list[list[int]]] = field(default_factory=list)
    # Blocks that hold something since they were last poisoned.
    _written: list[set[int]] = field(default_factory=list)
    _slots: dict[int, _Slot] = field(default_factory=dict)
    _generation: int = 0
    _num_steps: int = 0

    def __post_init__(self) -> None:
        self._store = [self._poisoned(range(self.info.num_blocks)) for _ in self.info.groups]
        self._written = [set() for _ in self.info.groups]

    def _poisoned(self, blocks: range) -> list[list[int]]:
        return [[POISON] * self.info.block_size for _ in blocks]

    def poison(self, group: int, blocks: list[int]) -> None:
        """Destroy the content of blocks that nobody owns: reading them afterwards is caught."""
        written, store = self._written[group], self._store[group]
        for block in written.intersection(blocks):
            store[block] = [POISON] * self.info.block_size
            written.remove(block)

    # -- the step ----------------------------------------------------------------------------

    def execute(self, plan: StepPlan) -> StepResult:
        """Apply slots and copies, write every row, then sample."""
        self._num_steps += 1
        self._apply_slots(plan)
        self._apply_copies(plan)
        proposals = {i: self._propose(row) for i, row in enumerate(plan.rows) if row.num_proposals}
        if proposals:
            plan = _with_drafts(plan, proposals)
        for index, row in enumerate(plan.rows):
            if self.fail_next and index >= len(plan.rows) // 2:
                self.fail_next = False
                raise RuntimeError("injected fault")
            self._write(row, spoil=self.spoil_next and index == len(plan.rows) - 1)
        masks = {(mask.row, mask.offset): mask.words for mask in plan.grammar_masks}
        samples = [
            self._sample(index, row, masks) for index, row in enumerate(plan.rows) if row.answers
        ]
        for sample in samples:
            sample.proposals = proposals.get(sample.row, ())
        self._count(plan, len(samples))
        if all(_is_bare(plan.rows[sample.row], sample) for sample in samples):
            tokens = tuple(sample.token_ids[0] for sample in samples)
            return StepResult(step_id=plan.step_id, token_ids=tokens, progress=self._num_steps)
        return StepResult(step_id=plan.step_id, rows=tuple(samples), progress=self._num_steps)

    def _propose(self, row: RowPlan) -> tuple[int, ...]:
        """The runner's own drafts: it foresees its samples."""
        slot = self._slots[row.slot]
        tokens = (*slot.history[: row.start], *row.token_ids)
        state = replace(slot.state, token_ids=tokens)
        return tuple(foresee(state, self.info, limit=row.num_proposals, wrong=self.first_wrong()))

    def _apply_slots(self, plan: StepPlan) -> None:
        if plan.generation != self._generation:
            self._slots.clear()
            self._generation = plan.generation
            self.counts.generations += 1
        for slot in plan.freed_slots:
            if slot not in self._slots:
                raise FakeRunnerError(f"slot {slot} is freed but not taken")
            del self._slots[slot]
        groups = range(len(self.info.groups))
        for state in plan.new_slots:
            self._slots[state.slot] = _Slot(
                state,
                list(state.token_ids),
                [],
                [[] for _ in groups],
                [0 for _ in groups],
            )

    def _apply_copies(self, plan: StepPlan) -> None:
        sources = {(copy.group, copy.src) for copy in plan.copies}
        for copy in plan.copies:
            if (copy.group, copy.dst) in sources:
                raise FakeRunnerError("a copy's destination is another copy's source")
            store = self._store[copy.group]
            fresh = [POISON] * self.info.block_size
            fresh[: copy.num_tokens] = store[copy.src][: copy.num_tokens]
            store[copy.dst] = fresh
            self._written[copy.group].add(copy.dst)

    def _write(self, row: RowPlan, *, spoil: bool) -> None:
        slot = self._slots[row.slot]
        for update in row.tables:
            table = slot.tables[update.group]
            first = update.first_position // self.info.block_size
            moved = first != slot.first_blocks[update.group]
            slot.first_blocks[update.group] = first
            if update.keep > (0 if moved else len(table)):
                raise FakeRunnerError("a table update keeps entries that were never sent")
            table[update.keep :] = update.blocks
        end = row.start + len(row.token_ids)
        known = slot.history[row.start : end]
        if (known and known != list(row.token_ids[: len(known)])) or row.start > len(slot.history):
            raise FakeRunnerError("a row's tokens contradict the slot's history")
        slot.history[row.start : end] = row.token_ids
        slot.values += _values(slot.history, len(slot.values), end)
        values = slot.values[row.start : end]
        if spoil:
            self.spoil_next = False
            values = [NOT_A_NUMBER] * len(values)
        size = self.info.block_size
        first_block, last_block = row.start // size, (end - 1) // size
        for group, table in enumerate(slot.tables):
            store, first = self._store[group], slot.first_blocks[group]
            if first_block == last_block:
                block = table[first_block - first]
                self._written[group].add(block)
                store[block][row.start % size : row.start % size + len(values)] = values
                continue
            touched = table[first_block - first : last_block - first + 1]
            self._written[group].update(touched)
            offset = row.start % size
            taken = 0
            for block in touched:
                part = values[taken : taken + size - offset]
                store[block][offset : offset + len(part)] = part
                taken += len(part)
                offset = 0

    def _see(self, slot: _Slot, end: int) -> list[tuple[int, ...]] | None:
        """Tokens that a query at position ``end - 1`` sees in each group, checked slot by slot.

        None if one of them is not a number.
        """
        # Hot: every KV slot that anybody sees is read in every step.
        size, seen = self.info.block_size, []
        end_block = (end - 1) // size + 1
        for group, store in enumerate(self._store):
            window = self.info.groups[group].window
            start = 0 if window is None or window >= end else end - window
            first = slot.first_blocks[group]
            blocks = slot.tables[group][start // size - first : end_block - first]
            at = start % size
            raw = list(chain.from_iterable(map(store.__getitem__, blocks)))[at : at + end - start]
            if raw != slot.values[start:end]:
                if NOT_A_NUMBER in raw:
                    return None
                raise FakeRunnerError(
                    f"a row read KV that is not its own (positions {start}-{end})"
                )
            seen.append(tuple(slot.history[start:end]))
        return seen

    def _sample(self, index: int, row: RowPlan, masks: dict[tuple[int, int], bytes]) -> RowResult:
        """Sample behind the row's own tokens and behind each draft, up to the first that differs.

        Then the slot forgets the drafts that were not accepted: later rows start before them.
        """
        slot = self._slots[row.slot]
        result = RowResult(index, ())
        if row.num_scored:
            scored = range(row.start + 1, row.start + 1 + row.num_scored)
            result.scores = tuple([self._score(slot, end) for end in scored])
        if not row.num_samples:
            return result
        own = len(row.token_ids) - row.num_drafts
        for num_verified, draft in enumerate((*row.token_ids[own:], None)):
            end, result.num_verified = row.start + own + num_verified, num_verified
            mask = masks.get((index, own + num_verified - 1), b"") if masks else b""
            seen = self._see(slot, end)
            if seen is None or (mask and not any(mask)):
                result.token_ids += (-1,) * row.num_samples
                result.failed = True
                return result
            drawn = self._draw(slot.state, row.num_samples, seen, position=end, mask=mask)
            result.token_ids += drawn
            if draft is None or (draft,) != drawn:
                self._report(slot.state, result, seen)
                break
        self.counts.drafts += row.num_drafts
        self.counts.accepted += num_verified
        del slot.history[end:], slot.values[end:]
        return result

    def _draw(
        self, state: SlotState, num_samples: int, seen: Histories, *, position: int, mask: bytes
    ) -> tuple[int, ...]:
        """The tokens at ``position`` of the slot's branch and those after it."""
        size = self.info.vocab_size
        return tuple(
            [
                next_token(state, branch, seen, position=position, vocab_size=size, mask=mask)
                for branch in range(state.branch, state.branch + num_samples)
            ]
        )

    def _report(self, state: SlotState, result: RowResult, seen: Histories) -> None:
        """What the slot asks to be told besides its tokens; ``seen`` is behind the last of them."""
        if state.num_candidates:
            result.candidates = next_candidates(
                state, seen, count=state.num_candidates, vocab_size=self.info.vocab_size
            )
        if state.probe is not None and state.probe.hidden:
            result.hidden = hidden_state(seen)
        if (wanted := state.sampling.num_logprobs) >= 0:
            top = result.candidates[:wanted]
            result.logprobs = tuple(
                [TokenLogprobs(token, -1.0 - token / 1024, top) for token in result.token_ids]
            )

    def _score(self, slot: _Slot, end: int) -> TokenLogprobs:
        """The logprob of the prompt's token at ``end``: a pure function of what it sees."""
        token, seen = slot.history[end], self._see(slot, end)
        if seen is None:
            return TokenLogprobs(token, float("-inf"))
        return score(slot.state, seen, token, vocab_size=self.info.vocab_size)

    def holds_nan(self, group: int, block: int) -> bool:
        """Whether some slot of a block is not a number."""
        return NOT_A_NUMBER in self._store[group][block]

    def _count(self, plan: StepPlan, num_sampling: int) -> None:
        counts = self.counts
        counts.steps += 1
        counts.rows += len(plan.rows)
        counts.tokens += plan.num_tokens
        counts.copies += len(plan.copies)
        counts.samples += num_sampling
        chunks = sum([len(row.token_ids) - row.num_drafts > 1 for row in plan.rows])
        counts.mixed_steps += 0 < chunks < len(plan.rows)
        counts.fork_rows += sum([row.num_samples > 1 for row in plan.rows])


def run_alone(
    state: SlotState,
    info: RunnerInfo,
    *,
    stop_ids: frozenset[int],
    limit: int,
    grammar: GrammarState | None = None,
) -> list[int]:
    """What a branch answers when it is alone, computed without any engine, pool or table.

    ``grammar``, if it is bound by one, stands after its last token and is advanced.
    """
    tokens, branch, size = list(state.token_ids), state.branch, info.vocab_size
    windows = [group.window for group in info.groups]
    mask = b""
    while True:
        position, seen = len(tokens), visible(tokens, windows)
        if grammar is not None and not any(mask := grammar.mask()):
            return tokens[state.num_prompt_tokens :]
        token = next_token(state, branch, seen, position=position, vocab_size=size, mask=mask)
        tokens.append(token)
        if grammar is not None:
            grammar.accept(token)
        num_output = position + 1 - state.num_prompt_tokens
        stopped = token in stop_ids and num_output > state.banned_until
        if stopped or num_output >= limit or (grammar is not None and grammar.is_complete):
            return tokens[state.num_prompt_tokens :]


def foresee(
    state: SlotState,
    info: RunnerInfo,
    *,
    limit: int,
    wrong: int,
    grammar: GrammarState | None = None,
) -> list[int]:
    """The ``limit`` tokens that will follow, but for number ``wrong``: another one.

    Fewer where a grammar, which is not advanced, lets nothing follow.
    """
    known, end = len(state.token_ids), len(state.token_ids) - state.num_prompt_tokens + limit
    ahead = None if grammar is None else grammar.fork()
    drafts = run_alone(state, info, stop_ids=frozenset(), limit=end, grammar=ahead)
    drafts = drafts[known - state.num_prompt_tokens :]
    if wrong < len(drafts):
        drafts[wrong] = (drafts[wrong] + 1) % info.vocab_size
    return drafts


def run_beam_alone(
    state: SlotState, info: RunnerInfo, *, stop_ids: frozenset[int], limit: int
) -> list[Hypothesis]:
    """What a beam search finds, by full recomputation and without any engine."""
    sampling, windows = state.sampling, [group.window for group in info.groups]

    def continuations(output: tuple[int, ...]) -> tuple[tuple[int, float], ...]:
        seen = visible((*state.token_ids, *output), windows)
        return next_candidates(state, seen, count=state.num_candidates, vocab_size=info.vocab_size)

    task = BeamTask(
        width=sampling.width,
        max_tokens=limit,
        length_penalty=sampling.length_penalty,
        early_stopping=sampling.early_stopping,
        min_tokens=sampling.min_tokens,
        stop_ids=stop_ids,
    )
    return beam_search(continuations, task)


def make_info(
    *,
    block_size: int = 16,
    num_blocks: int = 64,
    windows: tuple[int | None, ...] = (None,),
    max_model_len: int = 4096,
    vocab_size: int = 1000,
) -> RunnerInfo:
    """Facts of a model that does not exist, with one KV group per entry of ``windows``."""
    return RunnerInfo(
        vocab_size=vocab_size,
        max_model_len=max_model_len,
        block_size=block_size,
        num_blocks=num_blocks,
        groups=tuple(
            KVGroupSpec(window=window, num_layers=2, block_bytes=block_size * 8)
            for window in windows
        ),
        fingerprint="fake",
        model_digest="fake-weights",
        tokenizer_digest="fake-tokenizer",
        rope="none",
        kv_dtype="int",
    )
