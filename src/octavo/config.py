"""Configuration: frozen dataclasses by composition, each part handed only its part.

Every value is held against its range when it is made; a ``ConfigError`` names option, value and
limit. What only the model or the machine can decide is checked where the model is loaded.

Pure values: the control plane may import this module. What comes from the machine's environment
is read in ``octavo.environment``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.errors import ConfigError

POLICIES = ("reserve", "estimate", "optimistic")
PROPOSERS = ("off", "ngram", "suffix", "tree", "draft:MODEL")
DRAFT_MODEL = "draft:"
ACTIVATIONS = ("int8", "f32")
KV_DTYPES = ("bf16", "int8")

# Far above what any machine can use: they stop a typing error from sizing an allocation.
MAX_THREADS = 256
MAX_STEP_TOKENS = 1 << 16
MAX_SEQS = 1 << 14
MAX_WAITING = 1 << 20
MAX_DRAFT_TOKENS = 32
MAX_BLOCK_SIZE = 1 << 10
MAX_BLOCKS = 1 << 26
MAX_CONTEXT = 1 << 24
MAX_KV_BYTES = 1 << 48


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Which model, and how its numbers are computed."""

    model: str = "smollm2"
    backend: str = "native"
    activation: str = "int8"
    num_threads: int = 0
    isa: str = ""
    max_model_len: int | None = None

    def __post_init__(self) -> None:
        _choice("activation", self.activation, ACTIVATIONS)
        _whole("num_threads", self.num_threads, (0, MAX_THREADS))
        if self.max_model_len is not None:
            _whole("max_model_len", self.max_model_len, (2, MAX_CONTEXT))


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """The KV pool. ``kv_bytes`` None fits the pool to free memory and cgroup limits."""

    block_size: int = 16
    kv_bytes: int | None = None
    num_blocks: int | None = None
    kv_dtype: str = "bf16"
    prefix_cache: bool = True

    def __post_init__(self) -> None:
        _whole("block_size", self.block_size, (1, MAX_BLOCK_SIZE))
        if self.kv_bytes is not None:
            _whole("kv_memory", self.kv_bytes, (1, MAX_KV_BYTES))
        if self.num_blocks is not None:
            _whole("num_blocks", self.num_blocks, (1, MAX_BLOCKS))
        _choice("kv_dtype", self.kv_dtype, KV_DTYPES)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Batching limits. ``policy`` is reserve, estimate or optimistic.

    ``check_every_n_steps`` 0 never checks the invariants. ``speculate`` names who proposes the
    draft tokens that a step verifies, at most ``num_draft_tokens`` per sequence; no answer changes.
    """

    max_num_batched_tokens: int = 512
    max_num_seqs: int = 64
    max_waiting: int = 1024
    policy: str = "estimate"
    check_every_n_steps: int = 256
    speculate: str = "off"
    num_draft_tokens: int = 7

    def __post_init__(self) -> None:
        _whole("max_num_batched_tokens", self.max_num_batched_tokens, (1, MAX_STEP_TOKENS))
        _whole("max_num_seqs", self.max_num_seqs, (1, MAX_SEQS))
        _whole("max_waiting", self.max_waiting, (1, MAX_WAITING))
        _whole("check_every_n_steps", self.check_every_n_steps, (0, MAX_WAITING))
        _choice("policy", self.policy, POLICIES)
        if not self.draft_model:
            _choice("speculate", self.speculate, PROPOSERS[:-1], also=PROPOSERS[-1])
        _whole("num_draft_tokens", self.num_draft_tokens, (1, MAX_DRAFT_TOKENS))

    @property
    def draft_model(self) -> str:
        """The model that drafts, "" if none does."""
        name = self.speculate
        return name[len(DRAFT_MODEL) :] if str(name).startswith(DRAFT_MODEL) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """All that an engine core needs."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)


def _whole(name: str, value: object, bounds: tuple[int, int]) -> None:
    low, high = bounds
    option = "--" + name.replace("_", "-")
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{option} is {value!r}; it must be an integer", param=name)
    if not low <= value <= high:
        raise ConfigError(f"{option} is {value}; it must be between {low} and {high}", param=name)


def _choice(name: str, value: object, known: tuple[str, ...], *, also: str = "") -> None:
    if value not in known:
        option = "--" + name.replace("_", "-")
        choices = ", ".join((*known, also) if also else known)
        raise ConfigError(f"{option} is {value!r}; choose one of {choices}", param=name)
