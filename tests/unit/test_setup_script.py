"""``scripts/setup.sh`` on machines that lack something: one line names it and the remedy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "setup.sh"

# A Python whose parts can be taken away: WITHOUT names what fails.
FAKE_PYTHON = f"""\
#!/bin/sh
case "$WITHOUT:$*" in
    version:*version_info*) exit 1 ;;
    version:--version) echo "Python 3.9.2"; exit 0 ;;
    headers:*Python.h*) exit 1 ;;
    venv:*"import venv"*) exit 1 ;;
    venv:*"-m venv"*)
        mkdir -p "$3/bin"
        cp "$0" "$3/bin/python"
        echo "ensurepip is not available"
        exit 1 ;;
    venv:*"-m pip"*|venv:*ensurepip*) exit 1 ;;
    disk:*"-m venv"*) echo "Error: No space left on device" >&2; exit 1 ;;
    pip:*"-m pip install"*) echo "ERROR: no index" >&2; exit 1 ;;
    pip:*) exit 0 ;;
    nothing:*"-m pip"*) exit 0 ;;
esac
exec {sys.executable} "$@"
"""


@pytest.fixture
def python(tmp_path: Path) -> Path:
    path = tmp_path / "python"
    path.write_text(FAKE_PYTHON)
    path.chmod(0o755)
    return path


def setup(python: Path | str, venv: Path, **environment: str) -> str:
    """The script's complaint, which is its last and only line of its own."""
    done = subprocess.run(
        ["sh", str(SCRIPT), str(python), str(venv)],
        env={**os.environ, "CXX": "true", **environment},
        cwd=venv.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    own = [line for line in done.stderr.splitlines() if line.startswith("octavo setup: ")]
    assert len(own) == 1, done.stderr
    return own[0]


def test_no_python(tmp_path: Path) -> None:
    assert "python9 not found" in setup("python9", tmp_path / "venv")


@pytest.mark.parametrize(
    ("lacking", "words"),
    [
        ("version", ["Python 3.9.2 is too old", "3.11"]),
        ("headers", ["Python.h is missing", "python3-dev"]),
        ("disk", ["cannot create", "No space left on device"]),
    ],
)
def test_a_python_that_lacks_something(
    tmp_path: Path, python: Path, lacking: str, words: list[str]
) -> None:
    said = setup(python, tmp_path / "venv", WITHOUT=lacking)
    assert all(word in said for word in words), said


def test_no_compiler(tmp_path: Path, python: Path) -> None:
    said = setup(python, tmp_path / "venv", CXX="absent-g++", WITHOUT="")
    assert "no C++ compiler (absent-g++)" in said
    assert "apt-get install g++" in said


def test_no_venv_module_is_named_every_time(tmp_path: Path, python: Path) -> None:
    for _ in range(2):
        said = setup(python, tmp_path / "venv", WITHOUT="venv")
        assert "python3-venv" in said
        assert not (tmp_path / "venv").exists()


def test_a_half_made_environment_is_named(tmp_path: Path, python: Path) -> None:
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "python").symlink_to(python)
    said = setup(python, tmp_path / "venv", WITHOUT="venv")
    assert "has no pip" in said
    assert f"remove {tmp_path / 'venv'}" in said
    assert (tmp_path / "venv" / "bin" / "python").exists(), "what was there is the user's"


def test_no_package_index(tmp_path: Path, python: Path) -> None:
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "python").symlink_to(python)
    said = setup(python, tmp_path / "venv", WITHOUT="pip")
    assert "pip could not install the build tools" in said
    assert "pip config list" in said


def test_the_end_says_what_to_do_next(tmp_path: Path, python: Path) -> None:
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "python").symlink_to(python)
    done = subprocess.run(
        ["sh", str(SCRIPT), str(python), str(tmp_path / "venv")],
        env={**os.environ, "WITHOUT": "nothing"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    last = done.stdout.splitlines()[-1]
    assert "make serve" in last
    assert f"{tmp_path / 'venv'}/bin/activate" in last
