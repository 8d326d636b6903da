"""The arguments of ``octavo bench`` and what they run. Imports nothing heavy before it runs."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.environment import environment
from octavo.errors import ConfigError

if TYPE_CHECKING:
    from octavo.bench.figures import Slo
    from octavo.bench.report import Report
    from octavo.config import EngineConfig

AddOptions = Callable[[argparse.ArgumentParser], None]
MakeConfig = Callable[[argparse.Namespace], "EngineConfig"]


def add_arguments(parser: argparse.ArgumentParser, *, add_engine_options: AddOptions) -> None:
    """Add the sub-commands. ``add_engine_options`` adds MODEL and what sizes an engine."""
    kinds = parser.add_subparsers(title="benchmarks", metavar="KIND", dest="bench", required=True)
    for name, about, add in (
        ("throughput", "prefill and decode tokens per second, in process", _throughput_options),
        ("latency", "TTFT, TPOT and ITL of one stream, in process", _latency_options),
        ("step", "what the engine spends between two forwards, in process", _step_options),
        (
            "memory",
            "where KV memory goes, beside contiguous reservation; no model",
            _memory_options,
        ),
        ("serve", "drive any OpenAI-compatible server", _serve_options),
    ):
        kind = kinds.add_parser(name, help=about, description=about.capitalize())
        if name not in ("memory", "serve"):
            add_engine_options(kind)
        add(kind)
        kind.add_argument("--seed", type=int, default=0, help="of lengths, arrivals and prompts")
        kind.add_argument("--json", action="store_true", help="print the report as JSON")


def run(arguments: argparse.Namespace, make_config: MakeConfig) -> int:
    """Run one benchmark and print its report. ``make_config`` reads the engine options.

    Returns 1 when a server failed any request, else 0.

    Raises:
        OctavoError: an option is impossible, or the model or server cannot be used.
    """
    if arguments.bench == "serve":
        report, code = _serve(arguments)
    elif arguments.bench == "memory":
        report, code = _memory(arguments), 0
    else:
        runners = {"throughput": _throughput, "latency": _latency, "step": _step}
        report, code = runners[arguments.bench](arguments, make_config(arguments)), 0
    print(report.json() if arguments.json else report.text())
    return code


# -- in process ------------------------------------------------------------------------------


def _throughput_options(parser: argparse.ArgumentParser) -> None:
    _integers(parser, "--concurrency", (1, 4, 16, 32), about="streams, run in turn")
    _integer(parser, "--prompt-tokens", 128, about="prompt of each stream")
    _integer(parser, "--output-tokens", 128, about="output of each stream")
    _integer(parser, "--prefill-tokens", 512, about="prompt of the prefill figure")
    _integer(
        parser,
        "--prefill-prompts",
        8,
        about="prompts of the prefill figure; 0 leaves it out",
        low=0,
    )
    _integer(
        parser,
        "--shared-prefix-tokens",
        0,
        about="also decode after a prefix, shared and not",
        low=0,
    )
    _integer(parser, "--repeat", 3, about="rounds; figures are medians")


def _throughput(arguments: argparse.Namespace, config: EngineConfig) -> Report:
    from octavo.bench.throughput import ThroughputWorkload, run_throughput

    workload = ThroughputWorkload(
        concurrency=arguments.concurrency,
        prompt_tokens=arguments.prompt_tokens,
        output_tokens=arguments.output_tokens,
        prefill_tokens=arguments.prefill_tokens,
        prefill_prompts=arguments.prefill_prompts,
        shared_prefix_tokens=arguments.shared_prefix_tokens,
        repeat=arguments.repeat,
        seed=arguments.seed,
    )
    return run_throughput(config, workload)


def _latency_options(parser: argparse.ArgumentParser) -> None:
    _integer(parser, "--num-requests", 20, about="requests, one after another")
    _integer(parser, "--prompt-tokens", 128, about="prompt of each")
    _integer(parser, "--output-tokens", 64, about="output of each")


def _latency(arguments: argparse.Namespace, config: EngineConfig) -> Report:
    from octavo.bench.latency import LatencyWorkload, run_latency

    workload = LatencyWorkload(
        num_requests=arguments.num_requests,
        prompt_tokens=arguments.prompt_tokens,
        output_tokens=arguments.output_tokens,
        seed=arguments.seed,
    )
    return run_latency(config, workload)


def _step_options(parser: argparse.ArgumentParser) -> None:
    _integers(parser, "--streams", (1, 16, 64), about="streams, run in turn")
    _integer(parser, "--prompt-tokens", 32, about="prompt of each stream")
    _integer(parser, "--steps", 256, about="decode steps")
    parser.add_argument(
        "--profile", action="store_true", help="time each kind of op, where the backend can"
    )


def _step(arguments: argparse.Namespace, config: EngineConfig) -> Report:
    from octavo.bench.step import StepWorkload, run_step

    workload = StepWorkload(
        streams=arguments.streams,
        prompt_tokens=arguments.prompt_tokens,
        steps=arguments.steps,
        profile=arguments.profile,
        seed=arguments.seed,
    )
    return run_step(config, workload)


# -- without a model --------------------------------------------------------------------------


def _memory_options(parser: argparse.ArgumentParser) -> None:
    _integer(parser, "--num-requests", 120, about="requests of each replay")
    _number(parser, "--rate", 2.0, about="requests per second where policies are compared")
    _integer(parser, "--pool-tokens", 1 << 14, about="slots of the KV pool")
    _integer(parser, "--context", 2048, about="longest prompt and output that is served", low=2)
    _trace_options(parser)


def _memory(arguments: argparse.Namespace) -> Report:
    from octavo.bench.memory import MemoryWorkload, run_memory

    workload = MemoryWorkload(
        num_requests=arguments.num_requests,
        rate_per_s=arguments.rate,
        pool_tokens=arguments.pool_tokens,
        context=arguments.context,
        trace=arguments.trace,
        time_scale=arguments.time_scale,
        length_scale=arguments.length_scale,
        seed=arguments.seed,
    )
    return run_memory(workload)


# -- a server --------------------------------------------------------------------------------


def _serve_options(parser: argparse.ArgumentParser) -> None:
    target = parser.add_argument_group("server")
    target.add_argument("--url", default="http://127.0.0.1:8000", help="default: %(default)s")
    target.add_argument("--model", default="smollm2", help="model name sent (default: %(default)s)")
    target.add_argument("--api", choices=("completions", "chat"), default="completions")
    target.add_argument("--api-key", default="", help="also: OCTAVO_API_KEY")
    target.add_argument(
        "--server-pid", type=int, help="root of the server's processes, for their memory"
    )
    _number(target, "--timeout", 600.0, about="seconds that one request may take")
    _number(target, "--temperature", 0.0, about="sampling temperature")
    target.add_argument(
        "--honour-eos", action="store_true",
        help="let answers end early (default: ignore_eos, so that lengths are as planned)",
    )  # fmt: skip
    load = parser.add_argument_group("workload")
    _integer(load, "--num-requests", 100, about="requests of the run")
    _number(load, "--rate", 0.0, about="open loop: requests per second, Poisson arrivals")
    _integer(load, "--concurrency", 0, about="closed loop: requests in flight", low=0)
    lengths = "tokens: N, uniform:LOW:HIGH, exponential:MEAN or lognormal:MEAN:SIGMA"
    load.add_argument("--prompt-tokens", default="exponential:161", help=lengths)
    load.add_argument("--output-tokens", default="exponential:100", help=lengths)
    _integer(
        load, "--shared-prefix-tokens", 0, about="put a common prefix before each prompt", low=0
    )
    _number(load, "--cancel-fraction", 0.0, about="share of requests that the client leaves midway")
    _integer(load, "--n", 1, about="choices per request")
    _trace_options(load)
    _integer(load, "--max-prompt-tokens", 0, about="cut longer prompts; 0: never", low=0)
    _integer(load, "--max-output-tokens", 0, about="cut longer outputs; 0: never", low=0)
    slo = parser.add_argument_group("goodput")
    slo.add_argument("--slo-ttft-s", type=_finite, help="needs --slo-tpot-s")
    slo.add_argument("--slo-tpot-s", type=_finite, help="needs --slo-ttft-s")


def _trace_options(parser: _Adder) -> None:
    parser.add_argument("--trace", type=Path, help="Azure CSV or Mooncake JSON lines")
    _number(parser, "--time-scale", 1.0, about="stretch a trace's times")
    _number(parser, "--length-scale", 1.0, about="stretch a trace's lengths")


def _serve(arguments: argparse.Namespace) -> tuple[Report, int]:
    from octavo.bench.client import Target
    from octavo.bench.serve import ServeOptions, num_failed, run_serve
    from octavo.bench.workload import ServeWorkload

    if arguments.timeout <= 0:
        raise ConfigError(f"--timeout is {arguments.timeout:g}; it must be above 0 seconds")
    target = Target(
        url=arguments.url,
        model=arguments.model,
        api=arguments.api,
        api_key=arguments.api_key or environment("OCTAVO_API_KEY"),
        ignore_eos=not arguments.honour_eos,
        temperature=arguments.temperature,
        timeout_s=arguments.timeout,
    )
    workload = ServeWorkload(
        num_requests=arguments.num_requests,
        rate_per_s=arguments.rate,
        concurrency=arguments.concurrency,
        prompt_tokens=arguments.prompt_tokens,
        output_tokens=arguments.output_tokens,
        shared_prefix_tokens=arguments.shared_prefix_tokens,
        cancel_fraction=arguments.cancel_fraction,
        max_prompt_tokens=arguments.max_prompt_tokens,
        max_output_tokens=arguments.max_output_tokens,
        trace=arguments.trace,
        time_scale=arguments.time_scale,
        length_scale=arguments.length_scale,
        n=arguments.n,
        seed=arguments.seed,
    )
    report = run_serve(
        ServeOptions(
            target=target,
            workload=workload,
            slo=_slo(arguments),
            server_pid=arguments.server_pid,
        )
    )
    return report, 1 if num_failed(report) else 0


def _slo(arguments: argparse.Namespace) -> Slo | None:
    from octavo.bench.figures import Slo

    ttft, tpot = arguments.slo_ttft_s, arguments.slo_tpot_s
    if ttft is None and tpot is None:
        return None
    if ttft is None or tpot is None or ttft <= 0 or tpot <= 0:
        raise ConfigError("--slo-ttft-s and --slo-tpot-s go together, each above 0 seconds")
    return Slo(ttft_s=ttft, tpot_s=tpot)


# -- argument types --------------------------------------------------------------------------

_Adder = argparse.ArgumentParser | argparse._ArgumentGroup


def _integer(parser: _Adder, option: str, default: int, *, about: str, low: int = 1) -> None:
    def whole(text: str) -> int:
        return _at_least(text, low)

    parser.add_argument(
        option, type=whole, default=default, metavar="N", help=f"{about} (default: {default})"
    )


def _integers(parser: _Adder, option: str, default: tuple[int, ...], *, about: str) -> None:
    def several(text: str) -> tuple[int, ...]:
        return tuple(_at_least(part, 1) for part in text.split(","))

    shown = ",".join(map(str, default))
    parser.add_argument(
        option, type=several, default=default, metavar="N,…", help=f"{about} (default: {shown})"
    )


def _number(parser: _Adder, option: str, default: float, *, about: str) -> None:
    parser.add_argument(
        option, type=_finite, default=default, metavar="X", help=f"{about} (default: {default:g})"
    )


def _finite(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"'{text}' must be a finite number")
    return value


def _at_least(text: str, low: int) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < low:
        raise argparse.ArgumentTypeError(f"'{text}' must be an integer of {low} or more")
    return int(text)
