"""The state of the machine that a figure was taken on, and the memory of processes."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from octavo.backends.native import default_num_threads, probe_machine

_PROC = Path("/proc")


def machine_facts() -> dict[str, Any]:
    """What hardware and system this is."""
    return {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count(),
        "platform": platform.platform(),
        "python": platform.python_version(),
    }


def machine_state() -> dict[str, Any]:
    """How fast the machine is *now*: barrier time and read rate of all cores, load beside them."""
    found: dict[str, Any] = probe_machine(default_num_threads())
    return {
        "load": [round(load, 2) for load in os.getloadavg()],
        "barrier_ns": round(found["barrier_ns"]),
        "read_gb_per_s": round(found["read_gbs"], 1),
        "int8_gops": round(found["int8_gops"]),
    }


def cpu_model() -> str:
    """The processor's name."""
    name = _field(_PROC / "cpuinfo", "model name")
    return name or platform.processor() or "unknown"


def peak_memory_mib(pid: int | str = "self") -> float | None:
    """Highest resident set of a process so far, None where the system does not tell."""
    return _mib(_field(_PROC / str(pid) / "status", "VmHWM"))


def shared_memory_mib(pids: Iterable[int | str]) -> float | None:
    """Sum of the proportional set sizes of processes: shared pages are counted once."""
    sizes = [_mib(_field(_PROC / str(pid) / "smaps_rollup", "Pss")) for pid in pids]
    found = [size for size in sizes if size is not None]
    return round(sum(found), 1) if found else None


def process_tree(root: int) -> list[int]:
    """A process and all that descend from it, as they are now."""
    parents = {int(entry.name): _parent(entry) for entry in _PROC.iterdir() if entry.name.isdigit()}
    tree = [root] if root in parents else []
    for pid in tree:
        tree += [child for child, parent in parents.items() if parent == pid]
    return tree


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has used, user and system; 0 once it is gone."""
    fields = _stat(_PROC / str(pid))
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def process_name(pid: int) -> str:
    """The Python module or program that a process runs."""
    try:
        words = (_PROC / str(pid) / "cmdline").read_text(encoding="utf-8").split("\0")
    except (OSError, UnicodeDecodeError):
        return "unknown"
    program = words[words.index("-m") + 1] if "-m" in words[:-1] else words[0]
    return program.rpartition("/")[2]


def _parent(entry: Path) -> int:
    fields = _stat(entry)
    return int(fields[1]) if fields else -1


def _stat(entry: Path) -> list[str]:
    """What follows the command's name, which may itself hold spaces and parentheses."""
    try:
        text = (entry / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def _field(path: Path, name: str) -> str:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def _mib(text: str) -> float | None:
    """``1024 kB`` → 1.0"""
    return round(int(text.split()[0]) / 1024, 1) if text else None
