"""vLLM's side of the comparison; run by compare.py with the Python of vLLM's environment.

The decode figure is the difference of two runs of the same prompts: one for a single token
(prefill), one for all. Prefix caching is off, end-of-text is ignored, sampling is greedy.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from runner import Measure, Rows, batch_rows, random_prompts, serve_rounds

PREFILL_PROMPTS = 8


def load(model: str, threads: int) -> tuple[dict[str, Any], Measure]:
    """Load in bf16 on the CPU, bound to the first ``threads`` cores."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{threads - 1}")
    started = time.perf_counter()
    from vllm import LLM, SamplingParams, __version__

    llm = LLM(model=model, dtype="bfloat16", enable_prefix_caching=False, max_model_len=2048)
    vocab_size = llm.llm_engine.model_config.get_vocab_size()
    facts = {
        "version": __version__,
        "kv_dtype": "bf16",
        "weights": "bf16",
        "ready_after_s": round(time.perf_counter() - started, 1),
        "method": "LLM.generate; decode = all tokens minus a run for one token",
    }

    def seconds(prompts: list[list[int]], num_output: int) -> float:
        sampling = SamplingParams(temperature=0, max_tokens=num_output, ignore_eos=True)
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
        begin = time.perf_counter()
        llm.generate(inputs, sampling, use_tqdm=False)
        return time.perf_counter() - begin

    def measure(workload: dict[str, Any]) -> Rows:
        prompt, output, prefill = (
            workload[name] for name in ("prompt_tokens", "output_tokens", "prefill_tokens")
        )
        long = random_prompts(vocab_size, count=PREFILL_PROMPTS, length=prefill)
        rate = PREFILL_PROMPTS * prefill / seconds(long, 1)
        rows: Rows = [{"name": f"prefill {prefill}", "tokens_per_s": round(rate, 2)}]
        for streams in workload["concurrency"]:
            prompts = random_prompts(vocab_size, count=streams, length=prompt)
            rows += batch_rows(
                streams, output, first_s=seconds(prompts, 1), total_s=seconds(prompts, output)
            )
        return rows

    return facts, measure


if __name__ == "__main__":
    sys.exit(serve_rounds(load))
