"""What may not be sampled: bit words of what may, and words that may not be completed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

NO_IDS = np.zeros(0, np.int32)


def bit_words(vocab_size: int, token_ids: Sequence[int]) -> NDArray[np.uint32]:
    """Bit words [⌈V/32⌉] in which the bits of ``token_ids`` are set."""
    bits = np.zeros(-(-vocab_size // 32) * 32, np.uint8)
    bits[np.asarray(token_ids)] = 1
    return np.packbits(bits, bitorder="little").view("<u4").astype(np.uint32)


class BadWords:
    """Runs of tokens of which none may be completed, by the token that would complete them."""

    def __init__(self, runs: Iterable[tuple[int, ...]]) -> None:
        self._alone = [run[-1] for run in runs if len(run) == 1]
        self._behind: dict[int, list[tuple[int, ...]]] = {}
        for run in runs:
            if len(run) > 1:
                self._behind.setdefault(run[-2], []).append(run)

    def banned_behind(self, tokens: NDArray[np.int32]) -> NDArray[np.int32]:
        """Ids that may not follow ``tokens``."""
        last = int(tokens[-1]) if len(tokens) else -1
        found = [
            run[-1]
            for run in self._behind.get(last, ())
            if tuple(tokens[len(tokens) - len(run) + 1 :].tolist()) == run[:-1]
        ]
        return np.array(self._alone + found, np.int32)
