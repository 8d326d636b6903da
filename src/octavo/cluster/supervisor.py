"""The idle process on top: starts the children, restarts them, drains them. Standard library only.

    SIGTERM / SIGINT → the children named first drain (readiness off, requests end) → the rest stop
    a child dies     → restarted after a back-off, within a budget; its peers stay
    a child hangs    → its peer says so (``hung``); it is killed, and that is a death
    the budget ends, or a child says ``fatal`` before it was ever ready → all stop, exit code 1

Each child has its own session (a Ctrl-C reaches the supervisor alone) and a death pipe whose
write end only the supervisor holds: when the supervisor dies, however, so do they. What a child
has started is in its process group and is killed when the child is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

RESTART_BUDGET = 8
RESTART_WINDOW_S = 60.0
BACKOFF_S = (0.0, 0.1, 0.5, 1.0, 2.0)
STOP_GRACE_S = 10.0
MAX_STATUS_LINE = 1 << 16
HUNG_SLACK_S = 1.0

Status = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpec:
    """A process to keep running.

    ``argv`` gets ``--death-fd N --status-fd N`` appended, and ``--peer-deaths N``, how often the
    child named ``peer`` has died so far, where there is one. ``after`` = (child, event) holds the
    first start back until that child has reported that event. ``drain_s`` is how long it may
    take to end after SIGTERM.
    """

    name: str
    argv: Sequence[str]
    after: tuple[str, str] | None = None
    peer: str = ""
    drain_s: float = STOP_GRACE_S
    pass_fds: tuple[int, ...] = ()


@dataclass(slots=True)
class _Child:
    spec: ChildSpec
    process: subprocess.Popen[bytes] | None = None
    death_fd: int = -1
    status_fd: int = -1
    pending: bytes = b""
    was_ready: bool = False
    ready_at: float | None = None
    fatal: str = ""
    restart_at: float | None = None
    deaths: deque[float] = field(default_factory=deque)
    num_deaths: int = 0


class Supervisor:
    """Owns the child processes, their pipes and the decision to restart or give up.

    ``on_status(child, status)`` sees each status line. Children are drained in the order given.
    More than ``restart_budget`` deaths of one child within a minute end it all.
    """

    def __init__(
        self,
        specs: Sequence[ChildSpec],
        *,
        on_status: Callable[[str, Status], None],
        restart_budget: int = RESTART_BUDGET,
    ) -> None:
        self._children = [_Child(spec) for spec in specs]
        self._on_status = on_status
        self._restart_budget = restart_budget
        self._selector = selectors.DefaultSelector()
        self._seen: set[tuple[str, str]] = set()
        self._stop_signals = 0
        self._failure = ""

    def run(self) -> tuple[int, str]:
        """Supervise until a signal or a failure.

        Returns:
            Exit code and the root cause ("" after a clean drain).
        """
        with self._signals():
            try:
                self._start_allowed()
                while not self._stop_signals and not self._failure:
                    self._turn()
                lost = self._drain() if not self._failure else ""
            finally:
                self._kill_all()
        cause = self._failure or lost
        return (1 if cause else 0), cause

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        handled = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
        before = {number: signal.signal(number, self._on_signal) for number in handled}
        wakeup_before = signal.set_wakeup_fd(writer)
        self._selector.register(reader, selectors.EVENT_READ)
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup_before)
            for number, handler in before.items():
                signal.signal(number, handler)
            self._selector.close()
            os.close(reader)
            os.close(writer)

    def _on_signal(self, number: int, _frame: object) -> None:
        if number != signal.SIGCHLD:
            self._stop_signals += 1

    def _turn(self) -> None:
        """Wait for a signal, a status line or the next restart; then deal with all of them."""
        self._read_pipes(self._next_timeout())
        for child in self._children:
            self._reap(child)
        self._start_allowed()

    def _read_pipes(self, timeout: float | None) -> None:
        for key, _ in self._selector.select(timeout):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    os.read(key.fd, 4096)
            else:
                self._read_status(key.data)

    def _next_timeout(self) -> float | None:
        due = [child.restart_at for child in self._children if child.restart_at is not None]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _start_allowed(self) -> None:
        for child in self._children:
            if child.process is None and self._may_start(child):
                self._start(child)

    def _may_start(self, child: _Child) -> bool:
        if not child.deaths:
            return child.spec.after is None or child.spec.after in self._seen
        return child.restart_at is not None and child.restart_at <= time.monotonic()

    def _start(self, child: _Child) -> None:
        death_read, child.death_fd = os.pipe()
        child.status_fd, status_write = os.pipe()
        child.restart_at, child.ready_at, child.fatal, child.pending = None, None, "", b""
        argv = [
            *child.spec.argv, "--death-fd", str(death_read), "--status-fd", str(status_write)
        ]  # fmt: skip
        for peer in self._children:
            if peer.spec.name == child.spec.peer:
                argv += ["--peer-deaths", str(peer.num_deaths)]
        try:
            child.process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=(death_read, status_write, *child.spec.pass_fds),
            )
        finally:
            os.close(death_read)
            os.close(status_write)
        os.set_blocking(child.status_fd, False)
        self._selector.register(child.status_fd, selectors.EVENT_READ, child)

    def _read_status(self, child: _Child) -> None:
        try:
            data = os.read(child.status_fd, 1 << 16)
        except BlockingIOError:
            return
        if not data:
            # The child closed it or died; SIGCHLD tells which.
            self._selector.unregister(child.status_fd)
            return
        *lines, child.pending = (child.pending + data).split(b"\n")
        child.pending = child.pending[-MAX_STATUS_LINE:]
        for line in lines:
            self._on_line(child, line)

    def _on_line(self, child: _Child, line: bytes) -> None:
        try:
            status = json.loads(line)
            event = str(status["event"])
        except (ValueError, KeyError, TypeError):
            return
        self._seen.add((child.spec.name, event))
        if event == "ready":
            child.was_ready, child.ready_at = True, time.monotonic()
        elif event == "fatal":
            child.fatal = str(status.get("error", ""))
        elif event == "hung":
            self._on_hung(status)
            return
        self._on_status(child.spec.name, status)

    def _on_hung(self, status: Status) -> None:
        """Kill the child that another says was silent for ``silent_s``.

        Unless it has not been ready for that long: then the complaint is about the one before it.
        """
        silent_s = status.get("silent_s")
        if not isinstance(silent_s, (int, float)):
            return
        for child in self._children:
            if child.spec.name != status.get("child") or child.process is None:
                continue
            if child.ready_at is None or (
                time.monotonic() - child.ready_at + HUNG_SLACK_S < silent_s
            ):
                continue
            child.ready_at = None
            child.fatal = f"{child.spec.name} process made no progress for {silent_s:.0f} s"
            self._on_status(child.spec.name, {"event": "hung", "silent_s": silent_s})
            _kill_group(child.process)

    def _reap(self, child: _Child) -> None:
        if child.process is None or not _has_ended(child.process):
            return
        code = child.process.returncode
        self._close(child)
        self._on_status(child.spec.name, {"event": "exited", "code": code})
        self._seen.discard((child.spec.name, "ready"))
        cause = child.fatal or f"{child.spec.name} process {_exit_text(code)}"
        if not child.was_ready:
            self._failure = self._failure or cause
            return
        now = time.monotonic()
        child.deaths.append(now)
        child.num_deaths += 1
        while now - child.deaths[0] > RESTART_WINDOW_S:
            child.deaths.popleft()
        if len(child.deaths) > self._restart_budget:
            self._failure = self._failure or (
                f"{cause}, {len(child.deaths)} times in {RESTART_WINDOW_S:.0f} s"
            )
            return
        child.restart_at = now + BACKOFF_S[min(len(child.deaths) - 1, len(BACKOFF_S) - 1)]

    def _close(self, child: _Child) -> None:
        """Read what the dead child still said, then drop its pipes."""
        with contextlib.suppress(KeyError):
            self._read_status(child)
        with contextlib.suppress(KeyError):
            self._selector.unregister(child.status_fd)
        os.close(child.status_fd)
        os.close(child.death_fd)
        child.process, child.death_fd, child.status_fd = None, -1, -1

    def _drain(self) -> str:
        """Stop the children one after the other; returns what was lost ("" for nothing)."""
        lost = ""
        for child in self._children:
            process = child.process
            child.restart_at = None
            if process is None:
                continue
            process.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + child.spec.drain_s
            while child.process is process and time.monotonic() < deadline:
                if self._stop_signals > 1:
                    return f"stopped before the {child.spec.name} process had drained"
                self._drain_turn(child, deadline)
            if child.process is process:
                lost = lost or f"the {child.spec.name} process did not stop in time"
            # A child that dies of SIGTERM had not begun: a ready one handles it.
            elif process.returncode not in (0, -signal.SIGTERM):
                died = f"the {child.spec.name} process {_exit_text(process.returncode)}"
                lost = lost or child.fatal or died
        return lost

    def _drain_turn(self, draining: _Child, deadline: float) -> None:
        timeout = max(0.0, deadline - time.monotonic())
        if (restart := self._next_timeout()) is not None:
            timeout = min(timeout, restart)
        self._read_pipes(timeout)
        for child in self._children:
            if child is draining:
                if child.process is not None and _has_ended(child.process):
                    self._close(child)
            else:
                # Requests still running need their engine: it is restarted even now.
                self._reap(child)
        for child in self._children:
            restarts = child.restart_at is not None and child.process is None
            if child is not draining and restarts and self._may_start(child):
                self._start(child)

    def _kill_all(self) -> None:
        for child in self._children:
            if child.process is not None:
                _kill_group(child.process)
        for child in self._children:
            if child.process is not None:
                child.process.wait()
                self._close(child)


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether a child ended. What it had started is killed before its id can be used again."""
    if process.returncode is not None:
        return True
    if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        return False
    _kill_group(process)
    process.wait()
    return True


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a child and what it started: it leads a process group of its own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _exit_text(code: int) -> str:
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
