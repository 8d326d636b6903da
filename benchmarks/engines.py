"""The engines that can be compared in process. Each runs one round and gives rows by name.

A row is ``{"name": …, "tokens_per_s": …}``; the names are the same for every engine:

    prefill N         prompt tokens per second, prompts of N tokens
    decode xB         tokens per second while B streams decode, context prompt → prompt + output
    end to end xB     output tokens per second of B streams, prefill included
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from octavo.bench.report import ABSENT
from process import PeerError, run_to_end, stop

ROUND_TIMEOUT_S = 1800.0
HERE = Path(__file__).resolve().parent

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What every engine does in a round."""

    concurrency: tuple[int, ...]
    prompt_tokens: int
    output_tokens: int
    prefill_tokens: int
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One engine's round. ``facts`` say with what; ``method`` says how, where it differs."""

    rows: list[Row]
    facts: dict[str, Any]


class Engine(Protocol):
    """Something that can run a round."""

    name: str

    def measure(self, workload: Workload) -> Measured:
        """Run one round.

        Raises:
            PeerError: why there is no figure.
        """
        ...

    def close(self) -> None:
        """End what the engine keeps running between rounds."""
        ...


class Octavo:
    """This checkout, by its own command."""

    def __init__(self, model: str) -> None:
        self.name = "octavo"
        self._model = model

    def measure(self, workload: Workload) -> Measured:
        """``octavo bench throughput``, one round."""
        argv = [
            sys.executable, "-m", "octavo.cli.main", "bench", "throughput", self._model,
            "--json", "--repeat", "1", "--num-threads", str(workload.threads),
            "--concurrency", ",".join(map(str, workload.concurrency)),
            "--prompt-tokens", str(workload.prompt_tokens),
            "--output-tokens", str(workload.output_tokens),
            "--prefill-tokens", str(workload.prefill_tokens),
        ]  # fmt: skip
        report = json.loads(run_to_end(argv, timeout_s=ROUND_TIMEOUT_S).stdout)
        return Measured(
            # A figure that is absent is told, with its reason, by what was observed.
            rows=[row for row in report["rows"] if row["tokens_per_s"] != ABSENT],
            facts={**report["facts"], "observed": report["observed"]},
        )

    def close(self) -> None:
        """Nothing runs between rounds."""


class LlamaCpp:
    """llama.cpp's own benchmarks: ``llama-bench`` for prefill, else ``llama-batched-bench``."""

    def __init__(self, label: str, folder: Path, gguf: Path) -> None:
        self.name = label
        self._folder = folder
        self._gguf = gguf

    def measure(self, workload: Workload) -> Measured:
        """Both programs once. They sample nothing: their decode is the forward alone."""
        if not self._gguf.is_file():
            raise PeerError(f"{self._gguf.name} is missing")
        prefill = self._run(
            "llama-bench", "-p", str(workload.prefill_tokens), "-n", "0", "-r", "3",
            "-t", str(workload.threads), "-o", "json",
        )  # fmt: skip
        span = workload.prompt_tokens + workload.output_tokens
        batched = self._run(
            "llama-batched-bench", "--output-format", "jsonl",
            "-npp", str(workload.prompt_tokens), "-ntg", str(workload.output_tokens),
            "-npl", ",".join(map(str, workload.concurrency)),
            "-c", str(max(workload.concurrency) * span),
            "-t", str(workload.threads), "-tb", str(workload.threads),
        )  # fmt: skip
        rows = parse_llama_bench(prefill.stdout) + parse_batched_bench(batched.stdout)
        return Measured(
            rows=rows,
            facts={
                "model": self._gguf.name,
                "kv_dtype": "f16",
                "observed": {"peak_memory_mib": batched.peak_rss_mib},
                "method": "llama-bench -r 3 and llama-batched-bench; no sampling",
            },
        )

    def close(self) -> None:
        """Nothing runs between rounds."""

    def _run(self, program: str, *arguments: str) -> Any:
        path = self._folder / program
        if not path.is_file():
            raise PeerError(f"{program} is not in the folder given by --llama-bin")
        argv = [str(path), "-m", str(self._gguf), *arguments]
        return run_to_end(argv, timeout_s=ROUND_TIMEOUT_S)


def parse_llama_bench(text: str) -> list[Row]:
    """Rows from ``llama-bench -o json``.

    Raises:
        PeerError: the output is not what the program printed when this was written.
    """
    try:
        return [
            {"name": f"prefill {test['n_prompt']}", "tokens_per_s": round(test["avg_ts"], 2)}
            for test in json.loads(text)
            if test["n_prompt"] and not test["n_gen"]
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise PeerError(f"llama-bench printed something unknown: {error!r}") from error


def parse_batched_bench(text: str) -> list[Row]:
    """Rows from ``llama-batched-bench --output-format jsonl``.

    Raises:
        PeerError: see ``parse_llama_bench``.
    """
    rows: list[Row] = []
    try:
        for line in filter(lambda line: line.startswith("{"), text.splitlines()):
            test = json.loads(line)
            streams, output = test["pl"], test["pl"] * test["tg"]
            rows += [
                {"name": f"decode x{streams}", "tokens_per_s": round(test["speed_tg"], 2)},
                {"name": f"end to end x{streams}", "tokens_per_s": round(output / test["t"], 2)},
            ]
    except (ValueError, KeyError, TypeError, ZeroDivisionError) as error:
        raise PeerError(f"llama-batched-bench printed something unknown: {error!r}") from error
    if not rows:
        raise PeerError("llama-batched-bench printed no result")
    return rows


class ScriptEngine:
    """An engine of another Python environment, kept loaded between rounds.

    Its script (``vllm_runner.py``, ``openvino_runner.py``) loads the model, prints a line
    ``{"ready": facts}`` and then answers each workload, a JSON line, with ``{"rows": [...]}``.
    """

    def __init__(self, label: str, *, python: Path, script: str, model: Path) -> None:
        self.name = label
        self._argv = [str(python), str(HERE / script), str(model)]
        self._child: subprocess.Popen[str] | None = None
        self._facts: dict[str, Any] = {"model": model.name}

    def measure(self, workload: Workload) -> Measured:
        """One round in the script's process, which the first call starts."""
        if self._child is None:
            self._child = self._start(workload.threads)
            self._facts |= self._answer("ready")
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(json.dumps(as_json(workload)) + "\n")
            self._child.stdin.flush()
        except BrokenPipeError as error:
            raise PeerError("its process has ended") from error
        return Measured(rows=self._answer("rows"), facts=self._facts)

    def close(self) -> None:
        """End the script's process."""
        if self._child is not None:
            assert self._child.stdin is not None
            assert self._child.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                self._child.stdin.close()
            stop(self._child)
            self._child.stdout.close()

    def _start(self, threads: int) -> subprocess.Popen[str]:
        try:
            return subprocess.Popen(
                [*self._argv, str(threads)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        except OSError as error:
            name = os.path.basename(self._argv[0])
            raise PeerError(f"{name} cannot be run: {error.strerror}") from error

    def _answer(self, key: str) -> Any:
        """The next JSON line with ``key``; engines print other lines as well."""
        assert self._child is not None
        assert self._child.stdout is not None
        for line in self._child.stdout:
            try:
                found = json.loads(line)
            except ValueError:
                continue
            if isinstance(found, dict) and key in found:
                return found[key]
            if isinstance(found, dict) and "error" in found:
                raise PeerError(str(found["error"]))
        raise PeerError(f"its process ended with {self._child.wait()} (its messages are above)")


def as_json(workload: Workload) -> dict[str, Any]:
    """The workload as the scripts and the results have it."""
    return {
        "concurrency": list(workload.concurrency),
        "prompt_tokens": workload.prompt_tokens,
        "output_tokens": workload.output_tokens,
        "prefill_tokens": workload.prefill_tokens,
        "threads": workload.threads,
    }
