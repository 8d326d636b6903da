"""``octavo doctor``: what this machine offers the engine, and the next step to take."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from octavo import __version__
from octavo.bench.machine import machine_facts
from octavo.cli.options import DEFAULT_MODEL
from octavo.cli.progress import MIB
from octavo.environment import cache_dir
from octavo.weights import list_models
from octavo.worker.memory import available_bytes

_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
# Two threads of a quiet machine meet in well under a microsecond.
_BUSY_BARRIER_NS = 20_000
_COMPILERS = ("c++", "g++", "clang++")


def doctor(*, as_json: bool) -> int:
    """Print the findings. Returns 1 when the native backend cannot be used, else 0."""
    found = findings()
    print(json.dumps(found, indent=2) if as_json else _text(found))
    return 0 if found["native"]["usable"] else 1


def findings() -> dict[str, Any]:
    """Everything that is printed, as plain values; ``next_step`` is made from the rest."""
    found: dict[str, Any] = {
        "octavo": __version__,
        "machine": machine_facts(),
        "native": _native(),
        "huge_pages": huge_pages(),
        "memory_available_bytes": available_bytes(),
        "compiler": _compiler(),
        "cache": _cache(),
        "models": [model.name for model in list_models()],
    }
    return {**found, "next_step": next_step(found)}


def _native() -> dict[str, Any]:
    """Kernel sets and speeds, measured now; or why there are none."""
    try:
        from octavo import _native
        from octavo.backends.native import default_num_threads, probe_machine
    except ImportError as error:
        return {"usable": False, "cause": str(error)}
    probed = probe_machine(default_num_threads())
    return {"usable": True, "kernel_revision": _native.kernel_revision, **probed}


def huge_pages(file: Path = _HUGE_PAGES) -> str:
    """The kernel's setting, the word in brackets: always, madvise, never; or unknown."""
    try:
        text = file.read_text(encoding="ascii")
    except OSError:
        return "unknown"
    return text.partition("[")[2].partition("]")[0] or "unknown"


def _compiler() -> str:
    for name in _COMPILERS:
        if (path := shutil.which(name)) is not None:
            answer = subprocess.run(
                [path, "--version"], capture_output=True, text=True, check=False
            ).stdout.splitlines()
            return answer[0] if answer else name
    return ""


def _cache() -> dict[str, Any]:
    folder = cache_dir()
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    return {"path": str(folder), "free_bytes": shutil.disk_usage(there).free}


def next_step(found: dict[str, Any]) -> str:
    """The one thing to do now: what is broken first, then what is slow, then what is missing."""
    if not found["native"]["usable"]:
        compiler = "" if found["compiler"] else "install a C++ compiler, then "
        return f"{compiler}build the native backend: make setup (or pip install .)"
    if found["native"]["barrier_ns"] > _BUSY_BARRIER_NS:
        return (
            f"stop what else computes here, or give --num-threads below {found['machine']['cores']}"
            ": the engine's threads wait for processors that others hold"
        )
    if found["huge_pages"] == "never":
        return (
            "allow huge pages, which weights are read faster from: "
            f"echo madvise | sudo tee {_HUGE_PAGES}"
        )
    if not found["models"]:
        return f"fetch a model: octavo pull {DEFAULT_MODEL}"
    model = DEFAULT_MODEL if DEFAULT_MODEL in found["models"] else found["models"][0]
    return f"serve a model: octavo serve {model}"


def _text(found: dict[str, Any]) -> str:
    machine, native, cache = found["machine"], found["native"], found["cache"]
    rows = [
        ("Octavo", f"{found['octavo']}, Python {machine['python']}"),
        ("processor", f"{machine['cpu']}, {machine['cores']} cores"),
        *_native_rows(native),
        ("huge pages", found["huge_pages"]),
        ("memory", f"{found['memory_available_bytes'] / MIB:.0f} MiB available"),
        ("compiler", found["compiler"] or "none (needed only to build)"),
        ("cache", f"{cache['path']}, {cache['free_bytes'] / MIB:.0f} MiB free"),
        ("models", ", ".join(found["models"]) or "none pulled"),
        ("next step", found["next_step"]),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def _native_rows(native: dict[str, Any]) -> list[tuple[str, str]]:
    if not native["usable"]:
        return [("kernels", f"not usable: {native['cause']}")]
    return [
        ("kernels", f"{', '.join(native['isas'])} (revision {native['kernel_revision']})"),
        ("threads", f"{native['num_threads']}, barrier {native['barrier_ns'] / 1000:.2f} us"),
        ("memory read", f"{native['read_gbs']:.1f} GB/s"),
        ("int8 peak", f"{native['int8_gops']:.0f} Gop/s"),
    ]
