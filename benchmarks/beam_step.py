"""Step time of a beam search of width 4 beside four independent streams: medians, A B A B.

python benchmarks/beam_step.py [MODEL]
"""

from __future__ import annotations

import json
import sys
import time
from statistics import median
from typing import Any

from octavo.config import CacheConfig, SchedulerConfig
from octavo.core.sampling_params import SamplingParams
from octavo.llm import LLM

WIDTH, PROMPT_TOKENS, OUTPUT_TOKENS, ROUNDS = 4, 64, 32, 4


def step_times(llm: LLM, prompts: list[list[int]], sampling: SamplingParams) -> list[float]:
    """Seconds of each engine step that computed WIDTH tokens."""
    times: list[float] = []
    step = llm.engine.step

    def timed(now: float) -> Any:
        before, start = llm.engine.counters.computed_tokens, time.perf_counter()
        outputs = step(now)
        if llm.engine.counters.computed_tokens - before == WIDTH:
            times.append(time.perf_counter() - start)
        return outputs

    llm.engine.step = timed  # type: ignore[method-assign]
    llm.generate(prompts, sampling)
    llm.engine.step = step  # type: ignore[method-assign]
    return times


def main(model: str) -> None:
    """Print one JSON object."""
    with LLM(model, scheduler=SchedulerConfig(), cache=CacheConfig(kv_bytes=64 << 20)) as llm:
        text = "The keeper wrote of wind and ships, and of the light that turned all night. " * 20
        ids = llm.tokenizer.encode(text)
        prompts = [ids[at : at + PROMPT_TOKENS] for at in range(WIDTH)]
        plain = SamplingParams(temperature=0.0, max_tokens=OUTPUT_TOKENS, ignore_eos=True)
        beam = SamplingParams(
            temperature=0.0, max_tokens=OUTPUT_TOKENS, ignore_eos=True, use_beam_search=True,
            best_of=WIDTH, early_stopping="never",
        )  # fmt: skip
        rounds = [
            (
                median(step_times(llm, prompts, plain)),
                median(step_times(llm, prompts[:1], beam)),
            )
            for _ in range(ROUNDS)
        ]
        report = {
            "model": model,
            "width": WIDTH,
            "prompt_tokens": PROMPT_TOKENS,
            "output_tokens": OUTPUT_TOKENS,
            "streams_step_ms": [round(1e3 * streams, 3) for streams, _ in rounds],
            "beam_step_ms": [round(1e3 * beam_s, 3) for _, beam_s in rounds],
            "ratio": round(median(beam_s / streams for streams, beam_s in rounds), 3),
            "forks": llm.stats().counters["forks"],
            "cow_copies": llm.stats().counters["cow_copies"],
        }
        print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "smollm2")
