"""House rules that a machine can check: budgets, names, and what must not stand in the tree."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "octavo"
NATIVE = ROOT / "native"

# What serves, and what measures and proves it (bench, testing), apart: see ARCHITECTURE.md.
MAX_PYTHON_LINES = 20_000
MAX_TOOL_LINES = 5_000
TOOLS = ("bench", "testing")
MAX_NATIVE_LINES = 5_000
MAX_FILE_LINES = 500
MAX_NATIVE_FILE_LINES = 700
MAX_FUNCTION_LINES = 60
MAX_ARGUMENTS = 6
MAX_POSITIONAL = 3
MAX_NESTING = 3

BANNED_MODULES = {"utils", "util", "common", "misc", "helpers", "helper"}
# Spelled in pieces, so that this file does not contain what it forbids.
BANNED_TEXT = [
    "/" + "root/",
    "/" + "home/",
    "/" + "work/",
    "FIX" + "ME",
    "TO" + "DO",
    "X" + "XX",
]


def python_files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def native_files() -> list[Path]:
    return sorted(p for p in NATIVE.rglob("*") if p.suffix in {".cpp", ".hpp", ".h"})


def line_count(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def tracked_text() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    return [ROOT / name for name in listed if not name.startswith("tests/data/")]


def code_lines(path: Path) -> int:
    """Lines that hold code: what a reader must understand, not what helps to understand it."""
    text = path.read_text(encoding="utf-8")
    empty = {
        tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
        tokenize.ENDMARKER,
    }  # fmt: skip
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in empty:
            lines.update(range(token.start[0], token.end[0] + 1))
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, documented) and ast.get_docstring(node) is not None:
            lines -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines)


def native_code_lines(path: Path) -> int:
    """The same for C++, where a comment has lines of its own."""
    lines = map(str.strip, path.read_text(encoding="utf-8").splitlines())
    return sum(1 for line in lines if line and not line.startswith("//"))


def test_the_line_budgets_hold() -> None:
    sizes = {path.relative_to(PACKAGE).parts[0]: 0 for path in python_files()}
    for path in python_files():
        sizes[path.relative_to(PACKAGE).parts[0]] += code_lines(path)
    tools = sum(sizes.pop(name) for name in TOOLS)
    assert sum(sizes.values()) <= MAX_PYTHON_LINES
    assert tools <= MAX_TOOL_LINES
    assert not [p for p in native_files() if "/*" in p.read_text(encoding="utf-8")]
    assert sum(map(native_code_lines, native_files())) <= MAX_NATIVE_LINES


def test_files_are_small() -> None:
    long = {str(p): n for p in python_files() if (n := line_count(p)) > MAX_FILE_LINES}
    long |= {str(p): n for p in native_files() if (n := line_count(p)) > MAX_NATIVE_FILE_LINES}
    assert not long


def functions() -> list[tuple[Path, ast.FunctionDef | ast.AsyncFunctionDef]]:
    found = []
    for path in python_files():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.append((path, node))
    return found


def test_functions_are_short() -> None:
    long = [
        f"{path.name}:{node.name} {size}"
        for path, node in functions()
        if (size := (node.end_lineno or 0) - node.lineno + 1) > MAX_FUNCTION_LINES
    ]
    assert not long


def test_functions_have_few_arguments() -> None:
    wide = []
    for path, node in functions():
        names = [a.arg for a in node.args.posonlyargs + node.args.args]
        positional = len(names) - (1 if names[:1] in (["self"], ["cls"]) else 0)
        total = positional + len(node.args.kwonlyargs)
        if positional > MAX_POSITIONAL or total > MAX_ARGUMENTS:
            wide.append(f"{path.name}:{node.name} {positional} positional, {total} in all")
    assert not wide


BLOCKS = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.AsyncFor, ast.AsyncWith, ast.Match)


def depth(node: ast.AST, level: int = 0) -> int:
    deepest = level
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        for child in getattr(node, field, []):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            is_elif = field == "orelse" and isinstance(node, ast.If) and isinstance(child, ast.If)
            inner = level + (1 if isinstance(child, BLOCKS) and not is_elif else 0)
            deepest = max(deepest, depth(child, inner))
    return deepest


def test_nesting_is_shallow() -> None:
    deep = [f"{p.name}:{n.name} {d}" for p, n in functions() if (d := depth(n)) > MAX_NESTING]
    assert not deep


def test_no_module_is_a_drawer() -> None:
    assert not [p for p in python_files() if p.stem in BANNED_MODULES]


def test_one_class_may_be_called_manager() -> None:
    names = re.compile(r"^class (\w*Manager)\b", re.MULTILINE)
    found = [m for p in python_files() for m in names.findall(p.read_text(encoding="utf-8"))]
    assert len(found) <= 1, found


@pytest.mark.parametrize("text", BANNED_TEXT)
def test_banned_text_is_absent(text: str) -> None:
    me = Path(__file__).resolve()
    holders = []
    for path in tracked_text():
        if path.resolve() == me or not path.is_file():
            continue
        if text in path.read_bytes().decode("utf-8", errors="ignore"):
            holders.append(str(path.relative_to(ROOT)))
    assert not holders


def test_environment_is_read_in_one_place() -> None:
    readers = [p.name for p in python_files() if "os.environ" in p.read_text(encoding="utf-8")]
    assert readers == ["environment.py"]


def test_documented_environment_names_are_few() -> None:
    from octavo.environment import ENVIRONMENT

    assert len(ENVIRONMENT) <= 10


def test_attributes_are_not_probed() -> None:
    probe = re.compile(r'getattr\([^,()]+, "[^"]+", ')
    found = [p.name for p in python_files() if probe.search(p.read_text(encoding="utf-8"))]
    assert not found
