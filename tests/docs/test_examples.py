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


def test_tool_streaming(smollm2_path: Path) -> None:
    first, *rest = run("tool_streaming.py", smollm2_path)
    assert "'name': 'population_of'" in first
    pieces = "".join(re.findall(r"'arguments': '(.*?)'}", "".join(rest)))
    assert '"city"' in pieces
    assert re.search(r"^(Oslo|Bergen): \S", "\n".join(rest), re.MULTILINE)


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


def test_async_streaming(smollm2_path: Path) -> None:
    *texts, last = run("async_streaming.py", smollm2_path)
    assert "The capital of France is| Paris" in texts[0]
    assert "The three primary colours are|" in "\n".join(texts)
    assert last == "given up after 5 tokens; running now: 0"


def test_labels_and_embeddings(smollm2_path: Path) -> None:
    name, age, counts, cat, prices = run("labels_and_embeddings.py", smollm2_path)
    shares = {word: float(share) for word, share in re.findall(r"(\w+) (\d\.\d+)", name + age)}
    assert shares["Anna"] > max(shares["Bob"], shares["Elizabeth"])
    assert shares["old"] > shares["young"]
    computed, reused = map(int, re.findall(r"\d+", counts))
    assert reused >= 48
    assert computed < 2 * reused
    assert float(cat.split()[0]) > float(prices.split()[0])


def test_no_example_goes_without_a_test() -> None:
    named = {f"test_{path.stem}" for path in EXAMPLES.glob("*.py")}
    assert named <= set(globals())
