"""The one place that reads ``os.environ``; every name is documented in ``ENVIRONMENT``."""

from __future__ import annotations

import os
from pathlib import Path

from octavo.errors import ConfigError

ENVIRONMENT = {
    "OCTAVO_CACHE_DIR": "where models are kept (default: octavo in $XDG_CACHE_HOME or ~/.cache)",
    "OCTAVO_ISA": "force an instruction set of the native backend: scalar, avx2, avx512vnni",
    "OCTAVO_NUM_THREADS": "threads of the native backend (default: affinity and cgroup quota)",
    "OCTAVO_API_KEY": "API key that the server requires and the client sends",
    "OCTAVO_LOG_LEVEL": "debug, info (default), warning or error",
    "OCTAVO_HUB_URL": "base URL of a Hugging Face compatible hub",
    "OCTAVO_INDEX_URL": "package index of the model aliases (default: the one pip is set up with)",
}

LOG_LEVELS = ("debug", "info", "warning", "error")


def environment(name: str) -> str:
    """The value of a documented environment variable, or ""."""
    assert name in ENVIRONMENT, f"undocumented environment variable {name}"
    return os.environ.get(name, "")


def log_level() -> str:
    """The level that processes log at, as ``logging`` names it.

    Raises:
        ConfigError: there is no such level.
    """
    level = environment("OCTAVO_LOG_LEVEL") or "info"
    if level.lower() not in LOG_LEVELS:
        raise ConfigError(
            f"OCTAVO_LOG_LEVEL is {level!r}; it must be one of {', '.join(LOG_LEVELS)}"
        )
    return level.upper()


def cache_dir() -> Path:
    """The user's cache directory for models and derived files."""
    if chosen := environment("OCTAVO_CACHE_DIR"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "octavo"


def child_environment(**changes: str) -> dict[str, str]:
    """This process's environment with ``changes``, for a program that is started."""
    return {**os.environ, **changes}
