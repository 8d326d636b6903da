"""Pages of a map that are no longer needed leave the process, not the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from octavo.weights.mapping import drop_pages, map_file

SIZE = 1 << 20


def resident_kib(path: Path) -> int:
    """Resident part of the process's maps of a file."""
    inside, total = False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            total += int(line.split()[1])
    return total


def test_dropped_pages_are_gone_and_come_back_equal(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    data = np.arange(SIZE, dtype=np.uint32).astype(np.uint8)
    path.write_bytes(data.tobytes())
    whole = np.frombuffer(map_file(path), np.uint8)
    views = [whole[: SIZE // 2].reshape(2, -1), whole[SIZE // 2 :], data]
    assert (whole == data).all()
    assert resident_kib(path) == SIZE >> 10
    drop_pages(views)
    assert resident_kib(path) == 0
    assert (whole == data).all()
    assert resident_kib(path) == SIZE >> 10
