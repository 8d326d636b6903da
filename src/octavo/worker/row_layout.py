"""The shape of a batch: which rows there are, where they lie, how they sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLayout:
    """R rows and S samples; ``key`` is per row (slot, tokens, samples, drafts).

    ``starts`` [R + 1] are flat positions, ``slots`` [R]. Of the samples [S]: ``row``, ``ahead``
    (how far behind its row's start it samples), ``slot_names``, and ``columns``, the fields of
    ``SampleBatch`` that follow from slots alone. Nobody writes to these arrays.
    """

    key: list[tuple[int, int, int, int]]
    slots: NDArray[np.int32]
    starts: NDArray[np.int32]
    row: NDArray[np.int32]
    ahead: NDArray[np.int32]
    slot_names: list[int]
    columns: dict[str, NDArray[Any]]
