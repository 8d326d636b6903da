"""Decode speed with and without drafts, in process: ``python benchmarks/speculation.py MODEL``.

Copy-heavy tasks (edit this code, quote this text) go through the model's chat template and are
greedy; random text follows random tokens, seeded, at temperature 1. Each task runs once per
proposer and round, in turn, and every answer is compared with the one of the first proposer.
A task's decode time is what the steps without prompt tokens take until the first stream ends: then
the batch is no longer what it says, and a stream that is ahead would only wait for the others.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from dataclasses import dataclass, field

from octavo.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from octavo.core.request import Request, Submit
from octavo.core.runner import Runner
from octavo.core.sampling_params import SamplingParams
from octavo.engine import EngineCore
from octavo.worker import LoadedModel, load_runner

CODE = '''class Inventory:
    """Counts parts by name."""

    def __init__(self, parts=None):
        self.parts = dict(parts or {})
        self.history = []

    def add(self, name, count):
        if count < 0:
            raise ValueError("count must not be negative")
        self.parts[name] = self.parts.get(name, 0) + count
        self.history.append(("add", name, count))

    def remove(self, name, count):
        if self.parts.get(name, 0) < count:
            raise KeyError(name)
        self.parts[name] -= count
        self.history.append(("remove", name, count))

    def total(self):
        return sum(self.parts.values())
'''
STORY = (
    "The harbour town had two clocks. The old one stood in the market and was always late; the "
    "new one hung over the customs house and was always early. Ships left by the new clock and "
    "came home by the old one, so that every voyage was longer than the captains wrote it down, "
    "and nobody ever asked where the missing quarter of an hour had gone. When the lamplighter "
    "was asked which of the two was right, he answered that he lit his lamps when it grew dark."
)
TASKS = {
    "edit": f"Rename the method `total` to `count_all` in this code and change nothing else. "
    f"Answer with the whole code.\n\n```python\n{CODE}```",
    "quote": f"Quote the following text word for word, without a comment.\n\n{STORY}",
}


@dataclass
class Run:
    """One task under one proposer: decode tokens and seconds, and the answers."""

    tokens: int = 0
    seconds: float = 0.0
    drafts: int = 0
    accepted: int = 0
    answers: dict[str, list[int]] = field(default_factory=dict)
    step_ms: dict[int, list[float]] = field(default_factory=dict)


def requests(model: LoadedModel, task: str, streams: int, *, output: int) -> list[Request]:
    """``streams`` requests of a task; greedy for the copying ones."""
    made = []
    for index in range(streams):
        if task == "random":
            rng = random.Random(index)
            tokens = [rng.randrange(model.spec.vocab_size) for _ in range(48)]
            sampling = SamplingParams(seed=index, max_tokens=output, ignore_eos=True)
        else:
            messages = [{"role": "user", "content": TASKS[task] + "\n" * index}]
            tokens = model.chat_template.encode(messages)
            sampling = SamplingParams(temperature=0.0, seed=0, max_tokens=output)
        eos = model.tokenizer.eos_token_ids
        made.append(
            Request(
                request_id=str(index), prompt_token_ids=tuple(tokens), sampling=sampling,
                eos_token_ids=tuple(eos),
            )
        )  # fmt: skip
    return made


def measure(runner: Runner, asked: list[Request], proposer: str, *, num_draft_tokens: int) -> Run:
    """Run the requests together in an engine of their own."""
    scheduler = SchedulerConfig(speculate=proposer, num_draft_tokens=num_draft_tokens)
    engine = EngineCore(runner, scheduler, CacheConfig(prefix_cache=False), epoch=1)
    for request in asked:
        engine.handle(Submit(request=request), 0.0)
    run = Run()
    num_prompt = sum(len(request.prompt_token_ids) for request in asked)
    is_whole = True
    while engine.has_work():
        before = engine.counters.computed_tokens
        start = time.perf_counter()
        outputs = engine.step(start)
        spent = time.perf_counter() - start
        for output in outputs:
            run.answers.setdefault(output.request_id, []).extend(output.token_ids)
        if before >= num_prompt and is_whole:
            is_whole = all(output.finish_reason is None for output in outputs)
            run.tokens += sum(len(output.token_ids) for output in outputs)
            run.seconds += spent
            computed = engine.counters.computed_tokens - before
            run.step_ms.setdefault(computed, []).append(spent * 1e3)
    counters = engine.stats().counters
    run.drafts, run.accepted = counters["draft_tokens"], counters["draft_tokens_accepted"]
    return run


def compare(model: LoadedModel, options: argparse.Namespace, task: str, streams: int) -> None:
    """Run a task under every proposer, round by round."""
    asked = requests(model, task, streams, output=options.output_tokens)
    rates: dict[str, list[float]] = {name: [] for name in options.proposers}
    runs: dict[str, Run] = {}
    for _ in range(options.rounds):
        for name in options.proposers:
            run = measure(model.runner, asked, name, num_draft_tokens=options.num_draft_tokens)
            rates[name].append(run.tokens / run.seconds)
            runs[name] = run
        report(rates, runs, f"{task} × {streams}", with_steps=options.steps)


def report(
    rates: dict[str, list[float]], runs: dict[str, Run], what: str, *, with_steps: bool
) -> None:
    """A line per proposer about the rounds so far: medians, ratios to the first, acceptance."""
    first = next(iter(runs))
    for name, run in runs.items():
        assert run.answers == runs[first].answers, f"{what}: {name} changed the answer"
        ratio = statistics.median(
            mine / plain for mine, plain in zip(rates[name], rates[first], strict=True)
        )
        line = {
            "what": what, "proposer": name, "rounds": len(rates[name]), "tokens": run.tokens,
            "tokens_per_s": round(statistics.median(rates[name]), 2), "ratio": round(ratio, 3),
            "drafts": run.drafts, "accepted": run.accepted,
        }  # fmt: skip
        if with_steps:
            line["step_ms"] = {
                size: round(statistics.median(spent), 2)
                for size, spent in sorted(run.step_ms.items())
            }
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="qwen2.5-coder-1.5b")
    parser.add_argument("--tasks", default="edit,quote,random")
    parser.add_argument("--streams", default="1")
    parser.add_argument("--proposers", default="off,ngram,suffix")
    parser.add_argument("--num-draft-tokens", type=int, default=SchedulerConfig().num_draft_tokens)
    parser.add_argument("--output-tokens", type=int, default=160)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument(
        "--steps", action="store_true", help="also print the time of a step by size"
    )
    options = parser.parse_args()
    options.proposers = options.proposers.split(",")
    model = load_runner(
        EngineConfig(
            model=ModelConfig(model=options.model, max_model_len=2048),
            cache=CacheConfig(kv_bytes=1 << 30),
        )
    )
    for task in options.tasks.split(","):
        for streams in map(int, options.streams.split(",")):
            compare(model, options, task, streams)


if __name__ == "__main__":
    main()
