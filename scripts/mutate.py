"""Mutation run over a package or a module: which small faults would no fast test notice?

    python scripts/mutate.py src/octavo/kv [--json FILE]

The tests are collected once, and run once to see which of them walk which line. Then each fault
(``mutants.py``) is put into the functions of a forked process, which runs the tests that walk its
line, the quickest first, until one fails; and a short simulation if none does. A fault in what a
module does when it is imported needs a process that has not imported it. A mutant whose process
fails, raises or does not end is killed. Limits are of processor time and memory, so a busy machine
kills nobody. Deterministic.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.abc
import importlib.util
import json
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from types import CodeType, FunctionType, ModuleType
from typing import Any

from mutants import compiled, functions_of, header, import_time, mutants_of, places

ROOT = Path(__file__).resolve().parents[1]
TESTS = (
    *("unit/test_kv_[!p]*.py", "unit/test_kv_prefix*.py", "unit/test_kv_promises*.py"),
    *("oracles/test_kv_seed.py", "unit/test_scheduler_plan.py"),
    "unit/test_scheduler_preemption.py",
)
OPTIONS = (
    *("-x", "-q", "-s", "-p", "no:cacheprovider", "-p", "pytest_timeout", "--timeout", "0"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),
    # Alone it takes longer than half of the others together.
    *("--deselect", "tests/unit/test_scheduler_preemption.py::test_it_never_thrashes"),
)
SIMULATED = ((1, 300), (2026, 300))
# Processor time that a test may take: so many times what it takes without a change, and a second.
SLACK = 10
ALL_TESTS_S = 120.0
MEMORY_LIMIT = 4 << 30

Item = Any  # pytest's


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change of one module. ``lines`` are those of the statement or header that it is in."""

    name: str
    file: Path
    line: int
    lines: range
    change: str
    text: str
    code: CodeType
    at_import: bool

    def row(self, alive: bool) -> dict[str, object]:
        """What became of it, for the report."""
        return {
            "file": self.file.name, "line": self.line, "change": self.change, "code": self.text,
            "alive": alive,
        }  # fmt: skip


def mutants_in(file: Path) -> list[Mutant]:
    """Every mutant of one module."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    unchanged = import_time(compile(tree, str(file), "exec"))
    found, lines = [], range(0)
    for path, node in places(tree):
        lines = header(node) if isinstance(node, ast.stmt) else lines
        for change, new in mutants_of(node):
            code = compiled(tree, path, new, file=str(file))
            mutant = Mutant(
                name=".".join(file.relative_to("src").with_suffix("").parts),
                file=file,
                line=getattr(node, "lineno", 0),
                lines=lines,
                change=change,
                text=ast.unparse(node).splitlines()[0][:80],
                code=code,
                at_import=import_time(code) != unchanged,
            )
            found.append(mutant)
    return found


def lives(trial: Callable[[], None]) -> bool:
    """Whether ``trial`` returns, in a forked process. What it prints is lost."""
    pid = os.fork()
    if pid:
        return os.waitpid(pid, 0)[1] == 0
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    code = 1
    try:
        trial()
        code = 0
    finally:
        os._exit(code)


def limit(seconds: float) -> None:
    """End this process by a signal after so much more processor time."""
    signal.setitimer(signal.ITIMER_PROF, seconds)


# -- faults of a module's import -------------------------------------------------------------------


class Mutated(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives one module from changed code."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def find_spec(self, fullname, path, target=None):  # noqa: ANN001, ANN201
        if fullname == self._mutant.name:
            return importlib.util.spec_from_file_location(fullname, self._mutant.file, loader=self)
        return None

    def exec_module(self, module) -> None:  # noqa: ANN001
        exec(self._mutant.code, module.__dict__)  # noqa: S102


def import_and_test(mutant: Mutant) -> None:
    """Everything, in a process that has not imported the package."""
    import pytest

    limit(ALL_TESTS_S)
    sys.meta_path.insert(0, Mutated(mutant))
    if pytest.main([*OPTIONS, *test_files()]):
        os._exit(1)
    simulate_a_little()


def simulate_a_little() -> None:
    """Two seeds of the simulator, with every invariant."""
    from octavo.testing.simulator import simulate

    for seed, steps in SIMULATED:
        simulate(seed, steps)


# -- faults of a function: the tests are collected already -----------------------------------------


def put_in(mutant: Mutant) -> None:
    """Give the functions of the imported module the code that they have in the mutant."""
    codes = functions_of(mutant.code)
    for function in functions_in(importlib.import_module(mutant.name)):
        function.__code__ = codes[function.__qualname__]


def functions_in(module: ModuleType) -> list[FunctionType]:
    """Every function that is written in a module, its methods and properties too."""
    classes = [value for value in vars(module).values() if isinstance(value, type)]
    owned = [value for owner in classes for value in vars(owner).values()]
    plain = [getattr(value, "fget", None) or value for value in (*vars(module).values(), *owned)]
    return [
        value
        for value in plain
        if isinstance(value, FunctionType) and value.__code__.co_filename == module.__file__
    ]


@dataclass(frozen=True, slots=True)
class Walks:
    """Which tests walk a line, and the processor time that each takes."""

    tests_of: dict[tuple[str, int], set[str]]
    seconds: dict[str, float]

    def tests(self, mutant: Mutant) -> list[str]:
        """Those that may notice, the quickest first."""
        file = str(mutant.file.resolve())
        found = set().union(*(self.tests_of.get((file, line), ()) for line in mutant.lines))
        return sorted(found, key=lambda test: (self.seconds[test], test))


def walk(items: Sequence[Item], files: Sequence[Path]) -> Walks:
    """Run every test in a forked process and see where it comes. Raises SystemExit if one fails."""
    import coverage

    with tempfile.NamedTemporaryFile("w+") as shared:

        def trial() -> None:
            seen = coverage.Coverage(
                data_file=None, config_file=False, include=[str(f.resolve()) for f in files]
            )
            seen.start()
            seconds = {}
            for item in items:
                seen.switch_context(item.nodeid)
                started = process_time()
                run(item)
                seconds[item.nodeid] = process_time() - started
            seen.stop()
            data = seen.get_data()
            lines = {file: data.contexts_by_lineno(file) for file in data.measured_files()}
            json.dump([lines, seconds], shared)
            shared.flush()

        if not lives(trial):
            raise SystemExit("the tests fail without any change")
        shared.seek(0)
        lines, seconds = json.load(shared)
    tests_of = {
        (file, int(line)): set(tests) & set(seconds)
        for file, found in lines.items()
        for line, tests in found.items()
    }
    return Walks(tests_of, seconds)


def run(item: Item) -> None:
    """One collected test. Raises SystemExit if it fails."""
    from _pytest.runner import runtestprotocol

    if any(report.failed for report in runtestprotocol(item, log=False, nextitem=None)):
        raise SystemExit(1)


class Loop:
    """A plugin: what pytest has collected is handed on instead of being run."""

    def __init__(self, work: Callable[[Sequence[Item]], None]) -> None:
        self._work = work

    def pytest_collection(self) -> None:
        """The same examples for every mutant."""
        from hypothesis import settings

        settings.register_profile(
            "mutants", settings.get_profile("dev"), derandomize=True, database=None
        )
        settings.load_profile("mutants")

    def pytest_runtestloop(self, session: Any) -> bool:  # noqa: ANN401
        """Instead of pytest's own."""
        self._work(session.items)
        return True


def test_files() -> list[str]:
    """The files of tests that are run."""
    found = {file for name in TESTS for file in Path("tests").glob(name)}
    return sorted(map(str, found))


class Report:
    """Outcomes, told as they come."""

    def __init__(self) -> None:
        self.rows: list[dict[str, object]] = []

    def add(self, mutant: Mutant, alive: bool) -> None:
        """Print one."""
        row = mutant.row(alive)
        self.rows.append(row)
        print("alive " if alive else "killed", "{file}:{line} {change}: {code}".format(**row))
        sys.stdout.flush()

    def end(self, to: Path | None) -> None:
        """Print the rates, per module and in all, and write the outcomes."""
        for file in [*dict.fromkeys(row["file"] for row in self.rows), None]:
            alive = [row["alive"] for row in self.rows if file in (None, row["file"])]
            killed = alive.count(False)
            rate = 100 * killed / max(1, len(alive))
            print(f"{file or 'all'}: {killed} of {len(alive)} killed ({rate:.1f} %)")
        if to is not None:
            to.write_text(json.dumps(self.rows, indent=1) + "\n", encoding="utf-8")


def preload() -> None:
    """Import once whatever knows nothing of the package; and no plugin of pytest."""
    for module in ("hypothesis.stateful", "numpy", "pytest", "pytest_timeout", "msgspec"):
        importlib.import_module(module)
    for module in ("octavo.config", "octavo.core.runner", "octavo.core.request"):
        importlib.import_module(module)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"


def main() -> int:
    """Print every mutant and the kill rates. Returns 1 if the tests fail without any change."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path, help="a package or one of its modules")
    parser.add_argument("--json", type=Path, help="write the outcomes there")
    options = parser.parse_args()
    os.chdir(ROOT)
    preload()
    files = sorted(options.path.glob("*.py")) if options.path.is_dir() else [options.path]
    mutants = [mutant for file in files for mutant in mutants_in(file)]
    report = Report()
    for mutant in mutants:
        if mutant.at_import:
            report.add(mutant, lives(lambda mutant=mutant: import_and_test(mutant)))

    def try_all(items: Sequence[Item]) -> None:
        walks, by_id = walk(items, files), {item.nodeid: item for item in items}
        importlib.import_module("octavo.testing.simulator")

        def trial(mutant: Mutant) -> None:
            put_in(mutant)
            for test in walks.tests(mutant):
                limit(1 + SLACK * walks.seconds[test])
                run(by_id[test])
            limit(ALL_TESTS_S)
            simulate_a_little()

        for mutant in mutants:
            if not mutant.at_import:
                report.add(mutant, lives(lambda mutant=mutant: trial(mutant)))

    import pytest

    if pytest.main([*OPTIONS, *test_files()], plugins=[Loop(try_all)]):
        return 1
    report.end(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
