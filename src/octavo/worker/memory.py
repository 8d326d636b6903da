"""How much memory this process may use, and how large a KV pool that leaves."""

from __future__ import annotations

from pathlib import Path

from octavo.errors import ConfigError

# The default pool takes at most this share of what is free, and no more than the cap: a laptop
# has other things to do, and one option raises it.
POOL_SHARE = 0.5
POOL_CAP_BYTES = 1 << 30
# Left for activations, the tokenizer and the interpreter.
HEADROOM_BYTES = 256 << 20

_CGROUP = Path("/sys/fs/cgroup")


def available_bytes() -> int:
    """Memory that can still be taken: the kernel's estimate, bounded by the cgroup's limit."""
    free = _meminfo_available()
    for limit_file, used_file in (
        (_CGROUP / "memory.max", _CGROUP / "memory.current"),
        (_CGROUP / "memory/memory.limit_in_bytes", _CGROUP / "memory/memory.usage_in_bytes"),
    ):
        limit, used = _number(limit_file), _number(used_file)
        if limit is not None and used is not None:
            free = min(free, max(limit - used, 0))
    return free


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


def _meminfo_available() -> int:
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return POOL_CAP_BYTES + HEADROOM_BYTES
    for line in text.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return POOL_CAP_BYTES + HEADROOM_BYTES


def _number(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
