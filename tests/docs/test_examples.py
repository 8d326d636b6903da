"""Every example runs as a user would run it, and shows what its text says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(name: str, model: Path) -> list[str]:
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), str(model)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout.splitlines()


def test_generate(smollm2_path: Path) -> None:
    lines = run("generate.py", smollm2_path)
    assert "The capital of France is| Paris" in lines[0]
    # An answer may hold line breaks; the one given alone is the one given in company.
    text = "\n".join(lines)
    together, alone = text.split("alone: ")
    assert alone in together


def test_chat_streaming(smollm2_path: Path) -> None:
    lines = run("chat_streaming.py", smollm2_path)
    asked = [line.split("? ")[0].split(". ")[0] for line in lines]
    assert asked[:4] == ["What is a lighthouse", "Name two fruits"] * 2
    assert sum("length" in line or "stop" in line for line in lines) >= 2


def test_parallel_sampling(smollm2_path: Path) -> None:
    lines = run("parallel_sampling.py", smollm2_path)
    cold, warm = (
        {name: int(count) for name, count in re.findall(r"'(\w+)': (\d+)", line)}
        for line in lines[:2]
    )
    prompt = int(re.findall(r"(\d+) prompt tokens", lines[0])[0])
    assert cold["forks"] == warm["forks"] == 3
    assert cold["prefix_hit_tokens"] == 0
    assert warm["prefix_hit_tokens"] == prompt - 1
    # The prompt once, then one token a step of every branch but its last.
    assert prompt < cold["computed_tokens"] <= prompt + 4 * 15
    assert warm["computed_tokens"] == cold["computed_tokens"] - warm["prefix_hit_tokens"]
    assert cold["cow_copies"] >= 3
    assert [line.partition(":")[0] for line in lines[2:] if re.match(r"\d: ", line)] == list("0123")


def test_no_example_goes_without_a_test() -> None:
    named = {f"test_{path.stem}" for path in EXAMPLES.glob("*.py")}
    assert named <= set(globals())
