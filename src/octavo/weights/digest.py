"""Digests that identify weights: a BLAKE2b tree over every byte of a file.

The file is cut into leaves of 8 MiB. Each leaf is hashed by BLAKE2b-256 on a few threads (the hash
releases the GIL), and the digest is the BLAKE2b-256 of the file's length and its leaf hashes in
order. All bytes count, so two files with the same digest are the same file.

Hashing runs at memory speed and still costs about a second per 2 GB, so the result is remembered
in the cache directory under what the system says of the file: path, device, inode, size, and the
times of its last change in nanoseconds. The change time cannot be set back by a program, and a
file that changed within the last two seconds is not remembered, so a stale record cannot be
taken for a fresh one.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from octavo.environment import cache_dir
from octavo.errors import ModelFileError

LEAF_BYTES: Final = 8 << 20
_SETTLED_NS: Final = 2_000_000_000
_THREADS: Final = 4


def file_digest(path: Path) -> str:
    """The digest of a file's bytes as 64 hex digits, remembered across runs.

    Raises:
        ModelFileError: the file cannot be read, or changes while it is read.
    """
    identity = _identity(path)
    record = cache_dir() / "digests" / f"{hashlib.blake2b(identity, digest_size=16).hexdigest()}"
    if remembered := _recall(record):
        return remembered
    started_ns = time.time_ns()
    digest = tree_digest(path)
    if _identity(path) != identity:
        raise ModelFileError(f"{path}: the file changes while it is read; retry when it is whole")
    if started_ns - path.stat().st_ctime_ns > _SETTLED_NS:
        _remember(record, digest)
    return digest


def tree_digest(path: Path) -> str:
    """The digest computed afresh from every byte."""
    try:
        size = path.stat().st_size
        offsets = range(0, size, LEAF_BYTES)
        with path.open("rb") as file, ThreadPoolExecutor(_THREADS) as pool:
            leaves = pool.map(lambda offset: _leaf(file.fileno(), offset), offsets)
            root = hashlib.blake2b(
                size.to_bytes(8, "little"), digest_size=32, person=b"octavo-tree"
            )
            for leaf in leaves:
                root.update(leaf)
    except OSError as error:
        raise ModelFileError(
            f"{path}: cannot be read ({error.strerror}); check the file and the disk"
        ) from None
    return root.hexdigest()


def _leaf(descriptor: int, offset: int) -> bytes:
    data = os.pread(descriptor, LEAF_BYTES, offset)
    return hashlib.blake2b(data, digest_size=32, person=b"octavo-leaf").digest()


def _identity(path: Path) -> bytes:
    try:
        real = path.resolve(strict=True)
        status = real.stat()
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read ({error.strerror}); check the path") from None
    facts = [
        str(real),
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    ]
    return json.dumps(facts).encode("utf-8", "surrogateescape")


def _recall(record: Path) -> str | None:
    try:
        text = record.read_text("ascii")
    except (OSError, UnicodeDecodeError):
        return None
    good = len(text) == 64 and set(text) <= set("0123456789abcdef")
    return text if good else None


def _remember(record: Path, digest: str) -> None:
    # A read-only or full cache directory only costs the next start some time.
    try:
        record.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=record.parent, delete=False) as file:
            file.write(digest)
        os.replace(file.name, record)
    except OSError:
        return
