"""What the scripts for other environments share: the line protocol, and random prompts.

Runs under the other environment's Python, so it imports the standard library alone.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable
from typing import Any

Rows = list[dict[str, Any]]
Measure = Callable[[dict[str, Any]], Rows]
Load = Callable[[str, int], tuple[dict[str, Any], Measure]]


def serve_rounds(load: Load) -> int:
    """``script MODEL THREADS``: load, say so, then answer one workload a line until input ends."""
    model, threads = sys.argv[1], int(sys.argv[2])
    # Engines log to standard output; the protocol keeps the real one, they get standard error.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def answer(value: dict[str, Any]) -> None:
        answers.write(json.dumps(value) + "\n")

    try:
        facts, measure = load(model, threads)
        answer({"ready": facts})
        for line in sys.stdin:
            answer({"rows": measure(json.loads(line))})
    except Exception as error:
        answer({"error": f"{type(error).__name__}: {error}"[:400]})
        raise
    return 0


def random_prompts(vocab_size: int, *, count: int, length: int) -> list[list[int]]:
    """Prompts of random token ids, new ones each time."""
    return [[random.randrange(vocab_size) for _ in range(length)] for _ in range(count)]


def batch_rows(streams: int, output_tokens: int, *, first_s: float, total_s: float) -> Rows:
    """Rows of one batch from the time of its prefill and first tokens, and of the whole."""
    decoded = streams * (output_tokens - 1)
    return [
        {"name": f"decode x{streams}", "tokens_per_s": round(decoded / (total_s - first_s), 2)},
        {
            "name": f"end to end x{streams}",
            "tokens_per_s": round(streams * output_tokens / total_s, 2),
        },
    ]
