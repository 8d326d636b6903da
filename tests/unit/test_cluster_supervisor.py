"""The supervisor with children of a few lines each."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from octavo.cluster.supervisor import ChildSpec, Supervisor

CHILD = """
import json, os, signal, sys, time
args = dict(zip(sys.argv[1::2], sys.argv[2::2]))
status = int(args["--status-fd"])
def say(**fields):
    os.write(status, (json.dumps(fields) + "\\n").encode())
"""
SERVES = (
    CHILD
    + """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
say(event="ready", pid=os.getpid())
time.sleep(60)
"""
)


def spec(name: str, code: str, **options: Any) -> ChildSpec:
    return ChildSpec(name=name, argv=[sys.executable, "-c", code], **options)


class Watch:
    """Collects status lines; ``on`` maps (child, event) to what to do then."""

    def __init__(self, **on: Any) -> None:
        self.seen: list[tuple[str, str]] = []
        self.pids: list[int] = []
        self._on = on

    def __call__(self, child: str, status: dict[str, Any]) -> None:
        self.seen.append((child, status["event"]))
        if "pid" in status:
            self.pids.append(status["pid"])
        action = self._on.get(f"{child}_{status['event']}")
        if action is not None:
            action(self)


def stop(_: Watch) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def kill_last(watch: Watch) -> None:
    os.kill(watch.pids[-1], signal.SIGKILL)


def test_a_clean_stop_is_0_in_the_order_given() -> None:
    watch = Watch(b_ready=stop)
    specs = [spec("a", SERVES, after=("b", "early")), spec("b", SERVES.replace(
        'say(event="ready"', 'say(event="early"); say(event="ready"'))]  # fmt: skip
    assert Supervisor(specs, on_status=watch).run() == (0, "")
    assert watch.seen[0] == ("b", "early")


def test_the_second_child_waits_for_the_first() -> None:
    watch = Watch(a_ready=stop)
    specs = [spec("a", SERVES, after=("b", "ready")), spec("b", SERVES)]
    assert Supervisor(specs, on_status=watch).run() == (0, "")
    assert watch.seen[:2] == [("b", "ready"), ("a", "ready")]


def test_a_death_is_a_restart_until_the_budget_ends() -> None:
    watch = Watch(a_ready=kill_last)
    code, cause = Supervisor([spec("a", SERVES)], on_status=watch, restart_budget=2).run()
    assert code == 1
    assert cause == "a process was killed by SIGKILL, 3 times in 60 s"
    assert watch.seen.count(("a", "ready")) == 3
    assert len(set(watch.pids)) == 3


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (
            'say(event="fatal", error="no such thing; do that"); sys.exit(1)',
            "no such thing; do that",
        ),
        ("sys.exit(7)", "a process ended with exit code 7"),
        ("sys.exit(0)", "a process ended with exit code 0"),
        ("os.kill(os.getpid(), 11)", "a process was killed by SIGSEGV"),
    ],
)
def test_a_child_that_never_was_ready_ends_it_all(code: str, cause: str) -> None:
    watch = Watch()
    result = Supervisor([spec("a", CHILD + code), spec("b", SERVES)], on_status=watch).run()
    assert result == (1, cause)


def test_garbage_on_the_status_pipe_is_ignored() -> None:
    noise = CHILD + """
os.write(status, b"\\xff\\n[]\\n{}\\n\\n" + b"x" * 200000 + b"\\n")
""" + SERVES.removeprefix(CHILD)  # fmt: skip
    assert Supervisor([spec("a", noise)], on_status=Watch(a_ready=stop)).run() == (0, "")


def test_a_child_that_will_not_stop_is_killed_and_named() -> None:
    deaf = SERVES.replace("lambda *_: sys.exit(0)", "signal.SIG_IGN")
    watch = Watch(a_ready=stop)
    code, cause = Supervisor([spec("a", deaf, drain_s=0.3)], on_status=watch).run()
    assert (code, cause) == (1, "the a process did not stop in time")
    with pytest.raises(ProcessLookupError):
        os.kill(watch.pids[0], 0)


def test_a_second_signal_does_not_wait() -> None:
    deaf = SERVES.replace("lambda *_: sys.exit(0)", "signal.SIG_IGN")
    watch = Watch(a_ready=stop)
    timer = threading.Timer(0.5, stop, (watch,))
    timer.start()
    code, cause = Supervisor([spec("a", deaf, drain_s=30)], on_status=watch).run()
    assert code == 1
    assert "before the a process had drained" in cause


def test_an_engine_is_restarted_even_while_draining() -> None:
    slow = CHILD + """
def leave(*_):
    time.sleep(1.0)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
say(event="ready", pid=os.getpid())
time.sleep(60)
"""  # fmt: skip
    deaths: list[int] = []

    def first_death(watch: Watch) -> None:
        if not deaths:
            deaths.append(watch.pids[-1])
            stop(watch)
            threading.Timer(0.2, os.kill, (deaths[0], signal.SIGKILL)).start()

    watch = Watch(b_ready=first_death)
    specs = [spec("a", slow), spec("b", SERVES, after=("a", "ready"))]
    assert Supervisor(specs, on_status=watch).run() == (0, "")
    assert watch.seen.count(("b", "ready")) == 2


def test_children_die_with_their_supervisor(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    child = f"""
import sys, time
from pathlib import Path
from octavo.cluster.child import ChildChannel, run_child
args = dict(zip(sys.argv[1::2], sys.argv[2::2]))
channel = ChildChannel(death_fd=int(args["--death-fd"]), status_fd=int(args["--status-fd"]),
                       runtime_dir=Path({str(tmp_path / "run")!r}))
def main():
    import os
    Path({str(pid_file)!r}).write_text(str(os.getpid()))
    while True:
        time.sleep(1)
run_child(channel, main, name="child")
"""
    (tmp_path / "run").mkdir()
    parent = f"""
import sys
from octavo.cluster.supervisor import ChildSpec, Supervisor
Supervisor([ChildSpec(name="a", argv=[sys.executable, "-c", {child!r}])],
           on_status=lambda *_: None).run()
"""
    process = subprocess.Popen([sys.executable, "-c", parent])
    deadline = time.monotonic() + 30
    while not pid_file.exists() or not pid_file.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    pid = int(pid_file.read_text())
    process.kill()
    process.wait()
    wait_gone(pid)
    assert not (tmp_path / "run").exists()


GRANDCHILD = """
import subprocess
helper = subprocess.Popen(["sleep", "60"])
say(event="helper", pid=helper.pid)
"""


def wait_gone(pid: int) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            status = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return
        if status.rpartition(")")[2].split()[0] == "Z":
            return
        assert time.monotonic() < deadline, f"process {pid} is left"
        time.sleep(0.01)


def with_helper(code: str) -> str:
    return code.replace("signal.signal(", GRANDCHILD + "signal.signal(", 1)


def test_what_a_killed_child_had_started_goes_with_it() -> None:
    restarted: list[int] = []

    def first_kill(watch: Watch) -> None:
        restarted.append(watch.pids[-1])
        if len(restarted) == 1:
            kill_last(watch)
        else:
            wait_gone(watch.pids[0])
            stop(watch)

    watch = Watch(a_ready=first_kill)
    assert Supervisor([spec("a", with_helper(SERVES))], on_status=watch).run() == (0, "")
    for pid in watch.pids:
        wait_gone(pid)


@pytest.mark.parametrize("ending", ["sys.exit(3)", "os.kill(os.getpid(), 9)"])
def test_what_a_failed_child_had_started_goes_with_it(ending: str) -> None:
    watch = Watch()
    code, _ = Supervisor([spec("a", CHILD + GRANDCHILD + ending)], on_status=watch).run()
    assert code == 1
    wait_gone(watch.pids[0])


def test_what_a_deaf_child_had_started_goes_with_it() -> None:
    deaf = with_helper(SERVES).replace("lambda *_: sys.exit(0)", "signal.SIG_IGN")
    watch = Watch(a_ready=stop)
    Supervisor([spec("a", deaf, drain_s=0.2)], on_status=watch).run()
    assert watch.pids
    for pid in watch.pids:
        wait_gone(pid)


def test_what_a_child_had_started_dies_with_the_supervisor(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    child = f"""
import os, subprocess, sys, time
from pathlib import Path
from octavo.cluster.child import ChildChannel, run_child
args = dict(zip(sys.argv[1::2], sys.argv[2::2]))
channel = ChildChannel(death_fd=int(args["--death-fd"]), status_fd=int(args["--status-fd"]),
                       runtime_dir=Path({str(tmp_path / "run")!r}))
def main():
    helper = subprocess.Popen(["sleep", "60"])
    partial = Path({str(pid_file)!r} + ".partial")
    partial.write_text(str(helper.pid))
    partial.rename({str(pid_file)!r})
    while True:
        time.sleep(1)
run_child(channel, main, name="child")
"""
    parent = f"""
import sys
from octavo.cluster.supervisor import ChildSpec, Supervisor
Supervisor([ChildSpec(name="a", argv=[sys.executable, "-c", {child!r}])],
           on_status=lambda *_: None).run()
"""
    process = subprocess.Popen([sys.executable, "-c", parent])
    deadline = time.monotonic() + 30
    while not pid_file.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.wait()
    wait_gone(int(pid_file.read_text()))


ACCUSES = (
    CHILD
    + """
time.sleep(0.3)
say(event="ready")
say(event="hung", child="b", silent_s=%s)
say(event="hung", child="nobody", silent_s=0)
say(event="hung", child="b", silent_s="long")
say(event="asked")
signal.pause()
"""
)


def test_a_child_that_hangs_is_killed_and_restarted() -> None:
    # Stopped: no handler of its own could end it.
    stuck = (
        CHILD
        + """
say(event="ready", pid=os.getpid())
os.kill(os.getpid(), signal.SIGSTOP)
"""
    )

    def stop_at_the_second(watch: Watch) -> None:
        if len(watch.pids) == 2:
            stop(watch)

    watch = Watch(b_ready=stop_at_the_second)
    accuser = spec("a", ACCUSES % 0.1, after=("b", "ready"))
    Supervisor([accuser, spec("b", stuck, drain_s=0.1)], on_status=watch).run()
    assert watch.seen.count(("b", "hung")) == 1
    assert watch.seen.count(("b", "exited")) == 1
    assert len(set(watch.pids)) == 2


def test_a_complaint_about_the_one_before_kills_nobody() -> None:
    watch = Watch(a_asked=stop)
    accuser = spec("a", ACCUSES % 60, after=("b", "ready"))
    assert Supervisor([accuser, spec("b", SERVES)], on_status=watch).run()[1] in (
        "", "the a process was killed by SIGTERM",
    )  # fmt: skip
    assert ("b", "hung") not in watch.seen


def test_a_child_that_keeps_hanging_is_named_so() -> None:
    accuser = spec("a", ACCUSES % 0.1, after=("b", "ready"))
    code, cause = Supervisor(
        [accuser, spec("b", SERVES)], on_status=Watch(), restart_budget=0
    ).run()
    assert code == 1
    assert cause == "b process made no progress for 0 s, 1 times in 60 s"
