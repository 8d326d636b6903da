"""Mutation run over one package: which small faults would no fast test notice?

    python scripts/mutate.py src/octavo/kv [--part 1/4] [--json FILE]

Every comparison, operator, condition, small constant and effect of the package is changed, one at
a time. A mutant runs the tests that are about its own module in a forked process, and if it lives,
``TESTS`` and a short simulation in another. One that fails a test, raises or does not end is
killed. Limits are of processor time and memory, so a busy machine kills nobody. Assertions,
annotations, docstrings and texts are left alone. Deterministic.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib
import importlib.abc
import importlib.util
import json
import os
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = (
    "tests/unit/test_kv_manager.py", "tests/unit/test_kv_block_pool.py",
    "tests/unit/test_kv_prefix_index.py", "tests/unit/test_kv_cached_blocks.py",
    "tests/oracles/test_kv_seed.py", "tests/unit/test_scheduler_plan.py",
    "tests/unit/test_kv_ledger.py", "tests/unit/test_scheduler_preemption.py",
)  # fmt: skip
# What kills most mutants of a module, where it is not ``test_kv_<module>``.
FIRST = {
    "charges": ("tests/unit/test_kv_ledger.py",),
    "sharing": ("tests/unit/test_kv_ledger.py",),
}
MANAGER = "tests/unit/test_kv_manager.py"
CPU_LIMIT_S = 60
MEMORY_LIMIT = 4 << 30
SIMULATED = ((1, 300), (2026, 300))

COMPARE = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
BINARY = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.BitOr: ast.BitAnd,
}  # fmt: skip
Path_ = tuple[tuple[str, int], ...]


def children(node: ast.AST) -> Iterator[tuple[str, int, ast.AST]]:
    """Every child but those that are no behaviour: assertions, annotations, texts."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for index, item in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(item, ast.AST) and not _is_no_behaviour(item):
                yield name, index, item


def _is_no_behaviour(node: ast.AST) -> bool:
    is_import = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    return is_import or isinstance(node, ast.Assert | ast.JoinedStr)


def places(node: ast.AST, path: Path_ = ()) -> Iterator[tuple[Path_, ast.AST]]:
    """Every node that may be changed, and the way to it."""
    for name, index, child in children(node):
        way = (*path, (name, index))
        yield way, child
        yield from places(child, way)


def mutants_of(node: ast.AST) -> list[tuple[str, ast.AST]]:
    """What a node may become, with a word on the change."""
    made = [*_changed(node), *_dropped(node)]
    return [(word, ast.copy_location(new, node)) for word, new in made]


def _changed(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    match node:
        case ast.Compare(ops=[op]) if type(op) in COMPARE:
            yield "comparison", _with(node, ops=[COMPARE[type(op)]()])
        case ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in BINARY:
            yield "operator", _with(node, op=BINARY[type(op)]())
        case ast.BoolOp(op=op):
            yield "and/or", _with(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield "unary dropped", operand
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            yield "condition negated", _with(node, test=ast.UnaryOp(ast.Not(), test))
        case ast.Constant(value=bool() as value):
            yield "constant", _with(node, value=not value)
        case ast.Constant(value=int() as value):
            yield "constant", _with(node, value=value + 1)


def _dropped(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(node, ast.Continue):
        yield "continue", ast.Break()
    is_value = isinstance(node, ast.Return) and node.value is not None
    if is_value and ast.unparse(node) != "return None":
        yield "return None", _with(node, value=ast.Constant(None))
    is_effect = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    if is_effect or isinstance(node, ast.AugAssign | ast.Delete) or _stores(node):
        yield "effect dropped", ast.Pass()


def _with(node: ast.AST, **changes: object) -> ast.AST:
    new = copy.deepcopy(node)
    for name, value in changes.items():
        setattr(new, name, value)
    return new


def _stores(node: ast.AST) -> bool:
    """Whether a statement assigns to an attribute or an item."""
    return isinstance(node, ast.Assign) and any(
        isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets
    )


def replaced(tree: ast.Module, path: Path_, new: ast.AST) -> ast.Module:
    """A copy of ``tree`` with the node at ``path`` exchanged."""
    tree = copy.deepcopy(tree)
    node: ast.AST = tree
    for name, index in path[:-1]:
        value = getattr(node, name)
        node = value[index] if isinstance(value, list) else value
    name, index = path[-1]
    value = getattr(node, name)
    if isinstance(value, list):
        value[index] = new
    else:
        setattr(node, name, new)
    return ast.fix_missing_locations(tree)


class Mutated(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives one module from a changed tree."""

    def __init__(self, name: str, tree: ast.Module, file: Path) -> None:
        self._name, self._tree, self._file = name, tree, file

    def find_spec(self, fullname, path, target=None):  # noqa: ANN001, ANN201
        if fullname == self._name:
            return importlib.util.spec_from_file_location(fullname, self._file, loader=self)
        return None

    def exec_module(self, module) -> None:  # noqa: ANN001
        exec(compile(self._tree, str(self._file), "exec"), module.__dict__)  # noqa: S102


def first_tests(file: Path) -> tuple[str, ...]:
    """The tests that are about one module."""
    own = f"tests/unit/test_kv_{file.stem}.py"
    return FIRST.get(file.stem, (own, MANAGER) if Path(own).exists() else (MANAGER,))


def survives(name: str, tree: ast.Module, file: Path) -> bool:
    """Run the tests in forked processes against the mutant, first those about its module."""
    first = first_tests(file)
    rest = tuple(test for test in TESTS if test not in first)
    return _passes(name, tree, file, tests=first) and _passes(
        name, tree, file, tests=rest, simulate=True
    )


def _passes(
    name: str, tree: ast.Module, file: Path, *, tests: tuple[str, ...], simulate: bool = False
) -> bool:
    pid = os.fork()
    if pid:
        return os.waitpid(pid, 0)[1] == 0
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT_S, CPU_LIMIT_S))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    code = 1
    try:
        sys.meta_path.insert(0, Mutated(name, tree, file))
        code = int(_run_tests(tests) or (simulate and _run_simulation()))
    finally:
        os._exit(code)


def _run_tests(tests: tuple[str, ...]) -> bool:
    """False when everything passed."""
    import pytest

    options = [
        "-x", "-q", "-p", "no:cacheprovider", "-p", "pytest_timeout", "--timeout", "0",
        "-W", "ignore::pytest.PytestAssertRewriteWarning",
    ]  # fmt: skip
    return pytest.main([*options, *tests]) != 0


def _run_simulation() -> bool:
    """False when it came to its end."""
    from octavo.testing.simulator import simulate

    for seed, steps in SIMULATED:
        simulate(seed, steps)
    return False


def _preload() -> None:
    """Import once, for all forks, whatever knows nothing of the package; and no plugin of pytest.

    Some of these take longer to import than most tests to run.
    """
    for module in ("hypothesis.stateful", "numpy", "pytest", "pytest_timeout", "msgspec"):
        importlib.import_module(module)
    for module in ("octavo.config", "octavo.core.runner", "octavo.core.request"):
        importlib.import_module(module)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"


def main() -> int:
    """Print survivors and the kill rate. Returns 1 if the tests fail without any change."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("package", type=Path)
    parser.add_argument("--part", default="1/1", help="every n-th mutant, from the k-th: k/n")
    parser.add_argument("--json", type=Path, help="write the outcome there")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after that long")
    options = parser.parse_args()
    part, parts = map(int, options.part.split("/"))
    os.chdir(ROOT)
    _preload()
    started, outcomes, number = time.monotonic(), [], 0
    for file in sorted(set(options.package.glob("*.py")) - {options.package / "__init__.py"}):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        name = ".".join(file.relative_to("src").with_suffix("").parts)
        if not outcomes and not survives(name, tree, file):
            print("the tests fail without any change", file=sys.stderr)
            return 1
        for path, node in places(tree):
            for word, new in mutants_of(node):
                number += 1
                if number % parts != part - 1 or time.monotonic() - started > options.seconds:
                    continue
                alive = survives(name, replaced(tree, path, new), file)
                line = getattr(node, "lineno", 0)
                text = ast.unparse(node).splitlines()[0][:80]
                outcomes.append(
                    {"file": file.name, "line": line, "change": word, "code": text, "alive": alive}
                )
                print(f"{'alive' if alive else 'killed'} {file.name}:{line} {word}: {text}")
                sys.stdout.flush()
    killed = sum(not outcome["alive"] for outcome in outcomes)
    print(f"{killed} of {len(outcomes)} killed ({100 * killed / max(1, len(outcomes)):.1f} %)")
    if options.json:
        options.json.write_text(json.dumps(outcomes, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
