"""Stream several answers at once from an event loop, and give one up half way.

    python examples/async_streaming.py [MODEL]

All of them are computed in one batch. Closing a generator (or cancelling the task that awaits it)
cancels the request; its KV blocks are free within a step or two.
"""

import asyncio
import sys
from contextlib import aclosing

from octavo import AsyncLLM, SamplingParams

PROMPTS = ["The capital of France is", "The three primary colours are"]


async def tell(llm: AsyncLLM, prompt: str, sampling: SamplingParams) -> str:
    text = prompt + "|"
    async for output in llm.stream(prompt, sampling):
        for delta in output.branches:
            text += delta.text
    return text


async def give_up(llm: AsyncLLM) -> int:
    async with aclosing(llm.stream("Once upon a time", SamplingParams(max_tokens=400))) as stream:
        async for output in stream:
            if output.usage.completion_tokens >= 5:
                return output.usage.completion_tokens
    return 0


async def main(model: str) -> None:
    async with AsyncLLM(model) as llm:
        sampling = SamplingParams(temperature=0, max_tokens=16)
        *texts, count = await asyncio.gather(
            *(tell(llm, prompt, sampling) for prompt in PROMPTS), give_up(llm)
        )
        print("\n".join(texts))
        print(f"given up after {count} tokens; running now: {(await llm.stats()).num_running}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "smollm2"))
