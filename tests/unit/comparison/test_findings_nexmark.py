"""Throughput of Nexmark queries, and queries without a result."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from faultline.comparison.findings.nexmark import (
    Kind,
    ambiguous,
    per_core,
    per_machine,
    table_of,
    with_driver,
    without_results,
)
from faultline.records.record import Record
from tests.unit.sample_records import sample

NUMBERS = count()
# Events lie so dense in event time in the suite's matrix.
DENSE: dict[str, Any] = {"rate": 1e7, "warmup_s": 40, "duration_s": 60, "watermark_s": 4}


def record(
    query: str, rps: float | None, *, per_core: float | None = 1e6, status: str = "valid", **config: Any
) -> Record:
    """Return a record of `query` with these events per second and per core, and further `config`."""
    made = sample(workload="nexmark", query=query, status=status, attempt=f"20261121T061500Z-{next(NUMBERS):06x}")
    metrics = made.metrics.model_copy(update={"rps_per_core": per_core, "throughput_rps": rps})
    update = {"metrics": metrics, "matrix": "nexmark", "config": {**made.config, **config}}
    return made.model_copy(update=update | ({"config_id": str(config)} if config else {}))


def test_the_kind_follows_from_the_configuration() -> None:
    assert Kind.of({"rate": 1e6}) is Kind.of({}) is Kind.EMPTY
    assert Kind.of({"rate": 1e7}) is Kind.DENSE
    assert Kind.of({"rate": 1e7, "preload_events": 5}) is Kind.FILLED
    assert Kind.of({"rate": 1e6, "preload_events": None}) is Kind.of({"rate": 1e6, "preload_events": 0}) is Kind.EMPTY


@pytest.mark.parametrize(
    ("rps", "per_core", "driver_cores", "found"),
    [
        (100.0, 50.0, 0.5, 40.0), (100.0, 50.0, 0.0, 50.0), (100.0, 50.0, None, None),
        (None, 50.0, 0.5, None), (100.0, None, 0.5, None), (0.0, 50.0, 0.5, None), (100.0, 0.0, 0.5, None),
    ],
)  # fmt: skip
def test_the_drivers_cores_count_as_those_of_the_executors(
    rps: float | None, per_core: float | None, driver_cores: float | None, found: float | None
) -> None:
    """A hundred events a second on two cores and half a core of the driver are forty per core."""
    assert with_driver(rps, per_core, driver_cores) == found


def test_a_query_in_two_configurations_has_no_figure_and_is_named() -> None:
    records = [record(query, 2e6, **named) for query in ("q10", "q2") for named in ({}, {"seed": 7})]
    records += [record("q1", 4e6), record("q1", 3e6), record("q1", 9e6, status="failed", seed=7)]
    assert ambiguous(records) == ["q2", "q10"]
    assert per_machine(records) == {"q1": [4e6, 3e6]}
    assert per_core(records) == {"q1": [1e6, 1e6]}
    assert ambiguous(records, Kind.DENSE) == []


def test_a_query_whose_figure_is_never_known_is_left_out() -> None:
    records = [record("q1", None), record("q2", None), record("q2", 2e6)]
    assert per_machine(records) == {"q2": [2e6]}
    assert per_core(records) == {"q1": [1e6], "q2": [1e6, 1e6]}
    assert per_machine([record("q1", 2e6, per_core=None)]) == {}, "it did not run as fast as it can"
    assert table_of([]) == table_of([record("q1", 2e6, status="failed")]) == []


@pytest.mark.parametrize(("rps", "mute"), [(1_400_000.0, []), (1_399_999.995, ["q7"]), (None, ["q7"])])
def test_a_result_is_due_a_window_and_the_watermark_after_the_first_event(rps: float | None, mute: list[str]) -> None:
    """A window of 10 s and a watermark of 4 s: 14 s of event time, which 100 s at 1.4 million events a second reach by
    the last event; half an event less does not."""
    assert without_results([record("q7", rps, **DENSE)], Kind.DENSE) == mute


@pytest.mark.parametrize(("preload", "mute"), [(10_000_000, []), (9_000_000, ["q7"])])
def test_events_that_filled_the_state_are_event_time_too(preload: int, mute: list[str]) -> None:
    assert without_results([record("q7", 1_300_000.0, **DENSE, preload_events=preload)], Kind.FILLED) == mute


def test_queries_are_listed_by_number_each_kind_on_a_line_of_its_own() -> None:
    slow = [record(query, 1000.0, **DENSE) for query in ("q11", "q4", "q1")]
    assert without_results(slow, Kind.DENSE) == ["q4", "q11"], "the first waits for no event time"
    two = [record(query, 2e6, **named) for query in ("q10", "q2") for named in ({}, {"seed": 7})]
    lines = table_of([*slow, *two, record("q0", 2e6)])
    assert [line for line in lines if "q2, q10" in line] == [
        "No figure under *empty state* where it was measured in more than one configuration: q2, q10."
    ]
    (mute,) = (line for line in lines if "q4, q11" in line)
    assert mute.startswith("Work without results, under *empty state, dense events*: q4, q11. ")
    assert [line.split(" | ")[0] for line in lines if line.startswith("| q")] == [
        "| query", "| q0", "| q1", "| q4", "| q11"
    ]  # fmt: skip
    assert lines[1] == "| --- | --- | --- | --- | --- | --- | --- |"


def test_a_query_that_another_kind_was_measured_of_has_a_dash() -> None:
    lines = table_of([record("q1", 2e6), record("q2", 4e6, **DENSE)])
    assert lines[2:4] == ["| q1 | 1,000 | 915 | 2,000 | — | — | — |", "| q2 | — | — | — | 1,000 | 956 | 4,000 |"]
