"""Configuration is held against its ranges when it is made, wherever it comes from."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import msgspec
import pytest

from octavo.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from octavo.errors import ConfigError

REFUSED: list[tuple[type, str, Any]] = [
    (SchedulerConfig, "max_num_batched_tokens", 0),
    (SchedulerConfig, "max_num_batched_tokens", -5),
    (SchedulerConfig, "max_num_batched_tokens", 512.0),
    (SchedulerConfig, "max_num_batched_tokens", True),
    (SchedulerConfig, "max_num_batched_tokens", 1 << 40),
    (SchedulerConfig, "max_num_seqs", 0),
    (SchedulerConfig, "max_waiting", 0),
    (SchedulerConfig, "check_every_n_steps", -1),
    (SchedulerConfig, "policy", "greedy"),
    (CacheConfig, "block_size", 0),
    (CacheConfig, "block_size", "16"),
    (CacheConfig, "kv_bytes", 0),
    (CacheConfig, "num_blocks", -1),
    (CacheConfig, "kv_dtype", "fp4"),
    (CacheConfig, "kv_dtype", "f32"),
    (ModelConfig, "activation", "int4"),
    (ModelConfig, "num_threads", -1),
    (ModelConfig, "num_threads", 100_000),
    (ModelConfig, "max_model_len", 1),
]


@pytest.mark.parametrize(("kind", "name", "value"), REFUSED)
def test_a_value_out_of_range_is_refused_with_option_and_value(
    kind: type, name: str, value: object
) -> None:
    with pytest.raises(ConfigError) as caught:
        kind(**{name: value})
    option = "--kv-memory" if name == "kv_bytes" else "--" + name.replace("_", "-")
    assert option in caught.value.message
    assert repr(value) in caught.value.message
    assert "between" in caught.value.message or "must be" in caught.value.message or (
        "choose" in caught.value.message
    )  # fmt: skip


def test_every_number_has_a_range() -> None:
    for kind in (SchedulerConfig, CacheConfig, ModelConfig):
        for field in fields(kind):
            if isinstance(field.default, bool) or "int" not in str(field.type):
                continue
            for absurd in (-1, 1 << 60, 1.5, "1"):
                with pytest.raises(ConfigError):
                    kind(**{field.name: absurd})


def test_the_wire_is_checked_too() -> None:
    good = msgspec.json.encode(EngineConfig())
    assert msgspec.json.decode(good, type=EngineConfig) == EngineConfig()
    bad = good.replace(b'"max_num_batched_tokens":512', b'"max_num_batched_tokens":0')
    with pytest.raises(ConfigError, match="--max-num-batched-tokens is 0"):
        msgspec.json.decode(bad, type=EngineConfig)
