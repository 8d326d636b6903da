"""Let the model call a function, printing what it says and calls as it comes; then answer.

    python examples/tool_streaming.py [MODEL]

The pieces of a call are those of a chat over HTTP; joined, they go back into the conversation.
"""

import json
import sys

from octavo import LLM, SamplingParams

TOOL = {
    "type": "function",
    "function": {
        "name": "population_of",
        "description": "How many people live in a city of Norway.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Bergen"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def main(model: str) -> None:
    messages = [{"role": "user", "content": "How many people live in Oslo?"}]
    sampling = SamplingParams(temperature=0.0, max_tokens=64)
    calls: list[dict] = []
    with LLM(model) as llm:
        stream = llm.stream_chat(
            messages, sampling, tools=[TOOL], tool_choice={
                "type": "function", "function": {"name": "population_of"}
            },
        )  # fmt: skip
        for output in stream:
            for delta in output.deltas[0] if output.deltas else ():
                print(delta)
                for piece in delta.get("tool_calls", ()):
                    if "id" in piece:
                        calls.append({"id": piece["id"], "type": "function",
                                      "function": {**piece["function"]}})  # fmt: skip
                    else:
                        call = calls[piece["index"]]["function"]
                        call["arguments"] += piece["function"]["arguments"]
        city = json.loads(calls[0]["function"]["arguments"])["city"]
        found = {"Oslo": 709_037, "Bergen": 291_940}[city]
        messages += [
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": calls[0]["id"], "content": str(found)},
        ]
        (done,) = llm.chat(messages, sampling, tools=[TOOL])
        print(f"{city}: {done.text}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "smollm2")
