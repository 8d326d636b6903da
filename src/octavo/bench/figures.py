"""What a request's time stamps mean: TTFT, TPOT, end to end, goodput, and their quantiles.

    scheduled ─── sent ─── first content ─── … ─── last content ─── end
        └──────── TTFT ─────────┘ └─ TPOT · (tokens − 1) ─┘
        └──────────────────── end to end ─────────────────────────────┘

All stamps are seconds on one clock. Waiting in the client counts as waiting.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

QUANTILES = (50, 90, 99)


class Outcome(StrEnum):
    """How a request ended. Only DONE and CANCELLED (which the client asked for) went well."""

    DONE = "done"
    CANCELLED = "cancelled"
    REFUSED = "refused"
    FAILED = "failed"
    TIMED_OUT = "timed out"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One request as its client saw it. ``content_s`` holds the arrival of each piece of content.

    ``output_tokens`` are of all ``n`` choices. ``error`` names what went wrong.
    """

    scheduled_s: float
    end_s: float
    outcome: Outcome
    content_s: tuple[float, ...] = ()
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    n: int = 1
    error: str = ""

    @property
    def went_well(self) -> bool:
        """Whether it ended as its client meant it to."""
        return self.outcome in (Outcome.DONE, Outcome.CANCELLED)

    @property
    def ttft_s(self) -> float | None:
        """Scheduled send to first content; None where none came."""
        return self.content_s[0] - self.scheduled_s if self.content_s else None

    @property
    def tpot_s(self) -> float | None:
        """(last − first) / (tokens − 1) of one choice; None, not 0, for a token or less."""
        tokens = self.output_tokens / self.n
        if len(self.content_s) < 2 or tokens <= 1:
            return None
        return (self.content_s[-1] - self.content_s[0]) / (tokens - 1)

    @property
    def latency_s(self) -> float:
        """Scheduled send to the end of the response."""
        return self.end_s - self.scheduled_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """What a request must meet, in seconds.

    TTFT and TPOT within their limits is how SLOs are usually quoted, but a server that holds its
    first token back shortens the time that TPOT divides, and so gains by delay. Goodput therefore
    counts requests that were on time all along: token i due at ``ttft_s`` + i · ``tpot_s``.
    """

    ttft_s: float
    tpot_s: float

    def is_met(self, record: RequestRecord) -> bool:
        """Both figures within their limits. A request that failed or got nothing meets none."""
        ttft, tpot = record.ttft_s, record.tpot_s
        if not record.went_well or ttft is None or ttft > self.ttft_s:
            return False
        return tpot is None or tpot <= self.tpot_s

    def is_on_time(self, record: RequestRecord) -> bool:
        """Every piece of content came before its first token was due. Delay never helps."""
        pieces = len(record.content_s)
        if not record.went_well or not pieces:
            return False
        # Where a piece holds several tokens they are taken to be spread evenly over the pieces.
        per_piece = max(record.output_tokens, pieces) / pieces / record.n
        return all(
            stamp - record.scheduled_s <= self.ttft_s + math.floor(i * per_piece) * self.tpot_s
            for i, stamp in enumerate(record.content_s)
        )


def percentile(values: Sequence[float], percent: float) -> float:
    """The value at ``percent`` of a non-empty sample, linear between order statistics."""
    assert values
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def spread(name: str, values: Sequence[float], *, scale: float = 1.0) -> dict[str, object]:
    """One row: count, mean and quantiles of a sample times ``scale``, or "absent" without one."""
    row: dict[str, object] = {"name": name, "count": len(values)}
    if not values:
        return row | dict.fromkeys(("mean", *(f"p{q}" for q in QUANTILES)), "absent")
    row["mean"] = round(scale * sum(values) / len(values), 3)
    for quantile in QUANTILES:
        row[f"p{quantile}"] = round(scale * percentile(values, quantile), 3)
    return row


def latency_rows(
    records: Sequence[RequestRecord], *, gap: str = "chunk gap ms"
) -> list[dict[str, object]]:
    """Distributions in milliseconds over requests that went well.

    ``latency / token`` is the PagedAttention paper's normalised latency. ``gap`` names the row of
    gaps between pieces of content, which are ITL only where the stamps are the engine's own.
    """
    good = [record for record in records if record.went_well]
    done = [record for record in good if record.outcome is Outcome.DONE]
    gaps = [later - earlier for record in good for earlier, later in pairwise(record.content_s)]
    per_token = [record.latency_s / record.output_tokens for record in done if record.output_tokens]
    return [
        spread("TTFT ms", _present(record.ttft_s for record in good), scale=1e3),
        spread("TPOT ms", _present(record.tpot_s for record in good), scale=1e3),
        spread(gap, gaps, scale=1e3),
        spread("end to end ms", [record.latency_s for record in done], scale=1e3),
        spread("latency / token ms", per_token, scale=1e3),
    ]


def totals(
    records: Sequence[RequestRecord], slo: Slo | None, *, offered_s: float = 0.0
) -> dict[str, object]:
    """Counts by outcome, errors by name, rates over the run, goodput where there is an SLO.

    The run lasts from the first scheduled send to the last end, and every scheduled request is
    in the denominator whatever became of it. ``offered_s`` is how long an open loop sent: goodput
    is per second of that, so that a server which sheds work and ends early gains nothing.
    """
    seconds = max(r.end_s for r in records) - min(r.scheduled_s for r in records)
    output = sum(record.output_tokens for record in records)
    found: dict[str, object] = {
        "requests": len(records),
        "seconds": round(seconds, 3),
        "outcomes": count_by(record.outcome.value for record in records),
        "errors": count_by(record.error for record in records if record.error),
        "prompt_tokens": sum(record.prompt_tokens for record in records),
        "output_tokens": output,
        "output_tokens_per_s": rate(output, seconds),
        "requests_per_s": rate(sum(record.went_well for record in records), seconds),
    }
    if slo is not None:
        on_time = sum(map(slo.is_on_time, records))
        found["within_slo_percent"] = round(100 * sum(map(slo.is_met, records)) / len(records), 2)
        found["on_time_percent"] = round(100 * on_time / len(records), 2)
        found["goodput_per_s"] = rate(on_time, offered_s or seconds)
    return found


def rate(amount: float, seconds: float) -> float:
    """``amount`` per second, 0 where no time passed."""
    return round(amount / seconds, 3) if seconds > 0 else 0.0


def count_by(names: Iterable[str]) -> dict[str, int]:
    """How often each name occurs, most frequent first."""
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _present(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]
