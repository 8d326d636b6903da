"""The sampler's definition: one row of logits and its parameters in, one token out.

The order is fixed: penalties, bias, bans and mask, temperature, top-k, top-p, min-p, then the
Gumbel-max choice. Candidates stand by (logit falling, id rising); ties go to the lowest id. What
runs is decided by the row's own parameters only. ``native/sampler.cpp`` gives the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from octavo.sampling.elementary import MASS_SCALE, exp32, log32, mass32
from octavo.sampling.philox import gumbel

NO_TOKEN = -1
"""The answer where every token is banned, masked or has a non-finite logit."""

_F = np.float32
# A temperature below the smallest normal number is greedy: dividing by it means nothing.
_GREEDY_BELOW = np.finfo(np.float32).tiny


def _no_ids() -> NDArray[np.int32]:
    return np.zeros(0, np.int32)


def _no_values() -> NDArray[np.float32]:
    return np.zeros(0, np.float32)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampleRow:
    """Parameters of one sample.

    ``position`` is the index in the sequence of the token being sampled. ``history`` is prompt
    and output tokens, the first ``num_prompt`` of them prompt: the repetition penalty looks at
    all, presence and frequency at the output only. ``mask`` is ⌈V / 32⌉ uint32 words, bit set =
    allowed. ``num_logprobs`` -1: none; k: the chosen token's and the top k. ``top_k`` <= 0,
    ``top_p`` >= 1 and ``min_p`` <= 0 are off. ``forced`` is a token that is taken without a choice,
    whatever the other parameters say, if its logit is finite.
    """

    seed: int
    branch: int
    position: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    num_logprobs: int = -1
    num_prompt: int = 0
    history: NDArray[np.int32] = field(default_factory=_no_ids)
    bias_ids: NDArray[np.int32] = field(default_factory=_no_ids)
    bias_values: NDArray[np.float32] = field(default_factory=_no_values)
    banned_ids: NDArray[np.int32] = field(default_factory=_no_ids)
    mask: NDArray[np.uint32] | None = None
    forced: int = NO_TOKEN


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """The token (or NO_TOKEN), its logprob and the top ones, all of the raw logits.

    ``logprob`` is 0 when none were asked for and -inf for NO_TOKEN. ``top_ids`` [k] and
    ``top_logprobs`` [k] stand by falling logit, ties by id; missing ones are NO_TOKEN, -inf.
    """

    token: int
    logprob: float
    top_ids: NDArray[np.int32]
    top_logprobs: NDArray[np.float32]


def sample_row(logits: NDArray[np.float32], row: SampleRow) -> Sample:
    """Sample one token from raw ``logits`` [V], which are left unchanged."""
    # Overflow and NaN have defined outcomes below: a value that is not finite is no candidate.
    with np.errstate(all="ignore"):
        if row.forced >= 0:
            token = row.forced if np.isfinite(logits[row.forced]) else NO_TOKEN
        else:
            token = _choose(adjust_logits(logits, row), row)
        logprob, top_ids, top_logprobs = _logprobs(logits, token, row.num_logprobs)
    return Sample(token, logprob, top_ids, top_logprobs)


def adjust_logits(logits: NDArray[np.float32], row: SampleRow) -> NDArray[np.float32]:
    """Logits [V] after penalties, bias, bans and mask (banned tokens hold -inf)."""
    out = logits.astype(np.float32, copy=True)
    seen = np.unique(row.history)
    penalty = _F(row.repetition_penalty)
    out[seen] = np.where(out[seen] > 0, out[seen] / penalty, out[seen] * penalty)
    said, counts = np.unique(row.history[row.num_prompt :], return_counts=True)
    out[said] = out[said] - _F(row.frequency_penalty) * counts.astype(np.float32)
    out[said] = out[said] - _F(row.presence_penalty)
    for token, value in zip(row.bias_ids, row.bias_values, strict=True):
        out[token] = out[token] + value
    out[row.banned_ids] = -np.inf
    if row.mask is not None:
        ids = np.arange(len(out), dtype=np.uint32)
        allowed = (row.mask[ids >> np.uint32(5)] >> (ids & np.uint32(31))) & np.uint32(1)
        out[allowed == 0] = -np.inf
    return out


def _choose(adjusted: NDArray[np.float32], row: SampleRow) -> int:
    finite = np.isfinite(adjusted)
    if not finite.any():
        return NO_TOKEN
    temperature = _F(row.temperature)
    if temperature < _GREEDY_BELOW:
        return int(np.argmax(np.where(finite, adjusted, -np.inf)))
    ranked = _ranked(adjusted)
    scaled = (adjusted[ranked] - adjusted[ranked[0]]) / temperature
    kept = _kept(scaled, row)
    ids, scaled = ranked[:kept], scaled[:kept]
    if row.min_p > 0:
        likely = exp32(scaled) >= _F(row.min_p)
        likely[0] = True
        ids, scaled = ids[likely], scaled[likely]
    noise = gumbel(ids, seed=row.seed, branch=row.branch, position=row.position)
    score = scaled + noise
    return int(ids[score == score.max()].min())


def _ranked(logits: NDArray[np.float32]) -> NDArray[np.int32]:
    """Ids with a finite logit, by (logit falling, id rising)."""
    ids = np.flatnonzero(np.isfinite(logits)).astype(np.int32)
    return ids[np.lexsort((ids, -logits[ids]))]


def _kept(scaled: NDArray[np.float32], row: SampleRow) -> int:
    """How many of the ranked candidates top-k and then top-p leave; at least one."""
    kept = len(scaled)
    if row.top_k > 0:
        kept = min(kept, row.top_k)
    if _F(row.top_p) < 1:
        # The shortest prefix that holds top_p of the mass that top-k left.
        mass = np.cumsum(mass32(exp32(scaled[:kept])))
        target = float(_F(row.top_p)) * float(mass[-1])
        kept = int(np.argmax(mass.astype(np.float64) >= target)) + 1
    return kept


def _logprobs(
    logits: NDArray[np.float32], token: int, count: int
) -> tuple[float, NDArray[np.int32], NDArray[np.float32]]:
    """logprob = (logit - highest) - log(sum of exp(logit - highest)), the sum in integer mass."""
    top_ids = np.full(max(count, 0), NO_TOKEN, np.int32)
    top_logprobs = np.full(max(count, 0), -np.inf, np.float32)
    if count < 0:
        return 0.0, top_ids, top_logprobs
    ranked = _ranked(logits)
    if len(ranked) == 0:
        return float("-inf"), top_ids, top_logprobs
    shifted = logits - logits[ranked[0]]
    total = float(mass32(exp32(shifted)).sum()) / MASS_SCALE
    logprobs = shifted - log32(np.array([total], np.float32))
    found = min(count, len(ranked))
    top_ids[:found] = ranked[:found]
    top_logprobs[:found] = logprobs[ranked[:found]]
    return float(logprobs[token]) if token >= 0 else float("-inf"), top_ids, top_logprobs
