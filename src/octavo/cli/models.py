"""``octavo pull``, ``list`` and ``rm``."""

from __future__ import annotations

from pathlib import Path

from octavo.cli.progress import MIB, ProgressLine
from octavo.weights import PullProgress, list_models, pull, remove_model


def fetch(model: str) -> Path:
    """Make sure that a model is here, drawing progress on a terminal; its path.

    Raises:
        DownloadError: it cannot be fetched.
        ModelNotFoundError: the name means nothing.
    """
    line = ProgressLine()

    def report(progress: PullProgress) -> None:
        line.show(
            {
                "stage": progress.stage,
                "done": progress.done_bytes,
                "total": progress.total_bytes,
                "licence": progress.licence,
            }
        )

    try:
        return pull(model, progress=report)
    finally:
        line.end()


def pull_model(model: str) -> int:
    """Fetch a model and say where it is."""
    path = fetch(model)
    print(f"{model} is at {path}")
    return 0


def print_models() -> int:
    """One line per pulled model."""
    models = list_models()
    if not models:
        print("no model was pulled; try: octavo pull smollm2")
        return 0
    width = max(len(model.name) for model in models)
    for model in models:
        size = f"{model.size_bytes / MIB:.0f} MiB"
        print(f"{model.name:<{width}}  {size:>10}  {model.licence:<12}  {model.path}")
    return 0


def delete_model(model: str) -> int:
    """Delete a pulled model and say how much that freed."""
    removed = remove_model(model)
    print(f"{removed.name} is deleted ({removed.size_bytes / MIB:.0f} MiB)")
    return 0
