"""Row slots: the persistent per-sequence state of the worker, as arrays indexed by slot.

A plan names slots and carries only what changed, so that building a batch is a handful of array
look-ups whatever the number of sequences.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from octavo.core.probe import Probe
from octavo.core.sampling_params import SamplingParams
from octavo.core.step import RowPlan, SlotState
from octavo.worker.bans import NO_IDS, BadWords, bit_words
from octavo.worker.row_layout import RowLayout

_UINT64 = 1 << 64


class SlotTable:
    """Owns sampling parameters, block tables and the token histories that penalties need.

    ``block_tables[g]`` is int32 [max_slots, max_blocks]; ``first_position[g]`` int32 [max_slots].
    ``layout`` is that of the last batch, None once a slot has changed hands; ``num_moves`` says how
    often a first position has changed.
    ``labels`` are the probes of slots whose samples are given, ``hidden`` those of slots whose rows
    report their hidden state. ``prompts`` are those of slots whose prompt is scored, ``allowed``
    the bit words of what slots may sample that may not sample everything.
    ``num_unsampled`` ids of the vocabulary may be among the likeliest but are no candidates.
    """

    def __init__(
        self,
        *,
        max_slots: int,
        max_blocks: int,
        num_groups: int,
        num_unsampled: int = 0,
        vocab_size: int = 0,
    ) -> None:
        self.max_slots = max_slots
        self.num_candidates: dict[int, int] = {}
        self._num_unsampled = num_unsampled
        self._vocab_size = vocab_size
        self.block_tables = tuple(
            np.zeros((max_slots, max_blocks), np.int32) for _ in range(num_groups)
        )
        self.first_position = tuple(np.zeros(max_slots, np.int32) for _ in range(num_groups))
        self.seed = np.zeros(max_slots, np.uint64)
        self.branch = np.zeros(max_slots, np.int32)
        self.temperature = np.zeros(max_slots, np.float32)
        self.top_k = np.zeros(max_slots, np.int32)
        self.top_p = np.ones(max_slots, np.float32)
        self.min_p = np.zeros(max_slots, np.float32)
        self.repetition_penalty = np.ones(max_slots, np.float32)
        self.presence_penalty = np.zeros(max_slots, np.float32)
        self.frequency_penalty = np.zeros(max_slots, np.float32)
        self.num_logprobs = np.full(max_slots, -1, np.int32)
        self.num_prompt_logprobs = np.full(max_slots, -1, np.int32)
        self.num_prompt = np.zeros(max_slots, np.int32)
        self.banned_until: dict[int, int] = {}
        self.banned: dict[int, NDArray[np.int32]] = {}
        self.bias: dict[int, tuple[NDArray[np.int32], NDArray[np.float32]]] = {}
        self.labels: dict[int, Probe] = {}
        self.hidden: dict[int, Probe] = {}
        self.prompts: dict[int, NDArray[np.int32]] = {}
        self.allowed: dict[int, NDArray[np.uint32]] = {}
        self.bad_words: dict[int, BadWords] = {}
        self._penalised: set[int] = set()
        self._history: dict[int, NDArray[np.int32]] = {}
        self.layout: RowLayout | None = None
        self.num_moves = 0

    def assign(self, state: SlotState) -> None:
        """Give a slot to a sequence; whatever it held before is gone."""
        slot, params = state.slot, state.sampling
        self.free(slot)
        self.seed[slot] = state.seed % _UINT64
        self.branch[slot] = state.branch
        self.temperature[slot] = params.temperature
        self.top_k[slot] = params.top_k
        self.top_p[slot] = params.top_p
        self.min_p[slot] = params.min_p
        self.repetition_penalty[slot] = params.repetition_penalty
        self.presence_penalty[slot] = params.presence_penalty
        self.frequency_penalty[slot] = params.frequency_penalty
        self.num_logprobs[slot] = params.num_logprobs
        if state.num_candidates:
            self.num_candidates[slot] = state.num_candidates
            needed = state.num_candidates + self._num_unsampled
            self.num_logprobs[slot] = max(params.num_logprobs, needed)
        self.num_prompt[slot] = state.num_prompt_tokens
        if state.banned_token_ids and state.banned_until:
            self.banned_until[slot] = state.num_prompt_tokens + state.banned_until
            self.banned[slot] = np.array(sorted(set(state.banned_token_ids)), np.int32)
        if params.logit_bias:
            ids, values = zip(*sorted(dict(params.logit_bias).items()), strict=True)
            self.bias[slot] = (np.array(ids, np.int32), np.array(values, np.float32))
        if state.probe is not None:
            (self.hidden if state.probe.hidden else self.labels)[slot] = state.probe
        if params.prompt_logprobs is not None:
            self.num_prompt_logprobs[slot] = params.prompt_logprobs
            self.prompts[slot] = np.array(state.token_ids[: state.num_prompt_tokens], np.int32)
        if params.allowed_token_ids:
            self.allowed[slot] = bit_words(self._vocab_size, params.allowed_token_ids)
        if params.bad_token_ids:
            self.bad_words[slot] = BadWords(params.bad_token_ids)
        if has_penalties(params):
            self._penalised.add(slot)
        if has_penalties(params) or params.bad_token_ids:
            self._history[slot] = np.zeros(max(256, 2 * len(state.token_ids)), np.int32)
            self._write(slot, 0, state.token_ids)

    def free(self, slot: int) -> None:
        """Forget what a slot held. Idempotent."""
        self.layout = None
        for held in (
            self.banned_until, self.banned, self.bias, self._history, self.num_candidates,
            self.labels, self.hidden, self.prompts, self.allowed, self.bad_words,
        ):  # fmt: skip
            held.pop(slot, None)
        self._penalised.discard(slot)

    def clear(self) -> None:
        """Forget every slot (a full resync follows)."""
        for slot in range(self.max_slots):
            self.free(slot)

    def update(self, rows: Iterable[RowPlan]) -> None:
        """Take the rows' table changes and the tokens that they bring."""
        histories = self._history
        for row in rows:
            slot = row.slot
            for change in row.tables:
                end = change.keep + len(change.blocks)
                if change.blocks:
                    self.block_tables[change.group][slot, change.keep : end] = change.blocks
                first_position = self.first_position[change.group]
                if first_position[slot] != change.first_position:
                    first_position[slot] = change.first_position
                    self.num_moves += 1
            if slot in histories:
                self._write(slot, row.start, row.token_ids)

    def varies(self, slot: int) -> bool:
        """Whether its samples depend on more than its parameters: on its tokens, or on a list."""
        held = (self._penalised, self.banned, self.bad_words, self.allowed, self.labels)
        return any(slot in each for each in held)

    def banned_at(self, slot: int, position: int) -> NDArray[np.int32]:
        """Ids that may not be sampled at ``position``."""
        early = self.banned[slot] if self.banned_until.get(slot, 0) > position else NO_IDS
        words = self.bad_words.get(slot)
        if words is None:
            return early
        return np.union1d(early, words.banned_behind(self._history[slot][:position]))

    def history(self, slot: int, position: int) -> NDArray[np.int32] | None:
        """Tokens before ``position`` (prompt first) where a slot's penalties need them, else None.

        What stands behind them may be drafts of an earlier step that were not accepted.
        """
        return self._history[slot][:position] if slot in self._penalised else None

    def _write(self, slot: int, start: int, tokens: tuple[int, ...]) -> None:
        end = start + len(tokens)
        held = self._history[slot]
        if end > len(held):
            self._history[slot] = np.zeros(2 * end, np.int32)
            self._history[slot][:start] = held[:start]
        self._history[slot][start:end] = tokens


def has_penalties(params: SamplingParams) -> bool:
    """Whether sampling depends on the tokens so far."""
    return (
        params.repetition_penalty != 1.0
        or params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
    )
