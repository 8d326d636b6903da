"""Configuration: frozen dataclasses by composition, each part handed only its part.

Pure values: the control plane may import this module. What comes from the machine's environment
is read in ``octavo.environment``.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Which model, and how its numbers are computed."""

    model: str = "smollm2"
    backend: str = "native"
    activation: str = "int8"
    num_threads: int = 0
    isa: str = ""
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """The KV pool. ``kv_bytes`` None fits the pool to free memory and cgroup limits."""

    block_size: int = 16
    kv_bytes: int | None = None
    num_blocks: int | None = None
    kv_dtype: str = "bf16"
    prefix_cache: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Batching limits. ``policy`` is reserve, estimate or optimistic."""

    max_num_batched_tokens: int = 512
    max_num_seqs: int = 64
    max_waiting: int = 1024
    policy: str = "estimate"
    check_every_n_steps: int = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """All that an engine core needs."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
