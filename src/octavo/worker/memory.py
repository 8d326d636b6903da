"""How much memory this process may use, and how large a KV pool that leaves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from octavo.errors import ConfigError

# The default pool takes at most this share of what is free, and no more than the cap: a laptop
# has other things to do, and one option raises it.
POOL_SHARE = 0.5
POOL_CAP_BYTES = 1 << 30
# Left for activations, the tokenizer and the interpreter.
HEADROOM_BYTES = 256 << 20

_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class _Version:
    """How one version of the memory controller spells its files."""

    limit: str
    used: str
    reclaimable: str


_V1 = _Version("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = _Version("memory.max", "memory.current", "inactive_file")


def available_bytes(*, proc: Path = _PROC, cgroup: Path = _CGROUP) -> int:
    """Memory that can still be taken: the kernel's estimate, bounded by every cgroup's limit.

    A limit binds whichever ancestor sets it, so each is looked at from the process's own cgroup
    up to the root. Page cache that the kernel would drop first does not count as used.
    """
    free = _meminfo_available(proc)
    for folder, version in _cgroup_folders(proc, cgroup):
        limit, used = _number(folder / version.limit), _number(folder / version.used)
        if limit is not None and used is not None:
            kept = max(used - _reclaimable(folder, version), 0)
            free = min(free, max(limit - kept, 0))
    return free


def _cgroup_folders(proc: Path, cgroup: Path) -> Iterator[tuple[Path, _Version]]:
    """The folders of the process's memory cgroups, both versions, up to their roots.

    Inside a container the named path may not be mounted; the root, which then is the container's
    own cgroup, is looked at in any case.
    """
    yield cgroup, _V2
    yield cgroup / "memory", _V1
    for line in _lines(proc / "self/cgroup"):
        number, controllers, name = line.split(":", 2)
        if number == "0" and not controllers:
            root, version = cgroup, _V2
        elif "memory" in controllers.split(","):
            root, version = cgroup / "memory", _V1
        else:
            continue
        parts = [part for part in name.split("/") if part]
        if ".." in parts:
            continue
        for depth in range(1, len(parts) + 1):
            yield root.joinpath(*parts[:depth]), version


def _reclaimable(folder: Path, version: _Version) -> int:
    for line in _lines(folder / "memory.stat"):
        name, _, value = line.partition(" ")
        if name == version.reclaimable:
            return int(value)
    return 0


def pool_blocks(
    *, block_bytes: int, kv_bytes: int | None, free_bytes: int, wanted_blocks: int, min_blocks: int
) -> int:
    """Blocks of the pool: what was asked for, or what fits.

    ``wanted_blocks`` is more than the scheduler could ever use; ``min_blocks`` is the least that
    can serve one request.

    Raises:
        ConfigError: the pool would be too small, or larger than the memory.
    """
    usable = max(free_bytes - HEADROOM_BYTES, 0)
    if kv_bytes is None:
        budget = min(int(usable * POOL_SHARE), POOL_CAP_BYTES)
        blocks = min(budget // block_bytes, wanted_blocks)
    else:
        if kv_bytes > usable:
            raise ConfigError(
                f"--kv-memory asks for {kv_bytes >> 20} MiB but only {usable >> 20} MiB are free; "
                "ask for less or free some memory"
            )
        blocks = kv_bytes // block_bytes
    if blocks < min_blocks:
        raise ConfigError(
            f"the KV pool would have {blocks} blocks of {block_bytes} bytes; at least {min_blocks} "
            "are needed. Free some memory or raise --kv-memory"
        )
    return blocks


def _meminfo_available(proc: Path) -> int:
    for line in _lines(proc / "meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return POOL_CAP_BYTES + HEADROOM_BYTES


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _number(path: Path) -> int | None:
    text = "".join(_lines(path)).strip()
    return int(text) if text.isdigit() else None
