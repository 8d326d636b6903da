"""A whole server of real processes for tests: started, watched, attacked, and always cleaned up."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from octavo.frontend.progress_watch import HANG_S

START_TIMEOUT_S = 30.0
_URL = re.compile(r"http://[\w.:\[\]]+?:\d+")


class ServerProcess:
    """``octavo serve`` (or a stand-in with the same children) under test."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process = process
        self._log = log
        self.url = self._wait_for_url()

    def _wait_for_url(self) -> str:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            text = self.output
            if "is ready" in text and (match := _URL.search(text)):
                return match[0]
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise AssertionError(f"the server did not start:\n{self.output}")

    @property
    def output(self) -> str:
        """All that it printed so far."""
        return self._log.read_text(encoding="utf-8")

    @property
    def children(self) -> dict[str, int]:
        """Process ids by the last part of the module's name."""
        return {module: pid for pid, module in _children_of(self.process.pid)}

    def kill_child(self, module: str) -> int:
        """SIGKILL one child; returns its process id."""
        pid = self.children[module]
        os.kill(pid, signal.SIGKILL)
        return pid

    def client(self) -> httpx.Client:
        """A plain HTTP client."""
        return httpx.Client(base_url=self.url, timeout=60)

    def wait_ready(self, *, ready: bool = True) -> None:
        """Wait until ``/ready`` says so (or no longer does)."""
        deadline = time.monotonic() + START_TIMEOUT_S
        with self.client() as http:
            while _answers_ready(http) is not ready:
                assert time.monotonic() < deadline, f"not ready={ready}:\n{self.output}"
                time.sleep(0.02)

    def metric(self, name: str) -> float:
        """The value of a metric without labels other than the model's."""
        with self.client() as http:
            for line in http.get("/metrics").text.splitlines():
                if line.startswith((name + "{", name + " ")):
                    return float(line.rsplit(" ", 1)[1])
        raise AssertionError(f"no metric {name}")

    def stop(self, number: int = signal.SIGTERM, timeout_s: float = 60) -> int:
        """Signal the supervisor and wait; returns its exit code."""
        self.process.send_signal(number)
        return self.process.wait(timeout_s)


@contextmanager
def running_server(
    folder: Path, argv: Sequence[str], *, env: dict[str, str] | None = None
) -> Iterator[ServerProcess]:
    """Start ``argv`` and yield it; afterwards no process of it is left."""
    log = folder / "server.log"
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(
            argv, stdout=file, stderr=subprocess.STDOUT, text=True, start_new_session=True, env=env
        )
    known: set[int] = set()
    try:
        server = ServerProcess(process, log)
        known = set(server.children.values())
        yield server
        known |= set(server.children.values())
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        wait_gone(known)


def _answers_ready(http: httpx.Client) -> bool | None:
    try:
        return http.get("/ready").status_code == 200
    except httpx.TransportError:
        return None


def serve_argv(*options: str) -> list[str]:
    """The command line of ``octavo serve`` on a free port."""
    return [sys.executable, "-m", "octavo.cli.main", "serve", "--port", "0", *options]


def fake_serve_argv(
    folder: Path,
    model: Path,
    *,
    restart_budget: int = 8,
    hang_s: float = HANG_S,
    **engine: float | str,
) -> list[str]:
    """A server whose engine has a fake runner; ``engine`` are its options."""
    options = folder / "fake.json"
    values = {
        "model": str(model), "engine": engine, "restart_budget": restart_budget, "hang_s": hang_s,
    }  # fmt: skip
    options.write_text(json.dumps(values), encoding="utf-8")
    return [sys.executable, "-m", "octavo.testing.fake_serve", str(options)]


def wait_gone(pids: set[int], timeout_s: float = 10) -> None:
    """Wait until none of the processes exists.

    Raises:
        AssertionError: one still does: an orphan.
    """
    deadline = time.monotonic() + timeout_s
    while alive := [pid for pid in pids if _exists(pid)]:
        assert time.monotonic() < deadline, f"orphans: {alive}"
        time.sleep(0.02)


def _exists(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def _children_of(parent: int) -> list[tuple[int, str]]:
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text(encoding="ascii", errors="replace")
            argv = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if int(stat.rpartition(")")[2].split()[1]) == parent and b"-m" in argv:
            found.append((int(entry.name), argv[argv.index(b"-m") + 1].decode().split(".")[-1]))
    return found
