"""``python -m octavo.cluster.engine_process``: one engine core, its runner and its socket.

Reports to the supervisor, in order: ``resolved`` (the model is on disk), ``stage`` …, ``ready``.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import msgspec

from octavo.cluster.child import ChildChannel, run_child
from octavo.cluster.engine_host import EngineHost
from octavo.cluster.engine_loop import EngineLoop
from octavo.cluster.heap import settle_heap
from octavo.cluster.messages import Welcome
from octavo.cluster.step_budget import StepBudget
from octavo.cluster.transport import RouterTransport, engine_address
from octavo.config import EngineConfig, SchedulerConfig
from octavo.core.runner import RunnerInfo
from octavo.engine import EngineCore
from octavo.grammar import GrammarCompiler
from octavo.weights import PullProgress, pull
from octavo.worker import load_runner, token_table

REPORT_INTERVAL_S = 0.2
POOL_FILE = "pool.json"


class _Pool(msgspec.Struct, frozen=True, kw_only=True):
    """What a restarted engine takes over from the first."""

    num_blocks: int
    max_model_len: int


def main(argv: Sequence[str] | None = None) -> int:
    """The process. Returns its exit code."""
    parser = argparse.ArgumentParser(prog="octavo-engine")
    parser.add_argument("--runtime-dir", type=Path, required=True)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--death-fd", type=int, default=-1)
    parser.add_argument("--status-fd", type=int, default=-1)
    options = parser.parse_args(argv)
    channel = ChildChannel(
        death_fd=options.death_fd, status_fd=options.status_fd, runtime_dir=options.runtime_dir
    )
    return run_child(
        channel, lambda: _serve(channel, options.runtime_dir, options.config), name="engine"
    )


def _serve(channel: ChildChannel, runtime_dir: Path, config_path: Path) -> int:
    config = _pinned(msgspec.json.decode(config_path.read_bytes(), type=EngineConfig), runtime_dir)
    pull(config.model.model, progress=_Download(channel).report)
    channel.report("resolved")
    loaded = load_runner(
        config, lambda name, seconds: channel.report("stage", name=name, took=seconds)
    )
    runner = loaded.runner
    grammars = GrammarCompiler(token_table(loaded.tokenizer))
    core = EngineCore(
        runner, config.scheduler, config.cache, epoch=time.time_ns(), grammars=grammars
    )
    welcome = welcome_of(core, runner.info, config.scheduler)
    budget = StepBudget(
        block_size=runner.info.block_size, ceiling=config.scheduler.max_num_batched_tokens
    )
    host = EngineHost(core, progress=lambda: runner.progress, budget=budget, grammars=grammars)
    loop = EngineLoop(
        core, RouterTransport(engine_address(runtime_dir)), welcome, host=host, clock=time.monotonic
    )
    _pin(runner.info, runtime_dir)
    settle_heap()
    channel.report(
        "ready",
        context=welcome.max_model_len,
        concurrency=config.scheduler.max_num_seqs,
        num_blocks=welcome.num_blocks,
        block_size=welcome.block_size,
        kv_bytes=welcome.kv_pool_bytes,
        weight_bytes=loaded.weight_bytes,
        fingerprint=welcome.fingerprint,
    )
    loop.run()
    return 0


class _Download:
    """Passes a pull's progress on, a few times a second."""

    def __init__(self, channel: ChildChannel) -> None:
        self._channel = channel
        self._stage = ""
        self._reported_at = 0.0

    def report(self, progress: PullProgress) -> None:
        now = time.monotonic()
        if progress.stage != self._stage or now - self._reported_at > REPORT_INTERVAL_S:
            self._stage, self._reported_at = progress.stage, now
            self._channel.report("download", **asdict(progress))


def welcome_of(core: EngineCore, info: RunnerInfo, scheduler: SchedulerConfig) -> Welcome:
    """The facts that a frontend validates and prints with."""
    # K and V of one block in each layer of a group.
    layout = ", ".join(
        f"{group.num_layers} layers x {group.block_bytes // max(group.num_layers, 1)} bytes"
        for group in info.groups
    )
    return Welcome(
        engine_epoch=core.epoch,
        vocab_size=info.vocab_size,
        max_model_len=info.max_model_len,
        block_size=info.block_size,
        num_blocks=info.num_blocks,
        max_request_tokens=info.num_blocks * info.block_size,
        max_num_seqs=scheduler.max_num_seqs,
        kv_pool_bytes=info.num_blocks * sum(group.block_bytes for group in info.groups),
        fingerprint=info.fingerprint,
        model_digest=info.model_digest,
        kv_dtype=info.kv_dtype,
        kv_layout=layout,
        max_waiting=scheduler.max_waiting,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
    )


def _pinned(config: EngineConfig, runtime_dir: Path) -> EngineConfig:
    """The configuration with the pool of the first engine of this server, if it is not the first.

    A pool fitted afresh might be smaller, and what was running would not fit it any more.
    """
    try:
        pool = msgspec.json.decode((runtime_dir / POOL_FILE).read_bytes(), type=_Pool)
    except FileNotFoundError:
        return config
    return replace(
        config,
        cache=replace(config.cache, num_blocks=pool.num_blocks),
        model=replace(config.model, max_model_len=pool.max_model_len),
    )


def _pin(info: RunnerInfo, runtime_dir: Path) -> None:
    pool = _Pool(num_blocks=info.num_blocks, max_model_len=info.max_model_len)
    partial = runtime_dir / f"{POOL_FILE}.partial"
    partial.write_bytes(msgspec.json.encode(pool))
    partial.replace(runtime_dir / POOL_FILE)


if __name__ == "__main__":
    sys.exit(main())
