"""What a new user sees first: the command line answers, and the answers are right."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest


def ask(model: Path, prompt: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "octavo.cli.main", "run", str(model), prompt, "--temperature", "0"],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return done.stdout


def test_the_capital_of_france(smollm2_path: Path) -> None:
    assert "Paris" in ask(smollm2_path, "What is the capital of France?")


@pytest.mark.slow
def test_the_larger_model_writes_code_that_runs(qwen_path: Path) -> None:
    answer = ask(qwen_path, "Write a Python function that reverses a string.")
    block = re.search(r"```python\n(.*?)```", answer, re.DOTALL)
    assert block is not None, answer
    name = re.search(r"def (\w+)\(", block[1])
    assert name is not None, answer
    program = f"{block[1]}\nassert {name[1]}('abc') == 'cba'\nprint('reversed')"
    ran = subprocess.run(
        [sys.executable, "-I", "-c", program],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert ran.stdout.splitlines()[-1] == "reversed"
