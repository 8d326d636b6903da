"""Digests identify weights: every byte counts, and a remembered digest is never stale."""

from __future__ import annotations

import hashlib
import os
import time

import pytest

from octavo.errors import ModelFileError
from octavo.weights import digest as module
from octavo.weights.digest import file_digest, tree_digest


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OCTAVO_CACHE_DIR", str(tmp_path / "cache"))


def obvious_digest(data: bytes, leaf: int) -> str:
    root = hashlib.blake2b(len(data).to_bytes(8, "little"), digest_size=32, person=b"octavo-tree")
    for start in range(0, len(data), leaf):
        chunk = data[start : start + leaf]
        root.update(hashlib.blake2b(chunk, digest_size=32, person=b"octavo-leaf").digest())
    return root.hexdigest()


@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 1000])
def test_the_tree_is_the_obvious_one(tmp_path, monkeypatch, size):
    monkeypatch.setattr(module, "LEAF_BYTES", 100)
    data = bytes(range(256)) * 4
    (tmp_path / "f").write_bytes(data[:size])
    assert tree_digest(tmp_path / "f") == obvious_digest(data[:size], 100)


def test_every_byte_counts(tmp_path):
    data = bytearray(os.urandom(4096))
    path = tmp_path / "f"
    seen = set()
    for position in (None, 0, 2048, 4095):
        changed = bytearray(data)
        if position is not None:
            changed[position] ^= 1
        path.write_bytes(changed)
        seen.add(file_digest(path))
    path.write_bytes(data + b"\0")
    seen.add(file_digest(path))
    assert len(seen) == 5


def age(monkeypatch) -> None:
    """Let the clock of the module run ten seconds ahead of the file's last change."""
    monkeypatch.setattr(module.time, "time_ns", lambda real=time.time_ns: real() + 10**10)


def test_a_settled_file_is_remembered_and_a_changed_one_is_not(tmp_path, monkeypatch):
    path = tmp_path / "f"
    path.write_bytes(b"one")
    age(monkeypatch)
    first = file_digest(path)
    with monkeypatch.context() as patch:
        patch.setattr(module, "tree_digest", lambda _: pytest.fail("not remembered"))
        assert file_digest(path) == first
    before = path.stat()
    path.write_bytes(b"two")
    # Same size and, by force, the same modification time: the change time gives it away.
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file_digest(path) != first


def test_a_fresh_file_is_not_remembered(tmp_path):
    (tmp_path / "f").write_bytes(b"one")
    file_digest(tmp_path / "f")
    assert not (tmp_path / "cache").exists()


def test_a_damaged_record_is_ignored(tmp_path, monkeypatch):
    path = tmp_path / "f"
    path.write_bytes(b"one")
    age(monkeypatch)
    first = file_digest(path)
    (record,) = (tmp_path / "cache" / "digests").iterdir()
    for junk in (b"", b"\xff\xfe", b"g" * 64, first.encode()[:-1]):
        record.write_bytes(junk)
        assert file_digest(path) == first


def test_an_unwritable_cache_only_costs_time(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("OCTAVO_CACHE_DIR", str(tmp_path / "file" / "below"))
    (tmp_path / "f").write_bytes(b"one")
    age(monkeypatch)
    assert file_digest(tmp_path / "f") == tree_digest(tmp_path / "f")


def test_a_missing_file_is_named(tmp_path):
    for function in (file_digest, tree_digest):
        with pytest.raises(ModelFileError, match="nothing"):
            function(tmp_path / "nothing")
