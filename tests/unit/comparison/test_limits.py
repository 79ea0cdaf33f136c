"""SLOs of nightly runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.comparison.slo import NO_SLOS, check_slos, parse_slos
from faultline.comparison.sweep_summary import Placebo, placebo_of
from faultline.records.index_entry import IndexEntry
from faultline.records.record import Record
from faultline.system.errors import ConfigError
from tests.unit.pages_store import record
from tests.unit.sample_records import RECOVERED
from tests.unit.swept_records import with_placebo

UNRECOVERED = {**RECOVERED, "recovered": False, "macro_s": None, "censored_at_s": 34.0}


def entries(values: list[float], **named: Any) -> list[IndexEntry]:
    return [
        IndexEntry.of(record(f"20261121T0615{number:02d}Z-000000", repetition=number, latency={"p99": value}, **named))
        for number, value in enumerate(values)
    ]


@given(st.lists(st.floats(1, 1e6), min_size=1, max_size=9), st.floats(1, 1e6))
def test_a_median_is_beyond_a_limit_when_it_is_larger(values: list[float], bound: float) -> None:
    (held,) = check_slos(entries(values), parse_slos({"latency_ms.p99": bound})).results
    assert held.n == len(values) and held.is_violated is (statistics.median(values) > bound)
    assert held.is_certain or len(values) > 1, "a single value has no interval"


@pytest.mark.parametrize(("rate", "beyond"), [(4_100.0, 0), (4_000.0, 0), (3_999.0, 1)])
def test_of_what_more_is_better_a_limit_is_the_least(rate: float, beyond: int) -> None:
    few = [IndexEntry(**{**vars(one), "metrics": {"throughput_rps": rate}}) for one in entries([1.0])]
    promised = check_slos(few, parse_slos({"throughput_rps": 4000}))
    assert len(promised.violations) == beyond
    assert "at least 4,000 records/s" in promised.results[0].text


@pytest.mark.parametrize(
    ("bound", "beyond", "doubtful"),
    [(30.0, ["Macro recovery: > 34.00 s"], []), (60.0, [], ["Macro recovery: > 34.00"])],
)
def test_recoveries_without_an_end_are_beyond_only_what_they_outlasted(
    bound: float, beyond: list[str], doubtful: list[str]
) -> None:
    promised = check_slos(entries([1.0] * 3, recovery=UNRECOVERED), parse_slos({"recovery.macro_s": bound}))
    for found, wanted in ((promised.violations, beyond), (promised.doubtful, doubtful)):
        assert [line[: len(start)] for line, start in zip(found, wanted, strict=True)] == wanted


def test_uncertain_violations_are_marked_by_configuration() -> None:
    near = entries([80.0, 90.0, 105.0, 130.0, 140.0], state_mb=1.0)
    far = entries([300.0, 301.0, 302.0, 303.0, 304.0], state_mb=8.0)
    promised = check_slos([*near, *far], parse_slos({"latency_ms.p99": 100}))
    assert [line.rpartition("limit ")[2] for line in promised.violations] == [
        "at most 100 ms, within uncertainty (state 1 MB)", "at most 100 ms (state 8 MB)",
    ]  # fmt: skip
    assert promised.as_json()["limits"] == {"latency_ms.p99": 100.0} and NO_SLOS.as_json() == {}


def test_a_figure_that_nothing_has_and_records_that_do_not_count_keep_no_limit() -> None:
    promised = check_slos(entries([900.0], status="invalid"), parse_slos({"latency_ms.p99": 100}))
    assert promised.violations == [] and "unknown" in promised.doubtful[0]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"recovery.macro": 30}, "limits.recovery.macro: unknown.* did you mean recovery.macro_s"),
        ({"latency_ms.p99": "500ms"}, "limits.latency_ms.p99: got '500ms'; expected a number of ms"),
        ({"latency_ms.p99": True}, "limits.latency_ms.p99: got True"),
        ({"work.batches": 3}, "limits.work.batches: unknown"),
    ],
)  # fmt: skip
def test_a_limit_that_cannot_be_is_refused_by_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_slos(given)


def among(records: Sequence[Record]) -> Placebo | None:
    return placebo_of([IndexEntry.of(one) for one in records])


def control(number: int) -> Record:
    return record(f"c-{number}", fault="none", repetition=number)


def test_without_controls_there_is_no_placebo() -> None:
    assert among([record("a"), control(1)]) is None


def test_controls_that_recover_at_once_let_recoveries_be_relied_on() -> None:
    found = among([with_placebo(control(n), 2.0) for n in range(20)])
    assert found is not None
    assert (found.controls, found.unrecovered, found.macro_s, found.is_reliable) == (20, 0, 2.0, True)


def test_more_than_one_in_twenty_unrecovered_is_too_many() -> None:
    fine = [with_placebo(control(n), 2.0) for n in range(19)]
    one, two = with_placebo(control(19), None), with_placebo(control(20), None)
    assert (found := among([*fine, one])) is not None
    assert found.is_reliable
    assert (found := among([*fine, one, two])) is not None
    assert not found.is_reliable
    assert (found := among([one, two])) is not None
    assert (found.macro_s, found.resolution_s, found.is_reliable) == (math.inf, None, False)


def test_a_recovery_from_nothing_longer_than_it_is_known_is_too_long() -> None:
    found = among([with_placebo(control(n), 8.0, late_s=6.0) for n in range(20)])
    assert found is not None
    assert not found.is_reliable
