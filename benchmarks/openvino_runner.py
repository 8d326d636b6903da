"""OpenVINO GenAI's side of the comparison; run by compare.py with the Python of its environment.

Its continuous-batching pipeline is stepped by hand: prefill lasts until every request has its
first token, decode from there to the end. The model directory is an int8 export of optimum-intel.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import time
from pathlib import Path
from typing import Any

from runner import Measure, Rows, batch_rows, random_prompts, serve_rounds

PREFILL_PROMPTS = 8
CACHE_GB = 2
STEP_TOKENS = 512


def load(model: str, threads: int) -> tuple[dict[str, Any], Measure]:
    """Load on the CPU with ``threads`` threads; prefix caching is off."""
    started = time.perf_counter()
    import numpy as np
    import openvino as ov
    import openvino_genai as genai

    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = CACHE_GB
    scheduler.max_num_batched_tokens = STEP_TOKENS
    scheduler.enable_prefix_caching = False
    pipeline = genai.ContinuousBatchingPipeline(
        model, scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads}
    )
    config = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))
    facts = {
        "version": importlib.metadata.version("openvino-genai"),
        "weights": "as exported",
        "kv_dtype": "the CPU plugin's default",
        "token_budget": STEP_TOKENS,
        "ready_after_s": round(time.perf_counter() - started, 1),
        "method": "ContinuousBatchingPipeline.step",
    }
    next_id = 0

    def seconds(prompts: list[list[int]], num_output: int) -> tuple[float, float]:
        nonlocal next_id
        generation = genai.GenerationConfig()
        generation.max_new_tokens = num_output
        generation.ignore_eos = True
        handles = []
        begin = time.perf_counter()
        for prompt in prompts:
            tokens = ov.Tensor(np.array([prompt], np.int64))
            handles.append(pipeline.add_request(next_id, tokens, generation))
            next_id += 1
        waiting, first_s = list(handles), 0.0
        while pipeline.has_non_finished_requests():
            pipeline.step()
            if waiting:
                waiting = [handle for handle in waiting if not handle.can_read()]
                first_s = time.perf_counter() - begin
        return first_s, time.perf_counter() - begin

    def measure(workload: dict[str, Any]) -> Rows:
        prompt, output, prefill = (
            workload[name] for name in ("prompt_tokens", "output_tokens", "prefill_tokens")
        )
        vocab_size = config["vocab_size"]
        long = random_prompts(vocab_size, count=PREFILL_PROMPTS, length=prefill)
        rate = PREFILL_PROMPTS * prefill / seconds(long, 1)[1]
        rows: Rows = [{"name": f"prefill {prefill}", "tokens_per_s": round(rate, 2)}]
        for streams in workload["concurrency"]:
            prompts = random_prompts(vocab_size, count=streams, length=prompt)
            first_s, total_s = seconds(prompts, output)
            rows += batch_rows(streams, output, first_s=first_s, total_s=total_s)
        return rows

    return facts, measure


if __name__ == "__main__":
    sys.exit(serve_rounds(load))
