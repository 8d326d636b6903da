"""Philox4x32-10, the counter-based generator (Salmon et al., "Parallel Random Numbers: As Easy
as 1, 2, 3", SC 2011), and the noise of one token.

A draw is a function of (seed, branch, position, token id) and of nothing else: there is no stream
to save, to restore or to disturb.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo.sampling.elementary import log32

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_WORD = 0xFFFFFFFF


def philox4x32(counter: NDArray[np.uint32], key: tuple[int, int]) -> NDArray[np.uint32]:
    """Four random words per counter: ``counter`` and the result are [..., 4] uint32."""
    words = [counter[..., lane].astype(np.uint64) for lane in range(4)]
    low, high = key
    for _ in range(_ROUNDS):
        product0 = words[0] * _MULTIPLIERS[0]
        product1 = words[2] * _MULTIPLIERS[1]
        words = [
            (product1 >> np.uint64(32)) ^ words[1] ^ np.uint64(low),
            product1 & np.uint64(_WORD),
            (product0 >> np.uint64(32)) ^ words[3] ^ np.uint64(high),
            product0 & np.uint64(_WORD),
        ]
        low = (low + _WEYL[0]) & _WORD
        high = (high + _WEYL[1]) & _WORD
    return np.stack(words, axis=-1).astype(np.uint32)


def uniforms(
    ids: NDArray[np.int32], *, seed: int, branch: int, position: int
) -> NDArray[np.float32]:
    """One number per token id in the open interval (0, 1): (top 23 bits + 1/2) · 2^-23.

    The counter is (id // 4, position, branch, 0), the key is the seed's two halves, and
    id % 4 chooses the word, so that four neighbours share one evaluation.
    """
    counter = np.zeros((len(ids), 4), np.uint32)
    counter[:, 0] = ids >> 2
    counter[:, 1] = position & _WORD
    counter[:, 2] = branch & _WORD
    words = philox4x32(counter, (seed & _WORD, (seed >> 32) & _WORD))
    chosen = np.take_along_axis(words, (ids & 3).astype(np.int64)[:, None], axis=1)[:, 0]
    top = (chosen >> np.uint32(9)).astype(np.float32)
    return (top + np.float32(0.5)) * np.float32(2.0**-23)


def gumbel(ids: NDArray[np.int32], *, seed: int, branch: int, position: int) -> NDArray[np.float32]:
    """Standard Gumbel noise per token id: -log(-log(u))."""
    return -log32(-log32(uniforms(ids, seed=seed, branch=branch, position=position)))
