"""The seam between control plane and data plane: what the engine needs of a model runner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from octavo.core.step import StepPlan, StepResult


@dataclass(frozen=True, slots=True, kw_only=True)
class KVGroupSpec:
    """One group of layers with the same attention span. ``window`` None is full attention.

    ``block_bytes`` counts K and V of all the group's layers in one block, scales included.
    """

    window: int | None = None
    num_layers: int = 1
    block_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerInfo:
    """Facts of a loaded model and its pool that the control plane plans with.

    ``fingerprint`` is the numerics fingerprint (backend, kernel revision, ISA class, activation
    mode, KV dtype); ``model_digest`` identifies the weights; ``tokenizer_digest`` and ``rope``
    complete the prefix key.
    """

    vocab_size: int
    max_model_len: int
    block_size: int
    num_blocks: int
    groups: tuple[KVGroupSpec, ...] = (KVGroupSpec(),)
    fingerprint: str = ""
    model_digest: str = ""
    tokenizer_digest: str = ""
    rope: str = ""
    kv_dtype: str = ""


class Runner(Protocol):
    """Executes plans. Owns KV bytes and row slots; knows no request, queue or policy."""

    @property
    def info(self) -> RunnerInfo:
        """Facts that do not change while the runner lives."""

    def execute(self, plan: StepPlan) -> StepResult:
        """Apply slots and copies, run one forward over the mixed batch, sample.

        Raises:
            Exception: any fault of the step. The engine drops the step's requests by name.
        """
