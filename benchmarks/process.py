"""Child processes of the comparison: run to the end, or kept up as a server; always reaped."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

POLL_S = 0.05
STOP_S = 20.0
TAIL_CHARS = 400


class PeerError(Exception):
    """An engine could not be measured. The message says why and goes into the results."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A process that ended well: its output, and the highest resident set it had."""

    stdout: str
    peak_rss_mib: float


def run_to_end(argv: Sequence[str], *, timeout_s: float) -> Finished:
    """Run a command.

    Raises:
        PeerError: it is missing, failed or took too long.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = _start(argv, stdout=out.fileno(), stderr=err.fileno())
        deadline = time.monotonic() + timeout_s
        # wait4 rather than the module's own wait: it alone tells this one child's memory.
        while True:
            pid, status, usage = os.wait4(child.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > deadline:
                child.kill()
                os.wait4(child.pid, 0)
                child.returncode = -signal.SIGKILL
                raise PeerError(f"took longer than {timeout_s:g} s")
            time.sleep(POLL_S)
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        if child.returncode:
            raise PeerError(f"exit code {child.returncode}: {_tail(err.read())}")
        return Finished(out.read().decode("utf-8", "replace"), round(usage.ru_maxrss / 1024, 1))


@contextlib.contextmanager
def server(argv: Sequence[str], *, ready_url: str, timeout_s: float) -> Iterator[tuple[int, float]]:
    """Keep a server up; yields its process id and the seconds until ``ready_url`` gave 200.

    Raises:
        PeerError: it is missing, ended, or was not ready in time.
    """
    with tempfile.TemporaryFile() as log:
        started = time.monotonic()
        child = _start(argv, stdout=log.fileno(), stderr=log.fileno(), own_group=True)
        try:
            while not _answers(ready_url):
                if child.poll() is not None:
                    log.seek(0)
                    raise PeerError(f"ended with {child.returncode}: {_tail(log.read())}")
                if time.monotonic() - started > timeout_s:
                    raise PeerError(f"was not ready after {timeout_s:g} s")
                time.sleep(POLL_S)
            yield child.pid, time.monotonic() - started
        finally:
            stop(child)


def stop(child: subprocess.Popen[Any]) -> None:
    """End the leader of a group politely, and then whoever it has left behind."""
    if child.poll() is None:
        child.terminate()
        deadline = time.monotonic() + STOP_S
        # Seen but not reaped, so that its number stays the group's.
        while not os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG):
            if time.monotonic() > deadline:
                break
            time.sleep(POLL_S)
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _start(
    argv: Sequence[str], *, stdout: int, stderr: int, own_group: bool = False
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=own_group,
        )
    except OSError as error:
        raise PeerError(f"{os.path.basename(argv[0])} cannot be run: {error.strerror}") from error


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _tail(data: bytes) -> str:
    """The end of a log on one line, without the directories of this machine."""
    text = " ".join(data.decode("utf-8", "replace").split())[-TAIL_CHARS:]
    return " ".join(os.path.basename(word) if "/" in word else word for word in text.split())
