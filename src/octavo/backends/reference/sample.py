"""From a batch's sampling arrays to one call of the sampler per sample."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo.backends.program import SampleBatch, StepBatch, StepOutput
from octavo.sampling import SampleRow, sample_row


def sample_batch(logits: NDArray[np.float32], batch: StepBatch) -> StepOutput:
    """Sample from ``logits`` [S, V], one line per entry of ``batch.sample``."""
    sample = batch.sample
    count = len(sample.token_index)
    width = max(0, sample.max_logprobs)
    tokens = []
    output = StepOutput(
        token_ids=(),
        logprobs=np.zeros(count, np.float32),
        top_ids=np.full((count, width), -1, np.int32),
        top_logprobs=np.full((count, width), -np.inf, np.float32),
        logits=logits if batch.want_logits else None,
    )
    for index in range(count):
        drawn = sample_row(logits[index], row_of(sample, index))
        top = len(drawn.top_ids)
        tokens.append(drawn.token)
        output.logprobs[index] = drawn.logprob
        output.top_ids[index, :top] = drawn.top_ids
        output.top_logprobs[index, :top] = drawn.top_logprobs
    output.token_ids = tuple(tokens)
    return output


def row_of(sample: SampleBatch, index: int) -> SampleRow:
    """One line of the arrays."""
    history = slice(sample.history_start[index], sample.history_start[index + 1])
    bias = slice(sample.bias_start[index], sample.bias_start[index + 1])
    banned = slice(sample.banned_start[index], sample.banned_start[index + 1])
    mask = int(sample.mask_index[index])
    return SampleRow(
        seed=int(sample.seed[index]),
        branch=int(sample.branch[index]),
        position=int(sample.position[index]),
        temperature=float(sample.temperature[index]),
        top_k=int(sample.top_k[index]),
        top_p=float(sample.top_p[index]),
        min_p=float(sample.min_p[index]),
        repetition_penalty=float(sample.repetition_penalty[index]),
        presence_penalty=float(sample.presence_penalty[index]),
        frequency_penalty=float(sample.frequency_penalty[index]),
        num_logprobs=int(sample.num_logprobs[index]),
        num_prompt=int(sample.num_prompt[index]),
        history=sample.history[history],
        bias_ids=sample.bias_ids[bias],
        bias_values=sample.bias_values[bias],
        banned_ids=sample.banned_ids[banned],
        mask=sample.masks[mask] if mask >= 0 else None,
        forced=int(sample.forced[index]),
    )
