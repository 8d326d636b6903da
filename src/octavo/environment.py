"""The one place that reads ``os.environ``; every name is documented in ``ENVIRONMENT``."""

from __future__ import annotations

import os
from pathlib import Path

ENVIRONMENT = {
    "OCTAVO_CACHE_DIR": "where models are kept (default: $XDG_CACHE_HOME/octavo or ~/.cache/octavo)",
    "OCTAVO_ISA": "force an instruction set of the native backend: scalar, avx2, avx512vnni",
    "OCTAVO_NUM_THREADS": "threads of the native backend (default: affinity and cgroup quota)",
    "OCTAVO_API_KEY": "API key that the server requires and the client sends",
    "OCTAVO_LOG_LEVEL": "debug, info (default), warning or error",
    "OCTAVO_HUB_URL": "base URL of a Hugging Face compatible hub",
    "OCTAVO_INDEX_URL": "package index of the model aliases (default: the one pip is set up with)",
}


def environment(name: str) -> str:
    """The value of a documented environment variable, or ""."""
    assert name in ENVIRONMENT, f"undocumented environment variable {name}"
    return os.environ.get(name, "")


def cache_dir() -> Path:
    """The user's cache directory for models and derived files."""
    if chosen := environment("OCTAVO_CACHE_DIR"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "octavo"


def child_environment(**changes: str) -> dict[str, str]:
    """This process's environment with ``changes``, for a program that is started."""
    return {**os.environ, **changes}
