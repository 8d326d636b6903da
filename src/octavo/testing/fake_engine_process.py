"""``python -m octavo.testing.fake_engine_process``: the engine process without a model.

Everything is real but the runner, a ``MortalRunner``, so that tests of processes, sockets and
restarts are quick and know when things happen.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from octavo.cluster.child import ChildChannel, run_child
from octavo.cluster.engine_host import EngineHost
from octavo.cluster.engine_loop import EngineLoop
from octavo.cluster.engine_process import welcome_of
from octavo.cluster.transport import RouterTransport, engine_address
from octavo.config import CacheConfig, SchedulerConfig
from octavo.engine import EngineCore
from octavo.grammar import GrammarCompiler
from octavo.testing.fake_runner import FakeRunner, make_info
from octavo.testing.mortal_runner import MortalRunner
from octavo.worker import open_text, token_table


def main(argv: Sequence[str] | None = None) -> int:
    """The process. Returns its exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runtime-dir", type=Path, required=True)
    parser.add_argument("--step-s", type=float, default=0.0)
    parser.add_argument("--num-blocks", type=int, default=64)
    parser.add_argument("--vocab-size", type=int, default=49152)
    parser.add_argument("--max-num-seqs", type=int, default=64)
    parser.add_argument("--token-budget", type=int, default=512)
    parser.add_argument("--grammars-of", default="", help="a model, whose tokens grammars bind")
    parser.add_argument("--poison", type=int, default=-1)
    parser.add_argument("--slow", type=int, default=-1)
    parser.add_argument("--slow-s", type=float, default=0.0)
    parser.add_argument("--hang", type=int, default=-1)
    parser.add_argument("--death-fd", type=int, default=-1)
    parser.add_argument("--status-fd", type=int, default=-1)
    options = parser.parse_args(argv)
    channel = ChildChannel(
        death_fd=options.death_fd, status_fd=options.status_fd, runtime_dir=options.runtime_dir
    )
    return run_child(channel, lambda: _serve(channel, options), name="engine")


def _serve(channel: ChildChannel, options: argparse.Namespace) -> int:
    channel.report("resolved")
    info = make_info(num_blocks=options.num_blocks, vocab_size=options.vocab_size)
    runner = MortalRunner(
        FakeRunner(info),
        step_s=options.step_s,
        poison=options.poison,
        slow=options.slow,
        slow_s=options.slow_s,
        hang=options.hang,
    )
    scheduler = SchedulerConfig(
        max_num_seqs=options.max_num_seqs, max_num_batched_tokens=options.token_budget
    )
    grammars = None
    if options.grammars_of:
        grammars = GrammarCompiler(token_table(open_text(options.grammars_of)[1]))
    core = EngineCore(runner, scheduler, CacheConfig(), epoch=time.time_ns(), grammars=grammars)
    loop = EngineLoop(
        core,
        RouterTransport(engine_address(options.runtime_dir)),
        welcome_of(core, info, scheduler),
        host=EngineHost(core, progress=lambda: runner.progress, grammars=grammars),
        clock=time.monotonic,
    )
    channel.report("ready")
    loop.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
