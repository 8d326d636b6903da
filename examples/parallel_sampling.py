"""Draw four answers to one prompt, and read off what the KV cache shared.

    python examples/parallel_sampling.py [MODEL]

The prompt is computed once and its blocks are held by all four branches; a branch gets a block of
its own when it first writes (copy on write). Asked again, the prompt comes from the prefix cache.
"""

import sys

from octavo import LLM, SamplingParams

PROMPT = (
    "Once upon a time, in a village at the edge of the sea, there lived an old keeper of the "
    "lighthouse. Every evening he climbed the stairs, lit the flame, and wrote in his log"
)
COUNTERS = ("computed_tokens", "forks", "cow_copies", "prefix_hit_tokens")


def main(model: str) -> None:
    with LLM(model) as llm:
        sampling = SamplingParams(n=4, temperature=0.9, max_tokens=16, seed=7)
        for attempt in ("cold", "warm"):
            before = llm.stats().counters
            answers = llm.generate(PROMPT, sampling)
            after = llm.stats().counters
            spent = {name: after[name] - before[name] for name in COUNTERS}
            print(f"{attempt}: {len(answers[0].prompt_token_ids)} prompt tokens, {spent}")
        for answer in answers:
            print(f"{answer.branch}: {answer.text!r}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "smollm2")
