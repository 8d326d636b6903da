"""What crosses the sockets between a frontend and an engine core: msgpack, never pickle.

A frontend (DEALER) and an engine (ROUTER) exchange tagged structs. Every message carries the
sender's epoch, so that one from a dead process is recognised and dropped.

    frontend → engine   Hello · SubmitMessage · AbortMessage · StopBranchMessage · Lease · Control
    engine → frontend   Welcome · Outputs · Beat · Stats · ControlReply
"""

from __future__ import annotations

import msgspec

from octavo.core.request import BranchOutput, Submit, TokenRun

PROTOCOL_VERSION = 3


class Hello(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """First message of a frontend; repeated until a ``Welcome`` answers."""

    client_epoch: int
    version: int = PROTOCOL_VERSION


class SubmitMessage(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Run a request (again, when ``submit.branch_tokens`` is not empty)."""

    client_epoch: int
    submit: Submit


class AbortMessage(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Cancel requests. Idempotent."""

    client_epoch: int
    request_ids: list[str]


class StopBranchMessage(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """End one branch: its text met a stop string."""

    client_epoch: int
    request_id: str
    branch: int


class Lease(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """The frontend is alive; without one for a while the engine cancels its requests."""

    client_epoch: int


class Control(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """A question or order; an unknown ``verb`` is answered with ``{"error": …}``.

    "kv" (block dump), "requests" (what runs and waits), "invariants" (check them now),
    "reset_prefix_cache".
    """

    client_epoch: int
    call_id: int
    verb: str


class Welcome(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """The engine is ready: the facts that a frontend validates and prints with.

    ``max_request_tokens`` is what the whole pool holds. ``fingerprint`` (numerics) and
    ``model_digest`` (weights) say whether a continuation would be the same one.
    """

    engine_epoch: int
    vocab_size: int
    max_model_len: int
    block_size: int
    num_blocks: int
    max_request_tokens: int
    max_num_seqs: int
    kv_pool_bytes: int
    fingerprint: str
    model_digest: str
    kv_dtype: str = ""
    kv_layout: str = ""
    max_waiting: int = 0
    max_num_batched_tokens: int = 0


class Outputs(msgspec.Struct, tag=True, frozen=True, kw_only=True, omit_defaults=True):
    """What one step gave to this frontend's requests: ``run`` is of branches beside ``outputs``."""

    engine_epoch: int
    outputs: list[BranchOutput] = []
    run: TokenRun | None = None

    def branch_outputs(self) -> list[BranchOutput]:
        """All of it, an output per branch."""
        return self.outputs if self.run is None else self.outputs + self.run.outputs()


class Stats(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """A snapshot for metrics and readiness, sent a few times a second while there is work."""

    engine_epoch: int
    progress: int
    num_running: int
    num_waiting: int
    counters: dict[str, int]
    gauges: dict[str, float]


class Beat(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """Sent during a long step: the runner's work counter, the one that ``Stats`` carries after it.

    It grows with every layer, so a step that takes long and one that hangs can be told apart.
    """

    engine_epoch: int
    progress: int


class ControlReply(msgspec.Struct, tag=True, frozen=True, kw_only=True):
    """The answer to a ``Control``, as a JSON-able object."""

    engine_epoch: int
    call_id: int
    body: dict[str, object]


FrontendMessage = Hello | SubmitMessage | AbortMessage | StopBranchMessage | Lease | Control
EngineMessage = Welcome | Outputs | Beat | Stats | ControlReply
