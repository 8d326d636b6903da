"""Answer two chats at once, printing each piece of text as it comes.

    python examples/chat_streaming.py [MODEL]

Both answers are computed in the same batch; closing an iterator would abort its request.
"""

import sys
from itertools import zip_longest

from octavo import LLM, SamplingParams

QUESTIONS = ["What is a lighthouse?", "Name two fruits."]


def main(model: str) -> None:
    with LLM(model) as llm:
        sampling = SamplingParams(temperature=0.7, max_tokens=24, seed=1)
        streams = [
            llm.stream_chat([{"role": "user", "content": question}], sampling)
            for question in QUESTIONS
        ]
        for outputs in zip_longest(*streams):
            for question, output in zip(QUESTIONS, outputs, strict=True):
                for delta in output.branches if output else ():
                    print(f"{question} {delta.text!r} {delta.finish_reason or ''}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "smollm2")
