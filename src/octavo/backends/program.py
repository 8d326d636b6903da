"""A model as a flat program of coarse ops, and the boundary that every backend implements.

The program is data: ``models.decoder`` builds it once per model, ``reference`` interprets it,
``native`` walks it in one call per step. Three activations exist, all of one row per token:

    x     [T, hidden]                              the residual stream
    qkv   [T, (heads + 2 · kv_heads) · head_dim]   written by NormLinear, read by PagedAttention
    attn  [T, heads · head_dim]                    written by PagedAttention, read by LinearResidual

Weight fields are canonical tensor names; "" means absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from octavo.weights.tensor import LogicalTensor


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """Rotary embedding (Su et al., 2021).

    ``inv_freq`` has head_dim / 2 float32 values with all scaling (linear, llama3) already applied;
    the angle is position · inv_freq[i]. ``interleaved`` pairs dimensions (2i, 2i + 1), as GGUF
    stores llama; otherwise (i, i + head_dim / 2). ``name`` describes it for the prefix key.
    """

    inv_freq: tuple[float, ...]
    interleaved: bool
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Embed:
    """x = table[token_ids] · scale"""

    table: str
    scale: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NormLinear:
    """qkv = rmsnorm(x, norm) @ concat(weights).T + concat(biases)"""

    norm: str
    eps: float
    weights: tuple[str, ...]
    biases: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedAttention:
    """Rotate q and k of ``qkv``, write k and v to the cache, attend from the cache: → attn.

    Query position p sees cache positions s with s ≤ p and, with a window, p - s < window.
    ``layer`` indexes the layers of its KV ``group``.
    """

    layer: int
    group: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    rope: RopeSpec
    window: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearResidual:
    """x += attn @ weight.T + bias"""

    weight: str
    bias: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NormMlp:
    """h = rmsnorm(x, norm); x += (act(h @ gate.T) · (h @ up.T)) @ down.T"""

    norm: str
    eps: float
    gate: str
    up: str
    down: str
    activation: str = "silu"


@dataclass(frozen=True, slots=True, kw_only=True)
class NormHead:
    """logits = rmsnorm(x[sampled rows], norm) @ weight.T, in float32, for rows that sample"""

    norm: str
    eps: float
    weight: str


Op = Embed | NormLinear | PagedAttention | LinearResidual | NormMlp | NormHead


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A whole decoder. ``k_slices`` is V: row-parallel products are summed over V slices of K."""

    ops: tuple[Op, ...]
    hidden_size: int
    vocab_size: int
    num_layers: int
    k_slices: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLayout:
    """The paged pool: per KV group, its layer count. All groups share block size and dtype."""

    block_size: int
    num_blocks: int
    group_layers: tuple[int, ...]
    num_kv_heads: int
    head_dim: int
    kv_dtype: str = "bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleBatch:
    """S samples to draw; row i samples after flat token ``token_index[i]``. Arrays of length S.

    Frozen, so that a backend knows all of its arrays again by the one object; what is in them may
    change.

    CSR pairs (``*_start`` has S + 1 entries): ``history`` is prompt + output tokens of rows whose
    penalties need it (empty otherwise) with ``num_prompt`` of it prompt; ``bias`` are (id, value)
    pairs; ``banned`` are ids that may not be sampled. ``mask_index`` -1, or a row of ``masks``
    (uint32 bit words, [M, ⌈V/32⌉]). ``position`` is the index in the sequence of the token being
    sampled (key of its noise). ``num_logprobs`` -1: none; k: chosen plus top k; the largest of them
    is ``max_logprobs``. ``forced`` ≥ 0 is a token that is taken without a choice, to be scored.
    """

    token_index: NDArray[np.int32]
    seed: NDArray[np.uint64]
    branch: NDArray[np.int32]
    position: NDArray[np.int32]
    temperature: NDArray[np.float32]
    top_k: NDArray[np.int32]
    top_p: NDArray[np.float32]
    min_p: NDArray[np.float32]
    repetition_penalty: NDArray[np.float32]
    presence_penalty: NDArray[np.float32]
    frequency_penalty: NDArray[np.float32]
    num_logprobs: NDArray[np.int32]
    num_prompt: NDArray[np.int32]
    history_start: NDArray[np.int32]
    history: NDArray[np.int32]
    bias_start: NDArray[np.int32]
    bias_ids: NDArray[np.int32]
    bias_values: NDArray[np.float32]
    banned_start: NDArray[np.int32]
    banned_ids: NDArray[np.int32]
    mask_index: NDArray[np.int32]
    masks: NDArray[np.uint32]
    forced: NDArray[np.int32]
    max_logprobs: int = -1


@dataclass(slots=True, kw_only=True)
class StepBatch:
    """One mixed batch of R rows and T flat tokens; nothing is inferred from shapes.

    ``query_start_loc`` [R + 1] int32; row r computes positions ``context_lens[r] + i``.
    ``block_tables[g]`` is a persistent int32 array [slots, max_blocks]; row r uses line
    ``slots[r]``, whose entry i covers positions ``first_position[g][r] + [i·P, (i+1)·P)``.
    ``copies`` [C, 4] int32 of (group, src, dst, num_tokens), applied before any write.
    ``want_logits`` asks for the raw float32 logits of the sample rows as well, ``want_hidden`` for
    what the head reads of them: the normalised final hidden states.
    """

    token_ids: NDArray[np.int32]
    query_start_loc: NDArray[np.int32]
    context_lens: NDArray[np.int32]
    slots: NDArray[np.int32]
    block_tables: tuple[NDArray[np.int32], ...]
    first_position: tuple[NDArray[np.int32], ...]
    copies: NDArray[np.int32]
    sample: SampleBatch
    want_logits: bool = False
    want_hidden: bool = False


@dataclass(slots=True)
class StepOutput:
    """Per sample: token [S], -1 where none could be drawn, and what was asked for besides.

    That is logprob [S] (of raw logits), top ids and logprobs [S, K], which may be ``NO_LOGPROBS``
    where no sample asks for any; logits [S, V] and the final hidden states [S, H], in float32.
    """

    token_ids: tuple[int, ...]
    logprobs: NDArray[np.float32]
    top_ids: NDArray[np.int32]
    top_logprobs: NDArray[np.float32]
    logits: NDArray[np.float32] | None = None
    hidden: NDArray[np.float32] | None = None


# Logprobs, top ids and top logprobs of a step that tells none.
NO_LOGPROBS = (np.zeros(0, np.float32), np.zeros((0, 0), np.int32), np.zeros((0, 0), np.float32))


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendOptions:
    """``num_threads`` 0: from affinity and cgroup quota. ``isa`` "": the best that cpuid offers.

    ``activation`` "int8" or "f32" (the accuracy path). ``max_tokens``: most tokens of one step.
    """

    num_threads: int = 0
    isa: str = ""
    activation: str = "int8"
    max_tokens: int = 512


class Executor(Protocol):
    """A loaded model with its KV pool: numbers in, numbers out."""

    @property
    def fingerprint(self) -> str:
        """The numerics fingerprint: what the bits of an answer depend on besides the weights."""

    @property
    def progress(self) -> int:
        """A counter that grows with every layer computed."""

    def forward(self, batch: StepBatch) -> StepOutput:
        """Copies, then the whole program over the batch, then sampling."""

    def read_block(
        self, group: int, layer: int, block: int
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """K and V of one block as float32 [block_size, kv_heads, head_dim] (tests, transfer)."""

    def poison_blocks(self, blocks: NDArray[np.int32]) -> None:
        """Fill every group's and layer's slots of ``blocks`` with NaN (tests)."""

    def close(self) -> None:
        """Free memory and threads. Idempotent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTime:
    """What one kind of op took since the profile began.

    ``read_bytes`` are weights and KV read, ``operations`` multiplications and additions.
    """

    op: str
    calls: int
    seconds: float
    read_bytes: int
    operations: int


@runtime_checkable
class ProfilingExecutor(Protocol):
    """What an executor offers besides when it can time its ops."""

    @property
    def span(self) -> tuple[float, float]:
        """When the last step began and ended on ``time.perf_counter``, Python's part left out."""

    def start_profile(self) -> None:
        """Forget earlier times and time every op from now on."""

    def op_times(self) -> list[OpTime]:
        """Times since ``start_profile``, in the order of the program."""


class Backend(Protocol):
    """Makes executors."""

    name: str

    def load(
        self,
        program: Program,
        tensors: Mapping[str, LogicalTensor],
        layout: CacheLayout,
        *,
        options: BackendOptions,
    ) -> Executor:
        """Pack the weights, allocate the pool."""

    def kv_block_bytes(self, layout: CacheLayout, group: int) -> int:
        """Bytes of one block of a group over all its layers, scales and padding included."""
