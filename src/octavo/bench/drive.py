"""Drives an engine core in this process and times its steps: what the in-process benchmarks share.

The whole engine runs (schedule, forward, sampling, commit); only sockets and HTTP are missing. The
clock is the sum of the steps' own times, so that looking at the ledger in between costs nothing.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from octavo.bench.figures import Outcome, RequestRecord
from octavo.bench.waste import WasteMeter
from octavo.config import EngineConfig
from octavo.core.request import Request, Submit
from octavo.core.runner import Runner, RunnerInfo
from octavo.core.sampling_params import SamplingParams
from octavo.engine import EngineCore
from octavo.errors import ConfigError, EngineError

LEDGER_EVERY_N_STEPS = 16
NO_SAMPLE = f"no batch ran {LEDGER_EVERY_N_STEPS} steps; raise --output-tokens"

Prompt = tuple[int, ...]


@dataclass(slots=True)
class Phase:
    """Tokens and seconds of one kind of step."""

    tokens: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds if self.seconds else 0.0


@dataclass(slots=True)
class DriveResult:
    """One batch of requests from submission to the last token.

    ``decode`` counts the steps in which every stream decodes and none prefills, ``prefill`` those
    that compute prompt tokens, ``total`` all steps and output tokens. ``token_s`` per request holds
    when each output token came. ``prefix_hit_tokens`` were read from the prefix cache.
    """

    prefill: Phase = field(default_factory=Phase)
    decode: Phase = field(default_factory=Phase)
    total: Phase = field(default_factory=Phase)
    token_s: dict[str, list[float]] = field(default_factory=dict)
    prompt_tokens: int = 0
    prefix_hit_tokens: int = 0

    def records(self) -> list[RequestRecord]:
        """The requests as a client would have seen them; all were scheduled at 0."""
        return [
            RequestRecord(
                scheduled_s=0.0,
                end_s=stamps[-1],
                outcome=Outcome.DONE,
                content_s=tuple(stamps),
                output_tokens=len(stamps),
            )
            for stamps in self.token_s.values()
        ]


def drive(
    runner: Runner,
    config: EngineConfig,
    prompts: Sequence[Prompt],
    *,
    num_output: int,
    waste: WasteMeter,
) -> DriveResult:
    """Run ``prompts`` together, ``num_output`` tokens each; end-of-text is ignored.

    Raises:
        EngineError: the engine refused or dropped a request; a figure would mean nothing.
    """
    engine = EngineCore(runner, config.scheduler, config.cache, epoch=1)
    for index, prompt in enumerate(prompts):
        engine.handle(Submit(request=make_request(str(index), prompt, num_output)), 0.0)
    result = DriveResult(prompt_tokens=sum(map(len, prompts)))
    computed = 0
    while engine.has_work():
        start = time.perf_counter()
        outputs = engine.step(start)
        spent = time.perf_counter() - start
        for output in outputs:
            if output.error is not None:
                raise EngineError(f"request {output.request_id} was dropped: {output.error}")
            result.token_s.setdefault(output.request_id, []).append(result.total.seconds + spent)
        new_computed = engine.counters.computed_tokens - computed
        computed = engine.counters.computed_tokens
        _count(result, len(prompts), computed=new_computed, sampled=len(outputs), seconds=spent)
        if engine.counters.steps % LEDGER_EVERY_N_STEPS == 0:
            waste.add(engine.ledger().as_dict())
    result.prefix_hit_tokens = engine.stats().counters["prefix_hit_tokens"]
    return result


def check_context(info: RunnerInfo, *, beyond: int = 0, **tokens: int) -> None:
    """Refuse requests that no context holds, by their options, before prompts are made for them.

    ``beyond`` tokens more than the options say are computed.

    Raises:
        ConfigError: the context is exceeded: requests would be dropped or end early.
    """
    total = sum(tokens.values()) + beyond
    if total > info.max_model_len:
        named = " and ".join(f"--{name.replace('_', '-')} {n}" for name, n in tokens.items() if n)
        raise ConfigError(
            f"{named} need a context of {total} tokens; the limit of one request is "
            f"{info.max_model_len} here; ask for fewer, or raise --max-model-len or --kv-memory"
        )


def _count(result: DriveResult, width: int, *, computed: int, sampled: int, seconds: float) -> None:
    result.total.seconds += seconds
    result.total.tokens += sampled
    if computed > sampled:
        result.prefill.seconds += seconds
        result.prefill.tokens += computed
    elif computed == sampled == width:
        result.decode.seconds += seconds
        result.decode.tokens += sampled


def make_request(request_id: str, prompt: Prompt, num_output: int) -> Request:
    """A greedy request of exactly ``num_output`` tokens."""
    sampling = SamplingParams(temperature=0.0, max_tokens=num_output, ignore_eos=True, seed=0)
    return Request(request_id=request_id, prompt_token_ids=prompt, sampling=sampling)


def random_prompts(
    rng: random.Random, vocab_size: int, *, count: int, length: int, shared: int = 0
) -> list[Prompt]:
    """Prompts of random tokens that have their first ``shared`` ones in common."""
    assert 0 <= shared < length
    head = tuple(rng.randrange(vocab_size) for _ in range(shared))
    return [
        head + tuple(rng.randrange(vocab_size) for _ in range(length - shared))
        for _ in range(count)
    ]


def bench_config(config: EngineConfig, *, streams: int, prefix_cache: bool) -> EngineConfig:
    """``config`` with room for ``streams``, and with or without sharing between prompts."""
    seats = max(config.scheduler.max_num_seqs, streams)
    return replace(
        config,
        scheduler=replace(config.scheduler, max_num_seqs=seats),
        cache=replace(config.cache, prefix_cache=prefix_cache),
    )
