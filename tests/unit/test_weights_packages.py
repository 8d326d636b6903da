"""The package client's process: it ends with whoever started it, however that one ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from octavo.errors import DownloadError
from octavo.weights.packages import PipClient

# Stands for pip: tells its process id (and a child's), then does not end by itself.
SLEEPER = """\
#!/bin/sh
sleep 600 &
echo "$$ $!" > "$TMPDIR/pids.new"
mv "$TMPDIR/pids.new" "$TMPDIR/pids"
wait
"""
CALLER = """\
import sys
from pathlib import Path
from octavo.weights import packages
packages._has_module = lambda name: False
packages.PipClient().download("x==1", Path(sys.argv[1]), lambda count: None)
"""


@pytest.fixture
def fake_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "pip").write_text(SLEEPER)
    (folder / "pip").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder / "pip"


def wait_for(path: Path) -> list[int]:
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline, "the fake pip did not start"
        time.sleep(0.02)
    return [int(word) for word in path.read_text().split()]


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 30
    while is_alive(pid):
        assert time.monotonic() < deadline, f"process {pid} outlived its starter"
        time.sleep(0.02)


@pytest.mark.skipif(sys.platform != "linux", reason="the bond is Linux's")
def test_pip_dies_with_a_killed_parent(tmp_path: Path, fake_pip: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    caller = subprocess.Popen([sys.executable, "-c", CALLER, str(folder)])
    pip, grandchild = wait_for(folder / "pids")
    try:
        assert is_alive(pip)
        caller.kill()
        caller.wait()
        wait_until_gone(pip)
    finally:
        # Its group is still addressable through the grandchild.
        os.kill(grandchild, signal.SIGKILL)


def test_pip_and_its_children_end_with_an_interrupted_download(
    tmp_path: Path, fake_pip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.weights.packages._has_module", lambda name: False)
    pids: list[int] = []

    def interrupt(count: int) -> None:
        pids[:] = wait_for(tmp_path / "pids")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        PipClient().download("x==1", tmp_path, interrupt)
    assert len(pids) == 2
    for pid in pids:
        wait_until_gone(pid)


def test_a_client_whose_parent_is_gone_does_not_start(tmp_path: Path) -> None:
    from octavo.weights import bound_program

    command = [sys.executable, bound_program.__file__, "1", "/bin/sh", "-c", "echo started"]
    done = subprocess.run(command, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (1, b"")


def test_what_pip_said_is_told(tmp_path: Path, fake_pip: Path, monkeypatch) -> None:
    monkeypatch.setattr("octavo.weights.packages._has_module", lambda name: False)
    fake_pip.write_text("#!/bin/sh\necho 'ERROR: no such thing' >&2\nexit 1\n")
    with pytest.raises(DownloadError, match="pip said: no such thing"):
        PipClient().download("x==1", tmp_path, lambda count: None)
