"""``octavo pull``, ``list`` and ``rm``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from octavo.cli.progress import MIB, ProgressLine
from octavo.weights import CATALOG, PullProgress, list_models, open_model, pull, remove_model


def fetch(model: str) -> Path:
    """Make sure that a model is here, drawing progress on a terminal; its path.

    Raises:
        DownloadError: it cannot be fetched.
        ModelNotFoundError: the name means nothing.
    """
    line = ProgressLine()

    def report(progress: PullProgress) -> None:
        line.show(asdict(progress))

    try:
        return pull(model, progress=report)
    finally:
        line.end()


def pull_model(model: str) -> int:
    """Fetch a model and say where it is."""
    path = fetch(model)
    open_model(path)
    print(f"{model} is at {path}" if str(path) != model else f"{model} is a local model already")
    return 0


def print_models() -> int:
    """One line per pulled model, then one per alias that could be pulled."""
    pulled = list_models()
    have = {model.name for model in pulled}
    rows = [
        (model.name, _mib(model.size_bytes), model.licence, str(model.path)) for model in pulled
    ]
    rows += [
        (entry.alias, _mib(entry.size_bytes), entry.licence, f"not pulled: {entry.summary}")
        for entry in CATALOG.values()
        if entry.alias not in have
    ]
    names, sizes, licences = (max(len(row[i]) for row in rows) for i in range(3))
    for name, size, licence, where in rows:
        print(f"{name:<{names}}  {size:>{sizes}}  {licence:<{licences}}  {where}")
    return 0


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / MIB:.0f} MiB"


def delete_model(model: str) -> int:
    """Delete a pulled model and say how much that freed."""
    removed = remove_model(model)
    print(f"{removed.name} is deleted ({_mib(removed.size_bytes)})")
    return 0
