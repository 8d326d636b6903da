"""The obvious twin of ``worker.batch``: every step's batch from plain lists, nothing kept of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from itertools import pairwise

import numpy as np

from octavo.backends.program import StepBatch
from octavo.core.runner import RunnerInfo
from octavo.core.sampling_params import SamplingParams
from octavo.core.step import RowPlan, SlotState, StepPlan
from octavo.worker.batch import NO_MASKS, build_batch
from octavo.worker.slots import SlotTable, has_penalties

_PARAMS = (
    "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty",
    "frequency_penalty",
)  # fmt: skip


@dataclass
class PlainSlot:
    """A slot's state, all tokens that its rows brought, and its tables."""

    state: SlotState
    tokens: list[int]
    blocks: dict[int, list[int]] = field(default_factory=dict)
    first_position: dict[int, int] = field(default_factory=dict)

    @property
    def params(self) -> SamplingParams:
        return self.state.sampling


class PlainBatches:
    """Takes plans, one after the other, and says what their batches must hold."""

    def __init__(self, info: RunnerInfo) -> None:
        self.info = info
        self.generation = 0
        self.slots: dict[int, PlainSlot] = {}

    def take(self, plan: StepPlan) -> None:
        """Slots and rows of a plan."""
        if plan.generation != self.generation:
            self.generation = plan.generation
            self.slots.clear()
        for slot in plan.freed_slots:
            del self.slots[slot]
        for state in plan.new_slots:
            self.slots[state.slot] = PlainSlot(state, list(state.token_ids))
        for row in plan.rows:
            slot = self.slots[row.slot]
            slot.tokens[row.start :] = [
                *row.token_ids, *slot.tokens[row.start + len(row.token_ids) :]
            ]  # fmt: skip
            for change in row.tables:
                kept = slot.blocks.get(change.group, [])[: change.keep]
                slot.blocks[change.group] = [*kept, *change.blocks]
                slot.first_position[change.group] = change.first_position

    def expected(self, plan: StepPlan) -> dict[str, object]:
        """Name of a field, here or of the samples, → its values."""
        rows, groups = plan.rows, range(len(self.info.groups))
        samples: list[dict[str, object]] = []
        start, starts = 0, [0]
        for index, row in enumerate(rows):
            samples += self._samples(plan, index, row, start)
            start += len(row.token_ids)
            starts.append(start)
        found: dict[str, object] = {
            "token_ids": [token for row in rows for token in row.token_ids],
            "query_start_loc": starts,
            "context_lens": [row.start for row in rows],
            "slots": [row.slot for row in rows],
            "first_position": [
                [self.slots[row.slot].first_position.get(group, 0) for row in rows]
                for group in groups
            ],
            "copies": [[c.group, c.src, c.dst, c.num_tokens] for c in plan.copies],
            "want_hidden": any(sample["hidden"] for sample in samples),
        }
        found |= {name: [sample[name] for sample in samples] for name in _SAMPLE}
        return found

    def _samples(
        self, plan: StepPlan, index: int, row: RowPlan, start: int
    ) -> list[dict[str, object]]:
        slot, length, found = self.slots[row.slot], len(row.token_ids), []
        for at in range(row.num_scored):
            sample = self._sample(plan, index, slot, position=row.start + at + 1)
            sample["token_index"], sample["branch"] = start + at, slot.state.branch
            sample["num_logprobs"] = slot.params.prompt_logprobs
            sample["forced"] = slot.state.token_ids[row.start + at + 1]
            found.append(sample)
        for behind in range(row.num_drafts, -1, -1):
            for branch in range(slot.state.branch, slot.state.branch + row.num_samples):
                position = row.start + length - behind
                sample = self._sample(plan, index, slot, position=position)
                sample["token_index"] = start + length - behind - 1
                sample["branch"] = branch
                probe = slot.state.probe
                if probe is not None and not probe.hidden:
                    answered = position - slot.state.num_prompt_tokens
                    sample["forced"] = probe.labels[branch][answered]
                found.append(sample)
        return found

    def _sample(
        self, plan: StepPlan, index: int, slot: PlainSlot, *, position: int
    ) -> dict[str, object]:
        state, params = slot.state, slot.params
        bias = sorted(dict(params.logit_bias).items())
        row = plan.rows[index]
        mask = [m.words for m in plan.grammar_masks if m.row == index
                and row.start + m.offset + 1 == position]  # fmt: skip
        banned = set()
        if position < state.num_prompt_tokens + state.banned_until:
            banned = set(state.banned_token_ids)
        behind = tuple(slot.tokens[:position])
        for run in params.bad_token_ids:
            if len(run) == 1 or behind[len(behind) - len(run) + 1 :] == run[:-1]:
                banned.add(run[-1])
        return {name: np.float32(getattr(params, name)) for name in _PARAMS} | {
            "seed": state.seed % 2**64,
            "position": position,
            "num_logprobs": max(params.num_logprobs, state.num_candidates or -1),
            "num_prompt": state.num_prompt_tokens,
            "history": list(behind) if has_penalties(params) else [],
            "bias_ids": [token for token, _ in bias],
            "bias_values": [np.float32(value) for _, value in bias],
            "banned": sorted(banned),
            "mask": np.frombuffer(mask[-1], "<u4").tolist() if mask else self._allowed(params),
            "forced": -1,
            "hidden": state.probe is not None and state.probe.hidden,
        }

    def _allowed(self, params: SamplingParams) -> list[int]:
        if not params.allowed_token_ids:
            return []
        words = [0] * -(-self.info.vocab_size // 32)
        for token in params.allowed_token_ids:
            words[token // 32] |= 1 << token % 32
        return words


_SAMPLE = (
    *_PARAMS, "seed", "branch", "position", "token_index", "num_logprobs", "num_prompt", "history",
    "bias_ids", "bias_values", "banned", "mask", "forced",
)  # fmt: skip


def strays(batch: StepBatch) -> list[str]:
    """Arrays of another type than their fields say, or not contiguous: no backend converts them."""
    found = []
    for owner in (batch, batch.sample):
        for item in fields(owner):
            if (kind := re.search(r"NDArray\[np\.(\w+)\]", str(item.type))) is None:
                continue
            held = getattr(owner, item.name)
            for array in held if isinstance(held, tuple) else (held,):
                if array.dtype != kind[1] or not array.flags.c_contiguous:
                    found.append(item.name)
    return found


def described(batch: StepBatch) -> dict[str, object]:
    """A batch in the terms of ``PlainBatches.expected``."""
    sample = batch.sample
    found: dict[str, object] = {
        item.name: getattr(sample, item.name).tolist()
        for item in fields(sample)
        if item.name in _SAMPLE
    }
    for name in ("token_ids", "query_start_loc", "context_lens", "slots", "copies"):
        found[name] = getattr(batch, name).tolist()
    found["first_position"] = [first.tolist() for first in batch.first_position]
    found["want_hidden"] = batch.want_hidden
    for name, values, start in (
        ("history", sample.history, sample.history_start),
        ("bias_ids", sample.bias_ids, sample.bias_start),
        ("bias_values", sample.bias_values, sample.bias_start),
        ("banned", sample.banned_ids, sample.banned_start),
    ):
        found[name] = [values[a:b].tolist() for a, b in pairwise(start.tolist())]
    found["mask"] = [
        sample.masks[line].tolist() if line >= 0 else [] for line in sample.mask_index.tolist()
    ]
    return found


class BatchWatch:
    """Holds the batches of ``build_batch`` against their twins, plan by plan."""

    def __init__(self, info: RunnerInfo, max_slots: int) -> None:
        width = -(-info.max_model_len // info.block_size) + 1
        self.plain = PlainBatches(info)
        self.table = SlotTable(
            max_slots=max_slots, max_blocks=width, num_groups=len(info.groups),
            vocab_size=info.vocab_size,
        )  # fmt: skip
        self.generation = 0
        self.num_kept = self.num_new = 0

    def check(self, plan: StepPlan) -> None:
        """One more plan: the batch, and the blocks that its rows can reach, are as they must be."""
        if plan.generation != self.generation:
            self.table.clear()
            self.generation = plan.generation
        for slot in plan.freed_slots:
            self.table.free(slot)
        for state in plan.new_slots:
            self.table.assign(state)
        self.table.update(plan.rows)
        self.plain.take(plan)
        before = self.table.layout
        batch = build_batch(plan, self.table, allowed=NO_MASKS)
        self.num_kept += self.table.layout is before
        self.num_new += self.table.layout is not before
        assert strays(batch) == []
        found, expected = described(batch), self.plain.expected(plan)
        assert {n: v for n, v in found.items() if expected[n] != v} == {}
        assert found.keys() == expected.keys()
        for row in plan.rows:
            for group, blocks in self.plain.slots[row.slot].blocks.items():
                line = self.table.block_tables[group][row.slot]
                assert line[: len(blocks)].tolist() == blocks
