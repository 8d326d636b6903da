"""The control plane is pure: an allow-list of what it may import, beside the linter's deny-list."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "octavo"
PURE = ("core", "kv", "scheduler", "engine")
# Nothing here knows time, chance, threads, processes, files or sockets.
ALLOWED = {
    "__future__", "abc", "array", "bisect", "collections", "dataclasses", "enum", "functools",
    "hashlib", "heapq", "itertools", "math", "operator", "typing",
}  # fmt: skip
ALLOWED_HERE = {"octavo.config", "octavo.errors", *(f"octavo.{name}" for name in PURE)}


def imported_modules(source: str) -> set[str]:
    """Every module that a file imports, wherever the import stands."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add("." * node.level + (node.module or ""))
        elif isinstance(node, ast.Name) and node.id in {"__import__", "open", "exec", "eval"}:
            names.add(node.id)
    return names


def impure(names: set[str]) -> set[str]:
    """Those that are neither on the list nor part of the control plane."""
    return {
        name
        for name in names
        if name.split(".")[0] not in ALLOWED and ".".join(name.split(".")[:2]) not in ALLOWED_HERE
    }


@pytest.mark.parametrize("package", PURE)
def test_the_control_plane_imports_nothing_else(package: str) -> None:
    files = sorted((PACKAGE / package).rglob("*.py"))
    assert files
    found = {
        path.name: bad
        for path in files
        if (bad := impure(imported_modules(path.read_text(encoding="utf-8"))))
    }
    assert found == {}


def test_what_they_share_is_pure_too() -> None:
    for name in ("config", "errors"):
        source = (PACKAGE / f"{name}.py").read_text(encoding="utf-8")
        assert impure(imported_modules(source)) == set()


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "from random import Random",
        "import os.path",
        "def f():\n    import socket",
        "import numpy as np",
        "from octavo.worker import ModelRunner",
        "import octavo",
        "from . import clock",
        "open('x')",
    ],
)
def test_the_list_refuses(source: str) -> None:
    assert impure(imported_modules(source))
