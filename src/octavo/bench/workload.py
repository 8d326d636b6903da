"""What is asked of a server and when: planned requests, a function of options and seed alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from octavo.bench.lengths import parse_lengths
from octavo.bench.traces import MOONCAKE_BLOCK_TOKENS, TraceRequest, read_trace
from octavo.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Segment:
    """``tokens`` tokens of a prompt. Segments with equal ``key`` begin with equal text."""

    key: str
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequest:
    """``at_s`` counts from the start of the run.

    The client leaves after ``cancel_after`` events; 0 means never.
    """

    index: int
    at_s: float
    segments: tuple[Segment, ...]
    output_tokens: int
    cancel_after: int = 0

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt as planned."""
        return sum(segment.tokens for segment in self.segments)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeWorkload:
    """Arrivals, lengths, sharing and cancels.

    ``rate_per_s`` > 0: open loop, Poisson arrivals. ``concurrency`` > 0: closed loop, that many in
    flight. With neither, a trace's own times (``time_scale`` stretches them). A trace gives
    lengths too, times ``length_scale``.
    """

    num_requests: int = 100
    rate_per_s: float = 0.0
    concurrency: int = 0
    prompt_tokens: str = "exponential:161"
    output_tokens: str = "exponential:100"
    shared_prefix_tokens: int = 0
    cancel_fraction: float = 0.0
    max_prompt_tokens: int = 0
    max_output_tokens: int = 0
    trace: Path | None = None
    time_scale: float = 1.0
    length_scale: float = 1.0
    n: int = 1
    seed: int = 0

    def described(self) -> dict[str, object]:
        """The fields for a report; of a trace, its name alone."""
        fields: dict[str, object] = {
            name: getattr(self, name) for name in self.__dataclass_fields__ if name != "trace"
        }
        if self.trace is not None:
            fields |= {"trace": self.trace.name, "prompt_tokens": "trace", "output_tokens": "trace"}
        if self.concurrency:
            fields["arrivals"] = f"closed loop, {self.concurrency} in flight"
        elif self.rate_per_s:
            fields["arrivals"] = f"open loop, Poisson {self.rate_per_s:g}/s"
        else:
            fields["arrivals"] = f"open loop, times of the trace x {self.time_scale:g}"
        return fields


def plan_requests(workload: ServeWorkload) -> list[PlannedRequest]:
    """All requests of a run, in order of arrival.

    Raises:
        ConfigError: an option is impossible, or two contradict each other.
    """
    _check(workload)
    # One generator per concern: another number of cancels leaves lengths and arrivals alone.
    arrivals, lengths, cancels = (
        random.Random(f"{workload.seed}/{concern}") for concern in ("arrival", "length", "cancel")
    )
    planned = []
    at = 0.0
    for index, line in enumerate(_lines(workload, lengths)):
        if workload.rate_per_s:
            at += arrivals.expovariate(workload.rate_per_s)
        elif not workload.concurrency:
            at = line.at_s * workload.time_scale
        cancelled = cancels.random() < workload.cancel_fraction
        cancel_after = cancels.randint(1, line.output_tokens)
        planned.append(
            PlannedRequest(
                index=index,
                at_s=at,
                segments=_segments(workload, index, line),
                output_tokens=line.output_tokens,
                cancel_after=cancel_after if cancelled else 0,
            )
        )
    return planned


def _lines(workload: ServeWorkload, rng: random.Random) -> Iterator[TraceRequest]:
    if workload.trace is not None:
        for line in read_trace(workload.trace, limit=workload.num_requests):
            yield _clipped(workload, line, workload.length_scale)
        return
    prompt = parse_lengths(workload.prompt_tokens, option="--prompt-tokens")
    output = parse_lengths(workload.output_tokens, option="--output-tokens")
    for _ in range(workload.num_requests):
        yield _clipped(workload, TraceRequest(0.0, prompt.sample(rng), output.sample(rng)), 1.0)


def _clipped(workload: ServeWorkload, line: TraceRequest, scale: float) -> TraceRequest:
    def fit(tokens: int, limit: int) -> int:
        scaled = max(1, round(tokens * scale))
        return min(scaled, limit) if limit else scaled

    return replace(
        line,
        prompt_tokens=fit(line.prompt_tokens, workload.max_prompt_tokens),
        output_tokens=fit(line.output_tokens, workload.max_output_tokens),
    )


def _segments(workload: ServeWorkload, index: int, line: TraceRequest) -> tuple[Segment, ...]:
    """Shared prefix, then the trace's own blocks or text that no other request has."""
    seed = workload.seed
    shared = Segment(f"{seed}/shared", workload.shared_prefix_tokens)
    head = (shared,) if shared.tokens else ()
    if not line.hash_ids:
        return (*head, Segment(f"{seed}/own/{index}", line.prompt_tokens))
    size = max(1, round(MOONCAKE_BLOCK_TOKENS * workload.length_scale))
    blocks = []
    left = line.prompt_tokens
    for hash_id in line.hash_ids:
        if left <= 0:
            break
        blocks.append(Segment(f"{seed}/block/{hash_id}", min(size, left)))
        left -= size
    if left > 0:
        blocks.append(Segment(f"{seed}/own/{index}", left))
    return (*head, *blocks)


def _check(workload: ServeWorkload) -> None:
    positive = {
        "--num-requests": workload.num_requests,
        "--time-scale": workload.time_scale,
        "--length-scale": workload.length_scale,
        "--n": workload.n,
    }
    for option, value in positive.items():
        if value <= 0:
            raise ConfigError(f"{option} is {value}; it must be above 0")
    if workload.rate_per_s < 0 or workload.concurrency < 0:
        raise ConfigError("--rate and --concurrency must be above 0")
    if workload.rate_per_s and workload.concurrency:
        raise ConfigError("give --rate (open loop) or --concurrency (closed loop), not both")
    if workload.trace is None and not (workload.rate_per_s or workload.concurrency):
        raise ConfigError("say when to send: --rate, --concurrency or --trace")
    scales = {"--time-scale": workload.time_scale, "--length-scale": workload.length_scale}
    for option, value in scales.items():
        if workload.trace is None and value != 1:
            raise ConfigError(f"{option} would do nothing here: give --trace")
    if not 0 <= workload.cancel_fraction <= 1:
        raise ConfigError(f"--cancel-fraction is {workload.cancel_fraction}; it must be 0 to 1")
    if workload.shared_prefix_tokens < 0:
        raise ConfigError("--shared-prefix-tokens must be 0 or more")


def check_trace_use(workload: ServeWorkload) -> None:
    """Refuse what a trace takes the place of.

    Raises:
        ConfigError: an option would do nothing beside the trace.
    """
    if workload.trace is None:
        return
    plain = ServeWorkload()
    given = {
        "--prompt-tokens": workload.prompt_tokens != plain.prompt_tokens,
        "--output-tokens": workload.output_tokens != plain.output_tokens,
    }
    if idle := [option for option, is_given in given.items() if is_given]:
        raise ConfigError(
            f"{idle[0]} would do nothing here: the trace gives lengths; --length-scale changes them"
        )
    if workload.time_scale != 1 and (workload.rate_per_s or workload.concurrency):
        raise ConfigError(
            "--time-scale would do nothing here: leave --rate and --concurrency out, so that "
            "requests go at the trace's times"
        )
