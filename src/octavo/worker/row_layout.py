"""The shape of a batch: which rows there are, where they lie, how they sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

RowKey = tuple[int, int, int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLayout:
    """R rows and S samples; ``key`` is per row (slot, tokens, samples, drafts, scored).

    ``starts`` [R + 1] are flat positions, ``slots`` [R]. Of the samples [S]: ``row``, ``ahead``
    (how far behind its row's start it samples), ``is_scored`` (it scores a token of the
    prompt), ``slot_names``, and ``columns``, the fields of
    ``SampleBatch`` that follow from slots alone. Nobody writes to these arrays.
    """

    key: list[RowKey]
    slots: NDArray[np.int32]
    starts: NDArray[np.int32]
    row: NDArray[np.int32]
    ahead: NDArray[np.int32]
    is_scored: NDArray[np.bool_]
    slot_names: list[int]
    columns: dict[str, NDArray[Any]]
