"""Complete several prompts in one continuous batch.

    python examples/generate.py [MODEL]

MODEL is an alias that was pulled (``octavo pull smollm2``), a GGUF file or a model directory.
"""

import sys

from octavo import LLM, SamplingParams

PROMPTS = ["The capital of France is", "The three primary colours are", "Water boils at"]


def main(model: str) -> None:
    with LLM(model) as llm:
        for done in llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=16)):
            prompt = llm.tokenizer.decode(done.prompt_token_ids)
            print(f"{prompt}|{done.text}")
        # Nothing of a request's answer depends on who shares its batch: alone it says the same.
        (alone,) = llm.generate(PROMPTS[1], SamplingParams(temperature=0, max_tokens=16))
        print(f"alone: {PROMPTS[1]}|{alone.text}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "smollm2")
