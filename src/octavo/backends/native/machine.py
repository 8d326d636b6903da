"""How many threads this process may use, and what the machine can do."""

from __future__ import annotations

import math
import os
from pathlib import Path

from octavo import _native
from octavo.config import MAX_THREADS

_CGROUP_ROOT = Path("/sys/fs/cgroup")


def default_num_threads() -> int:
    """Processors that the affinity mask and the cgroup's CPU quota allow, within 1…MAX_THREADS."""
    allowed = min(len(os.sched_getaffinity(0)), MAX_THREADS)
    quota = cpu_quota()
    return max(1, allowed if quota is None else min(allowed, math.ceil(quota)))


def cpu_quota() -> float | None:
    """Processors' worth of time that this process's cgroups grant, or None without a limit."""
    limits = [limit for folder in _cgroup_folders() if (limit := _quota_of(folder)) is not None]
    return min(limits, default=None)


def probe_machine(num_threads: int) -> dict[str, object]:
    """Kernel sets, barrier time, read rate and int8 peak, measured now (about half a second)."""
    return {
        "isas": list(_native.cpu_features()),
        "num_threads": num_threads,
        "barrier_ns": _native.probe_barrier_ns(num_threads),
        "read_gbs": _native.probe_read_gbs(num_threads),
        "int8_gops": _native.probe_int8_gops(num_threads),
    }


def _cgroup_folders() -> list[Path]:
    """The process's cgroup and its ancestors, innermost first (version 2), or version 1's cpu."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        number, controllers, name = line.split(":", 2)
        if number == "0" and controllers == "":
            folder = _CGROUP_ROOT / name.lstrip("/")
            return [folder, *(p for p in folder.parents if p.is_relative_to(_CGROUP_ROOT))]
    return [_CGROUP_ROOT / "cpu"]


def _quota_of(folder: Path) -> float | None:
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
    except (OSError, ValueError):
        return None
    if quota in ("max", "-1"):
        return None
    return int(quota) / int(period)
