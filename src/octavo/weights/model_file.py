"""One way in for every kind of model on disk."""

from __future__ import annotations

from pathlib import Path

from octavo.errors import ModelFileError
from octavo.weights.gguf import open_gguf
from octavo.weights.hf_directory import open_hf_directory
from octavo.weights.tensor import ModelFile


def open_model(path: str | Path) -> ModelFile:
    """Open a GGUF file or a Hugging Face directory. No weight is read yet.

    Raises:
        ModelFileError: nothing is there, or it is malformed or unsupported.
    """
    path = Path(path)
    try:
        is_directory = path.is_dir()
    except (OSError, ValueError):
        raise ModelFileError(f"{path}: not a usable path; check it") from None
    return open_hf_directory(path) if is_directory else open_gguf(path)
