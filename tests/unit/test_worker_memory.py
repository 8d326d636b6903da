"""Pool sizing: what fits, what was asked, and what is refused with its numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.errors import ConfigError
from octavo.worker.memory import HEADROOM_BYTES, POOL_CAP_BYTES, available_bytes, pool_blocks

GIB = 1 << 30


def blocks(**changes: int | None) -> int:
    arguments: dict[str, int | None] = {
        "block_bytes": 1 << 20, "kv_bytes": None, "free_bytes": 8 * GIB,
        "wanted_blocks": 10_000, "min_blocks": 2,
    }  # fmt: skip
    return pool_blocks(**(arguments | changes))  # type: ignore[arg-type]


def test_the_default_is_capped_and_never_more_than_wanted() -> None:
    assert blocks() == POOL_CAP_BYTES >> 20
    assert blocks(wanted_blocks=7) == 7
    assert blocks(free_bytes=HEADROOM_BYTES + (100 << 20)) == 50


def test_an_asked_size_is_honoured_or_refused_with_both_numbers() -> None:
    assert blocks(kv_bytes=3 * GIB) == 3 * 1024
    with pytest.raises(ConfigError, match=r"9216 MiB but only \d+ MiB"):
        blocks(kv_bytes=9 * GIB)


def test_too_little_memory_names_the_remedy() -> None:
    with pytest.raises(ConfigError, match="--kv-memory"):
        blocks(free_bytes=HEADROOM_BYTES)


def test_this_machine_has_memory() -> None:
    assert available_bytes() > 0


MIB = 1 << 20


class Tree:
    """A /proc and a /sys/fs/cgroup made of files."""

    def __init__(self, root: Path, membership: str) -> None:
        self.proc, self.cgroup = root / "proc", root / "cgroup"
        self.write("proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n", root)
        self.write("proc/self/cgroup", membership, root)
        self.root = root

    @staticmethod
    def write(name: str, text: str, root: Path) -> None:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)

    def group(self, name: str, **files: object) -> None:
        for file, value in files.items():
            path = f"cgroup/{name}/memory.{file}".replace("//", "/")
            self.write(path, f"{value}\n", self.root)

    def available(self) -> int:
        return available_bytes(proc=self.proc, cgroup=self.cgroup)


def test_without_cgroups_the_kernel_decides(tmp_path: Path) -> None:
    assert Tree(tmp_path, "0::/\n").available() == 8 * GIB
    (tmp_path / "proc/meminfo").unlink()
    assert available_bytes(proc=tmp_path / "proc", cgroup=tmp_path) > 0


@pytest.mark.parametrize("tight", ["", "user.slice", "user.slice/app", "user.slice/app/run"])
def test_the_tightest_ancestor_binds(tmp_path: Path, tight: str) -> None:
    tree = Tree(tmp_path, "0::/user.slice/app/run\n")
    for name in ("user.slice", "user.slice/app", "user.slice/app/run"):
        tree.group(name, max="max", current=300 * MIB)
    tree.group(tight, max=GIB, current=300 * MIB)
    assert tree.available() == GIB - 300 * MIB


def test_a_limit_of_a_sibling_does_not_bind(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "0::/mine\n")
    tree.group("other", max=MIB, current=0)
    assert tree.available() == 8 * GIB


def test_reclaimable_page_cache_is_free(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "0::/mine\n")
    stat = f"anon {100 * MIB}\ninactive_file {600 * MIB}\nactive_file {200 * MIB}"
    tree.group("mine", max=GIB, current=900 * MIB, stat=stat)
    assert tree.available() == GIB - 300 * MIB


def test_version_1_and_hybrid_mounts(tmp_path: Path) -> None:
    tree = Tree(tmp_path, "9:cpu,memory:/a/b\n1:name=systemd:/a\n0::/a\n")
    tree.group(
        "memory/a", limit_in_bytes=2 * GIB, usage_in_bytes=GIB,
        stat=f"inactive_file 5\ntotal_inactive_file {GIB // 2}",
    )  # fmt: skip
    tree.group("memory/a/b", limit_in_bytes=9223372036854771712, usage_in_bytes=GIB)
    assert tree.available() == 2 * GIB - GIB // 2


@pytest.mark.parametrize("name", ["/docker/0123", "/../sibling", "/"])
def test_in_a_container_the_root_is_the_own_group(tmp_path: Path, name: str) -> None:
    tree = Tree(tmp_path, f"0::{name}\n")
    tree.group("", max=GIB, current=MIB)
    assert tree.available() == GIB - MIB
