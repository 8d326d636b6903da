"""The definitions of the figures, held against cases that can be worked out by hand."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.bench.figures import (
    Outcome,
    RequestRecord,
    Slo,
    latency_rows,
    percentile,
    spread,
    totals,
)

SLO = Slo(ttft_s=2.0, tpot_s=0.05)


def record(*content: float, **fields: object) -> RequestRecord:
    """A request scheduled at 0 whose every piece of content is one token."""
    values: dict[str, object] = {
        "scheduled_s": 0.0,
        "end_s": content[-1] if content else 1.0,
        "outcome": Outcome.DONE,
        "content_s": content,
        "output_tokens": len(content),
    }
    return RequestRecord(**(values | fields))  # type: ignore[arg-type]


def test_ttft_counts_from_the_schedule_not_from_the_send() -> None:
    assert record(5.0, 6.0, scheduled_s=3.5).ttft_s == 1.5


def test_tpot_divides_by_the_tokens_after_the_first() -> None:
    assert record(1.0, 1.2, 1.4).tpot_s == pytest.approx(0.2)
    # Two tokens came in one piece: the count is the server's.
    assert record(1.0, 1.4, output_tokens=3).tpot_s == pytest.approx(0.2)


@pytest.mark.parametrize("case", [record(), record(1.0), record(1.0, 1.1, output_tokens=1)])
def test_tpot_of_a_token_or_less_is_undefined(case: RequestRecord) -> None:
    assert case.tpot_s is None


def test_tpot_of_several_choices_is_that_of_one() -> None:
    two = record(1.0, 1.0, 1.2, 1.2, 1.4, 1.4, n=2)
    assert two.tpot_s == pytest.approx(0.2)


def test_bad_ends_stay_in_the_denominator() -> None:
    bad = [
        record(outcome=outcome, error=outcome.value)
        for outcome in (Outcome.REFUSED, Outcome.FAILED, Outcome.TIMED_OUT)
    ]
    late = record(2.5, 2.51)
    good = record(0.5, 0.51, 0.52)
    found = totals([good, late, *bad], SLO)
    assert found["within_slo_percent"] == 20.0
    assert found["outcomes"] == {"done": 2, "failed": 1, "refused": 1, "timed out": 1}
    assert found["errors"] == {"failed": 1, "refused": 1, "timed out": 1}
    assert found["requests"] == 5


def test_a_cancelled_request_is_judged_by_what_it_got() -> None:
    assert SLO.is_met(record(0.5, 0.52, outcome=Outcome.CANCELLED))
    assert not SLO.is_met(record(0.5, 0.7, outcome=Outcome.CANCELLED))
    assert not SLO.is_met(record(outcome=Outcome.CANCELLED))


def test_holding_back_the_first_tokens_deceives_tpot_but_not_goodput() -> None:
    slow = [0.1 + 0.09 * i for i in range(100)]
    held_back = [max(stamp, 2.0) for stamp in slow]
    limit = Slo(ttft_s=2.0, tpot_s=0.08)
    assert not limit.is_met(record(*slow))
    assert limit.is_met(record(*held_back))
    assert limit.is_on_time(record(*held_back)) <= limit.is_on_time(record(*slow))


@given(
    st.lists(st.floats(0.0, 0.2), min_size=1, max_size=60),
    st.data(),
)
def test_delaying_never_helps(gaps: list[float], data: st.DataObject) -> None:
    stamps = [sum(gaps[: i + 1]) for i in range(len(gaps))]
    delayed = [stamp + data.draw(st.floats(0.0, 1.0)) for stamp in stamps]
    if SLO.is_on_time(record(*delayed)):
        assert SLO.is_on_time(record(*stamps))


def test_on_time_is_judged_token_by_token() -> None:
    assert SLO.is_on_time(record(2.0, 2.05))
    assert not SLO.is_on_time(record(2.0, 2.06))
    # One piece holds four tokens: the second piece begins with the fifth.
    assert SLO.is_on_time(record(2.0, 2.2, output_tokens=8))
    assert not SLO.is_on_time(record(2.0, 2.21, output_tokens=8))
    assert not SLO.is_on_time(record(0.1, outcome=Outcome.FAILED))
    assert not SLO.is_on_time(record())


@pytest.mark.parametrize("second", [(3.5, 3.6, 3.7), (9.0, 9.1)])
def test_shedding_does_not_raise_goodput_of_an_open_loop(second: tuple[float, ...]) -> None:
    served = [record(0.5, 0.52), record(*second, scheduled_s=3.0)]
    refused = record(scheduled_s=3.0, end_s=3.01, outcome=Outcome.REFUSED, error="429")
    both, fewer = (totals([served[0], last], SLO, offered_s=3.0) for last in (served[1], refused))
    for figure in ("within_slo_percent", "on_time_percent", "goodput_per_s"):
        assert fewer[figure] <= both[figure]  # type: ignore[operator]


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=50))
def test_percentiles_equal_the_standard_library_s(values: list[float]) -> None:
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    for percent in (1, 50, 90, 99):
        assert percentile(values, percent) == pytest.approx(cuts[percent - 1], abs=1e-6)


def test_an_empty_sample_is_absent_not_zero() -> None:
    assert spread("x", [])["p50"] == "absent"
    rows = latency_rows([record(outcome=Outcome.FAILED)])
    assert {row["mean"] for row in rows} == {"absent"}


def test_normalised_latency_is_the_mean_of_end_to_end_over_tokens() -> None:
    rows = {row["name"]: row for row in latency_rows([record(1.0, 2.0), record(1.0)])}
    assert rows["latency / token ms"]["mean"] == 1000.0
    assert rows["TPOT ms"]["count"] == 1
