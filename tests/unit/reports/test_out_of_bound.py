"""What was out of its bound after a fault, in words and as spans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.records.record import Record
from faultline.reports.figures.attempt import time_figure
from faultline.reports.views.run import run_view
from faultline.reports.views.series import Bounds, bounds_of, lag_out, last_out_text, latency_out
from tests.unit.sample_records import CENSORED, RECOVERED, sample

LIMITS = {"latency_limit_ms": 4000.0, "lag_limit": 2500.0, "hold_s": 10.0, "plateau_ratio": 1.4}
SERIES: dict[str, Any] = {
    "latency": [
        {"t_s": float(t), "p50_ms": 900.0, "p99_ms": 6000.0 if 42 <= t < 50 or t == 74 else 2000.0,
         "max_ms": 6120.0, "n": 9}
        for t in range(80)
    ],
    "throughput": [],
    "lag": [{"t_s": float(t), "records": 9000 if 44 <= t <= 52 else 1000} for t in range(0, 80, 2)],
    "cpu": [],
    "events": [],
    "warmup_s": 20.0,
    "duration_s": 55.0,
}  # fmt: skip


def lasting(source: str, at_s: float = 74.9, **changed: Any) -> Record:
    """A recovery from a kill at 41 s that was not seen to end: so the last thing out of its bound."""
    timeline = {"gate": (0.0, "gate.json"), "t0": (41.0, "conductor"), "last_out": (at_s, source)}
    recovery = CENSORED | LIMITS | changed
    return sample(recovery=recovery, recoveries=[recovery], timeline=timeline)


@pytest.mark.parametrize(
    ("source", "at_s", "series", "said"),
    [
        ("tuples later than L*", 74.9, SERIES, "latency was 6,120 ms, 53 % above the bound L* of 4,000 ms"),
        ("tuples later than L*", 74.9, None, "tuples came later than the bound L* of 4,000 ms"),
        ("lag above lag*", 52.0, SERIES, "lag was 9,000 records, 3.6 times the bound lag* of 2,500 records"),
        ("lag above lag*", 52.0, {"lag": 7}, "lag was above the bound lag* of 2,500 records"),
        ("not caught up", 60.0, SERIES, "no commit had covered what was there at the fault"),
        ("no commit covered what was there at the fault", 60.0, None, "no commit had covered"),
        ("nothing", 60.0, SERIES, ""),
    ],
)
def test_which_signal_by_how_much_against_which_bound(source: str, at_s: float, series: Any, said: str) -> None:
    record = lasting(source, at_s)
    found = last_out_text(record, 1, record.metrics.recovery, series)
    assert found.startswith(said) if said else found == ""


def test_the_story_of_a_recovery_that_is_not_over_says_so(tmp_path: Path) -> None:
    record = lasting("tuples later than L*")
    folder = tmp_path / "attempts" / record.attempt
    folder.mkdir(parents=True)
    (folder / "series.json").write_text(json.dumps(SERIES))
    (fault,) = run_view(record, tmp_path).story.faults
    assert fault.verdict == (
        "not seen to recover: not over 33.9 s after the fault (censored), when latency was 6,120 ms, 53 % above the "
        "bound L* of 4,000 ms; p99 of the last 10 s was 1.4 × that before the fault"
    )
    (folder / "series.json").write_text("[")
    story = run_view(record, tmp_path).story
    assert "tuples came later than the bound L*" in story.faults[0].verdict
    assert any(remark.startswith("series.json cannot be read") for remark in story.remarks)


def test_records_without_bounds_have_none() -> None:
    old = sample(
        recovery=CENSORED, timeline={"gate": (0.0, ""), "t0": (41.0, ""), "last_out": (74.0, "lag above lag*")}
    )
    assert bounds_of(old) == []
    assert last_out_text(old, 1, old.metrics.recovery, SERIES) == ""
    assert bounds_of(sample(fault="none")) == []


def test_what_was_out_is_shaded_from_the_fault_until_it_was_over() -> None:
    record = sample(recovery=RECOVERED | LIMITS, timeline={"gate": (0.0, ""), "t0": (41.0, "")})
    (bound,) = bounds_of(record)
    assert (bound.from_s, bound.until_s) == pytest.approx((41.0, 54.84))
    assert latency_out(SERIES["latency"], bound) == [(42.0, 50.0)]
    assert lag_out(SERIES["lag"], bound) == [(42.0, 52.0)]
    figure = time_figure(SERIES, bounds=[bound])
    lines = {trace.name: trace for trace in figure.data}
    assert list(lines["L* 4,000 ms"].y) == [4000.0, 4000.0]
    assert lines["lag* 2,500"].yaxis == "y3"
    shaded = [(shape.yref, shape.x0, shape.x1) for shape in figure.layout.shapes if shape.name == "out of bound"]
    assert shaded == [("y domain", 42.0, 50.0), ("y3 domain", 42.0, 52.0)]
    assert not [one for one in time_figure(SERIES).layout.shapes if one.name == "out of bound"]


@given(
    st.lists(st.floats(0, 10_000) | st.none(), max_size=60),
    st.floats(0, 60),
    st.floats(0, 60),
    st.floats(1, 9_000),
)
def test_spans_are_apart_in_order_and_hold_just_what_was_out(
    values: list[float | None], from_s: float, length_s: float, limit: float
) -> None:
    points = [{"t_s": float(t), "p99_ms": value} for t, value in enumerate(values)]
    bound = Bounds(limit, 1.0, from_s, from_s + length_s)
    spans = latency_out(points, bound)
    assert all(left < right for left, right in spans)
    assert all(before[1] < after[0] for before, after in zip(spans, spans[1:], strict=False))
    assert all(left >= from_s for left, _ in spans)
    for t, value in enumerate(values):
        if value is not None and from_s <= t and t + 1 <= from_s + length_s:
            held = any(left <= t and t + 1 <= right for left, right in spans)
            assert held == (value > limit)
