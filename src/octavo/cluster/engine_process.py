"""``python -m octavo.cluster.engine_process``: one engine core, its runner and its socket.

Reports to the supervisor, in order: ``resolved`` (the model is on disk), ``stage`` …, ``ready``.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from octavo.cluster.child import ChildChannel, run_child
from octavo.cluster.engine_loop import EngineLoop
from octavo.cluster.messages import Stats, Welcome
from octavo.cluster.transport import RouterTransport, engine_address
from octavo.config import EngineConfig
from octavo.core.runner import RunnerInfo
from octavo.engine import EngineCore
from octavo.weights import PullProgress, pull
from octavo.worker import load_runner

REPORT_INTERVAL_S = 0.2


def main(argv: Sequence[str] | None = None) -> int:
    """The process. Returns its exit code."""
    parser = argparse.ArgumentParser(prog="octavo-engine")
    parser.add_argument("--runtime-dir", type=Path, required=True)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--death-fd", type=int, default=-1)
    parser.add_argument("--status-fd", type=int, default=-1)
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="engine: %(message)s")
    channel = ChildChannel(
        death_fd=options.death_fd, status_fd=options.status_fd, runtime_dir=options.runtime_dir
    )
    return run_child(channel, lambda: _serve(channel, options.runtime_dir, options.config))


def _serve(channel: ChildChannel, runtime_dir: Path, config_path: Path) -> int:
    config = msgspec.json.decode(config_path.read_bytes(), type=EngineConfig)
    pull(config.model.model, progress=_Download(channel).report)
    channel.report("resolved")
    loaded = load_runner(
        config, lambda name, seconds: channel.report("stage", name=name, took=seconds)
    )
    core = EngineCore(loaded.runner, config.scheduler, config.cache, epoch=time.time_ns())
    welcome = welcome_of(core, loaded.runner.info, max_num_seqs=config.scheduler.max_num_seqs)
    loop = EngineLoop(
        core,
        RouterTransport(engine_address(runtime_dir)),
        welcome,
        snapshot=lambda: snapshot_of(core),
        control=lambda verb: _control(core, verb),
        clock=time.monotonic,
    )
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
            self._channel.report(
                "download",
                stage=progress.stage,
                done=progress.done_bytes,
                total=progress.total_bytes,
                licence=progress.licence,
            )


def welcome_of(core: EngineCore, info: RunnerInfo, *, max_num_seqs: int) -> Welcome:
    """The facts that a frontend validates and prints with."""
    return Welcome(
        engine_epoch=core.epoch,
        vocab_size=info.vocab_size,
        max_model_len=info.max_model_len,
        block_size=info.block_size,
        num_blocks=info.num_blocks,
        max_request_tokens=info.num_blocks * info.block_size,
        max_num_seqs=max_num_seqs,
        kv_pool_bytes=info.num_blocks * sum(group.block_bytes for group in info.groups),
        fingerprint=info.fingerprint,
    )


def snapshot_of(core: EngineCore) -> Stats:
    """What metrics and readiness are told of an engine."""
    stats = core.stats()
    return Stats(
        engine_epoch=core.epoch,
        progress=core.progress,
        num_running=stats.num_running,
        num_waiting=stats.num_waiting,
        counters=stats.counters,
        gauges=stats.gauges,
    )


def _control(core: EngineCore, verb: str) -> dict[str, object]:
    """Answer a ``Control``; an unknown verb is answered, not a fault."""
    match verb:
        case "kv":
            return core.debug_kv()
        case "requests":
            return core.debug_requests()
        case "invariants":
            return {"violations": core.check_invariants()}
        case "reset_prefix_cache":
            core.reset_prefix_cache()
            return {}
    return {"error": f"unknown verb {verb}"}


if __name__ == "__main__":
    sys.exit(main())
