"""The servers that can be compared over HTTP, all driven by ``octavo bench serve``."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines import Measured, Row
from octavo.bench.machine import cpu_seconds, process_tree
from process import PeerError, run_to_end, server

READY_TIMEOUT_S = 300.0
RUN_TIMEOUT_S = 3600.0
IDLE_S = 3.0
LLAMA_SLOT_TOKENS = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpWorkload:
    """A closed loop of ``streams`` and an open loop of ``rate_per_s``, alike for every server."""

    streams: int
    fixed_prompt_tokens: int
    fixed_output_tokens: int
    rate_per_s: float
    num_requests: int
    prompt_tokens: str
    output_tokens: str
    slo_ttft_s: float
    slo_tpot_s: float
    threads: int

    def runs(self) -> dict[str, list[str]]:
        """The options of ``octavo bench serve`` for each run, by name."""
        lengths = ["--prompt-tokens", self.prompt_tokens, "--output-tokens", self.output_tokens]
        slo = ["--slo-ttft-s", str(self.slo_ttft_s), "--slo-tpot-s", str(self.slo_tpot_s)]
        fixed = [
            "--prompt-tokens", str(self.fixed_prompt_tokens),
            "--output-tokens", str(self.fixed_output_tokens),
        ]  # fmt: skip
        # A seed each: a run must not find its prompts in the cache that the one before it left.
        return {
            "HTTP x1": ["--seed", "1", "--concurrency", "1", "--num-requests", "4", *fixed],
            f"HTTP x{self.streams}": [
                "--seed", "2", "--concurrency", str(self.streams),
                "--num-requests", str(4 * self.streams), *fixed,
            ],
            f"Poisson {self.rate_per_s:g}/s": [
                "--seed", "3", "--rate", str(self.rate_per_s),
                "--num-requests", str(self.num_requests), *lengths, *slo,
            ],
        }  # fmt: skip


class Server:
    """One server: a command line with ``{port}``, and the path that answers 200 once ready."""

    def __init__(self, name: str, argv: Sequence[str], *, ready: str, model: str) -> None:
        self.name = name
        self._argv = argv
        self._ready = ready
        self._model = model

    def measure(self, workload: HttpWorkload) -> Measured:
        """Start the server, let it idle, run every workload against it, stop it.

        Raises:
            PeerError: it did not start, or a run gave no report.
        """
        port = free_port()
        argv = [word.replace("{port}", str(port)) for word in self._argv]
        url = f"http://127.0.0.1:{port}"
        rows: list[Row] = []
        with server(argv, ready_url=url + self._ready, timeout_s=READY_TIMEOUT_S) as (pid, ready_s):
            facts: dict[str, Any] = {
                "ready_after_s": round(ready_s, 2),
                "idle_cpu_percent": idle_cpu_percent(pid),
            }
            for name, options in workload.runs().items():
                report = self._bench(url, pid, options)
                observed = report["observed"]
                rows.append(
                    {
                        "name": name,
                        "tokens_per_s": observed["output_tokens_per_s"],
                        **{
                            key: observed[key]
                            for key in ("within_slo_percent", "on_time_percent", "goodput_per_s")
                            if key in observed
                        },
                        "report": report,
                    }
                )
                facts["peak_pss_mib"] = observed["peak_pss_mib"]
        return Measured(rows=rows, facts=facts)

    def close(self) -> None:
        """Nothing runs between rounds."""

    def _bench(self, url: str, pid: int, options: Sequence[str]) -> Any:
        argv = [
            sys.executable, "-m", "octavo.cli.main", "bench", "serve", "--json",
            "--url", url, "--model", self._model, "--server-pid", str(pid), *options,
        ]  # fmt: skip
        # Its exit code 1 says that requests failed: that is a result, and stands in the report.
        wrapped = ["sh", "-c", '"$@" || test $? -eq 1', "sh", *argv]
        text = run_to_end(wrapped, timeout_s=RUN_TIMEOUT_S).stdout
        try:
            return json.loads(text)
        except ValueError as error:
            raise PeerError("octavo bench serve gave no report") from error


def octavo_server(model: str, threads: int) -> Server:
    """This checkout's server."""
    argv = [
        sys.executable, "-m", "octavo.cli.main", "serve", model,
        "--port", "{port}", "--num-threads", str(threads),
    ]  # fmt: skip
    return Server("octavo", argv, ready="/ready", model=Path(model).stem)


def llama_server(label: str, folder: Path, gguf: Path, *, streams: int, threads: int) -> Server:
    """llama.cpp's server with a slot for each stream."""
    argv = [
        str(folder / "llama-server"), "-m", str(gguf), "--port", "{port}",
        "-np", str(streams), "-c", str(streams * LLAMA_SLOT_TOKENS),
        "-t", str(threads), "-tb", str(threads),
    ]  # fmt: skip
    return Server(label, argv, ready="/health", model=gguf.stem)


def free_port() -> int:
    """A port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def idle_cpu_percent(root: int) -> float:
    """Share of one core that a process and its descendants take while nobody asks anything."""
    before, started = _cpu_s(root), time.monotonic()
    time.sleep(IDLE_S)
    return round(100 * (_cpu_s(root) - before) / (time.monotonic() - started), 2)


def _cpu_s(root: int) -> float:
    return sum(map(cpu_seconds, process_tree(root)))
