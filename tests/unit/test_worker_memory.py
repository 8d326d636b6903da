"""Pool sizing: what fits, what was asked, and what is refused with its numbers."""

from __future__ import annotations

import pytest

from octavo.errors import ConfigError
from octavo.worker.memory import HEADROOM_BYTES, POOL_CAP_BYTES, available_bytes, pool_blocks

GIB = 1 << 30


def blocks(**changes: int | None) -> int:
    arguments: dict[str, int | None] = {
        "block_bytes": 1 << 20, "kv_bytes": None, "free_bytes": 8 * GIB,
        "wanted_blocks": 10_000, "min_blocks": 2,
    }  # fmt: skip
    return pool_blocks(**(arguments | changes))  # type: ignore[arg-type]


def test_the_default_is_capped_and_never_more_than_wanted() -> None:
    assert blocks() == POOL_CAP_BYTES >> 20
    assert blocks(wanted_blocks=7) == 7
    assert blocks(free_bytes=HEADROOM_BYTES + (100 << 20)) == 50


def test_an_asked_size_is_honoured_or_refused_with_both_numbers() -> None:
    assert blocks(kv_bytes=3 * GIB) == 3 * 1024
    with pytest.raises(ConfigError, match=r"9216 MiB but only \d+ MiB"):
        blocks(kv_bytes=9 * GIB)


def test_too_little_memory_names_the_remedy() -> None:
    with pytest.raises(ConfigError, match="--kv-memory"):
        blocks(free_bytes=HEADROOM_BYTES)


def test_this_machine_has_memory() -> None:
    assert available_bytes() > 0
