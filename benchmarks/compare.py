"""Compares Octavo with the engines that this machine has, interleaved: A B A B …

    python benchmarks/compare.py engine --llama-bin DIR --llama-gguf Q4_0=smollm2-q4_0.gguf
    python benchmarks/compare.py http   --llama-bin DIR --rounds 2
    python benchmarks/compare.py http   --llama-bin DIR --rounds 1 --append --only octavo

Every engine takes its turn in every round, so that what else the machine does hits all alike;
report.py quotes medians and ratios. Raw figures go to benchmarks/results/NAME.json, with the
machine's state before each turn. A peer that is missing or fails stands there with the reason.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engines import Engine, LlamaCpp, Octavo, ScriptEngine, Workload
from octavo.bench.machine import machine_facts, machine_state
from octavo.weights.hub import resolve_model
from process import PeerError
from servers import HttpWorkload, Server, llama_server, octavo_server

RESULTS = Path(__file__).resolve().parent / "results"
QUIET_LOAD = 0.5

# What each kind of comparison has no use for, and refuses.
IDLE = {
    "engine": ("server", "streams", "rate", "num_requests", "prompt_lengths", "output_lengths",
               "slo_ttft_s", "slo_tpot_s"),
    "http": ("vllm_python", "openvino_python", "concurrency", "prefill_tokens"),
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run the rounds and store them. Returns 0 if at least one engine gave figures."""
    options = parse(argv)
    model = resolve_model(options.model)
    contenders: list[Any] = (
        engines(options, model) if options.what == "engine" else servers(options, model)
    )
    workload: Any = (
        Workload(
            concurrency=options.concurrency,
            prompt_tokens=options.prompt_tokens,
            output_tokens=options.output_tokens,
            prefill_tokens=options.prefill_tokens,
            threads=options.threads,
        )
        if options.what == "engine"
        else HttpWorkload(
            streams=options.streams,
            fixed_prompt_tokens=options.prompt_tokens,
            fixed_output_tokens=options.output_tokens,
            rate_per_s=options.rate,
            num_requests=options.num_requests,
            prompt_tokens=options.prompt_lengths,
            output_tokens=options.output_lengths,
            slo_ttft_s=options.slo_ttft_s,
            slo_tpot_s=options.slo_tpot_s,
            threads=options.threads,
        )
    )
    names = ", ".join(each.name for each in contenders)
    contenders = [each for each in contenders if options.only in each.name]
    if not contenders:
        sys.exit(f"--only {options.only}: no engine of that name; there are {names}")
    path = RESULTS / f"{options.name or options.what}.json"
    data = {
        "kind": options.what,
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine_facts(),
        "model": model.name,
        "workload": json.loads(json.dumps(asdict(workload))),
    }
    earlier = earlier_turns(path, data) if options.append else []
    turns: list[dict[str, Any]] = []
    for turn in run_rounds(contenders, workload, rounds=options.rounds, earlier=earlier):
        turns.append(turn)
        # After every turn: a run that is broken off keeps what it has.
        whole = {**data, "turns": earlier + turns}
        path.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    print(f"raw figures: {path}; python benchmarks/report.py shows")
    return 0 if any("rows" in turn for turn in turns) else 1


def earlier_turns(path: Path, data: dict[str, Any]) -> list[dict[str, Any]]:
    """The turns of a comparison that is taken in pieces.

    Raises:
        SystemExit: what is stored was taken on another machine, model or workload.
    """
    if not path.exists():
        return []
    stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    for name in ("kind", "machine", "model", "workload"):
        if stored[name] != data[name]:
            sys.exit(f"{path.name} holds figures of another {name}; give another --name")
    return list(stored["turns"])


def run_rounds(
    contenders: Sequence[Engine | Server],
    workload: Any,
    *,
    rounds: int,
    earlier: Sequence[dict[str, Any]] = (),
) -> Iterator[dict[str, Any]]:
    """Every contender's turn in every round, as they end; rounds go on from ``earlier``."""
    done = {each.name: sum(t["engine"] == each.name for t in earlier) for each in contenders}
    if machine_state()["load"][0] > QUIET_LOAD:
        print("the machine is busy; engines that spin while they wait suffer most")
    try:
        for index in range(rounds):
            for contender in contenders:
                state = machine_state()
                turn = {
                    "round": done[contender.name] + index,
                    "engine": contender.name,
                    "state": state,
                }
                turn |= _turn(contender, workload)
                print(_line(turn), flush=True)
                yield turn
    finally:
        for contender in contenders:
            contender.close()


def _turn(contender: Engine | Server, workload: Any) -> dict[str, Any]:
    try:
        measured = contender.measure(workload)
    except PeerError as error:
        return {"error": str(error)}
    return {"rows": measured.rows, "facts": measured.facts}


def _line(turn: dict[str, Any]) -> str:
    head = f"round {turn['round'] + 1} {turn['engine']}:"
    if "error" in turn:
        return f"{head} no figure: {turn['error']}"
    return f"{head} " + ", ".join(f"{row['name']} {row['tokens_per_s']}" for row in turn["rows"])


def engines(options: argparse.Namespace, model: Path) -> list[Engine]:
    """Octavo first, then every peer that an option names."""
    found: list[Engine] = [Octavo(str(model))]
    if options.llama_bin is not None:
        found += [LlamaCpp(name, options.llama_bin, path) for name, path in ggufs(options, model)]
    for label, python, script, directory in (
        ("vLLM", options.vllm_python, "vllm_runner.py", options.vllm_model),
        ("OpenVINO", options.openvino_python, "openvino_runner.py", options.openvino_model),
    ):
        if python is not None:
            found.append(ScriptEngine(label, python=python, script=script, model=directory))
    return found


def servers(options: argparse.Namespace, model: Path) -> list[Server]:
    """Octavo first, then llama-server per file and every ``--server``."""
    found = [octavo_server(str(model), options.threads)]
    if options.llama_bin is not None:
        found += [
            llama_server(
                name, options.llama_bin, path, streams=options.streams, threads=options.threads
            )
            for name, path in ggufs(options, model)
        ]
    for text in options.server:
        name, _, command = text.partition("=")
        found.append(Server(name, shlex.split(command), ready="/health", model=name))
    return found


def ggufs(options: argparse.Namespace, model: Path) -> list[tuple[str, Path]]:
    """(name, file) for llama.cpp: the model itself, then every ``--llama-gguf``."""
    found = [("llama.cpp, same file", model)]
    for text in options.llama_gguf:
        label, _, path = text.partition("=")
        found.append((f"llama.cpp, {label}", Path(path)))
    return found


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Compare Octavo with peers, interleaved.")
    parser.add_argument("what", choices=("engine", "http"))
    parser.add_argument("--model", default="smollm2", help="alias or GGUF file")
    parser.add_argument("--name", help="of the results file (default: engine or http)")
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument(
        "--append", action="store_true", help="add rounds to those in the results file"
    )
    parser.add_argument("--only", default="", help="run engines whose name contains this")
    parser.add_argument("--threads", type=positive, default=machine_facts()["cores"])
    peers = parser.add_argument_group("peers")
    peers.add_argument("--llama-bin", type=Path, help="folder of llama.cpp's programs")
    peers.add_argument(
        "--llama-gguf", action="append", default=[], metavar="LABEL=FILE",
        help="a further file for llama.cpp, such as one requantised to its fastest format",
    )  # fmt: skip
    peers.add_argument("--vllm-python", type=Path, help="Python of an environment with vLLM")
    peers.add_argument("--vllm-model", type=Path, help="its model directory")
    peers.add_argument("--openvino-python", type=Path, help="Python with openvino-genai")
    peers.add_argument("--openvino-model", type=Path, help="its exported model directory")
    peers.add_argument(
        "--server", action="append", default=[], metavar="NAME=COMMAND",
        help="http: any other server; {port} in the command is replaced",
    )  # fmt: skip
    work = parser.add_argument_group("workload")
    work.add_argument("--prompt-tokens", type=positive, default=128, help="except for open loops")
    work.add_argument("--output-tokens", type=positive, default=128, help="except for open loops")
    work.add_argument("--concurrency", type=integers, default=(1, 4, 16, 32), help="engine")
    work.add_argument("--prefill-tokens", type=positive, default=512, help="engine")
    load = parser.add_argument_group("http workload")
    load.add_argument("--streams", type=positive, default=16)
    load.add_argument("--rate", type=float, default=3.0)
    load.add_argument("--num-requests", type=positive, default=300)
    load.add_argument("--prompt-lengths", default="exponential:161")
    load.add_argument("--output-lengths", default="exponential:100")
    load.add_argument("--slo-ttft-s", type=float, default=2.0)
    load.add_argument("--slo-tpot-s", type=float, default=0.05)
    options = parser.parse_args(argv)
    for name in ("vllm", "openvino"):
        values = vars(options)
        if (values[f"{name}_python"] is None) != (values[f"{name}_model"] is None):
            parser.error(f"--{name}-python and --{name}-model go together")
    for name in ("llama_gguf", "server"):
        for text in vars(options)[name]:
            if not all(text.partition("=")):
                parser.error(f"--{name.replace('_', '-')} is '{text}'; write NAME=…")
    if options.what == "engine" and options.output_tokens < 2:
        parser.error("--output-tokens is 1; decoding begins with the second: ask for 2 or more")
    for name in IDLE[options.what]:
        if vars(options)[name] != parser.get_default(name):
            parser.error(f"--{name.replace('_', '-')} does nothing for {options.what}")
    return options


def positive(text: str) -> int:
    """A whole number above 0."""
    if not text.isascii() or not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"'{text}' must be a whole number above 0")
    return int(text)


def integers(text: str) -> tuple[int, ...]:
    """``1,4,16``"""
    return tuple(positive(part) for part in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
