"""Nightly runs: baselines, and changes over many runs."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.comparison.compare import ComparisonVerdict, metrics_named
from faultline.comparison.nightly_history import (
    NightlyRun,
    baseline_of,
    change_points,
    environment_changes,
    history_of,
    judge_nightly_run,
    nightly_runs_of,
)
from faultline.experiment.nightly_file import due_nights, schedule
from faultline.records.index_entry import IndexEntry
from faultline.reports.notes import MAX_NOTE, nightly_note
from faultline.system.errors import ConfigError
from tests.unit.nightly_records import nightly_records
from tests.unit.pages_store import record

P99 = metrics_named(["latency_ms.p99"])


def made(number: int, p99: float, **named: Any) -> list[IndexEntry]:
    """Return `nightly_records` in the form that pages read."""
    return [IndexEntry.of(one) for one in nightly_records(number, p99, **named)]


def nights(*entries: list[IndexEntry]) -> list[NightlyRun]:
    return nightly_runs_of([one for every in entries for one in every])


def test_a_run_has_all_records_of_its_logical_date() -> None:
    late = [IndexEntry(**{**vars(one), "measured_at": "2026-12-24T00:00:00+00:00"}) for one in made(2, 100)]
    found = nights(made(3, 100), late, made(1, 100), [IndexEntry.of(record("20261121T061500Z-3fa9c1"))])
    assert [one.day for one in found] == ["2026-11-01", "2026-11-02", "2026-11-03"]
    assert len(found[1].valid) == 5


def test_an_aborted_run_hides_no_regression() -> None:
    broken_off = made(6, 150, build="b2")[:1]
    every = nights(*(made(number, 100) for number in range(1, 6)), broken_off, made(7, 150, build="b2"))
    assert [one.day[-2:] for one in baseline_of(every[6], every, 7)] == ["01", "02", "03", "04", "05"]
    assert judge_nightly_run(every[6], every, P99, 7).reasons


def test_a_slower_run_is_worse() -> None:
    every = nights(made(1, 100), made(2, 100), made(3, 130, build="b2"))
    verdict = judge_nightly_run(every[2], every, P99, 7)
    assert [row["verdict"] for row in verdict.comparisons] == [ComparisonVerdict.WORSE]
    (reason,) = verdict.reasons
    assert reason.startswith("Latency p99 (ms): 10")
    assert verdict.summary == "1 worse; against 2026-11-01 to 2026-11-02"
    note = nightly_note(verdict, "20261103T020000")
    assert "worse" in note and len(note) <= MAX_NOTE
    assert (verdict.build, verdict.baseline, verdict.problem) == ("b2", tuple(one.date for one in every[:2]), None)


def test_an_equal_run_is_equivalent() -> None:
    every = nights(*(made(number, 100) for number in range(1, 9)))
    verdict = judge_nightly_run(every[-1], every, P99, 7)
    assert verdict.summary == "1 equivalent; against 2026-11-01 to 2026-11-07"
    assert verdict.reasons == ()


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ([made(2, 100)], "2026-11-02: no earlier run"),
        ([made(1, 100), made(2, 100, status="failed")], "2026-11-02: no usable record"),
        (
            [made(1, 100), made(2, 100, state_mb=8.0)],
            "2026-11-02: none of its configurations",
        ),
        ([made(1, 100, n=4), made(2, 100)], "1 of 1 figures have fewer than 5 repetitions on a side"),
    ],
)
def test_a_run_without_verdict_has_a_problem(entries: list[list[IndexEntry]], problem: str) -> None:
    every = nights(*entries)
    verdict = judge_nightly_run(every[-1], every, P99, 7)
    assert verdict.problem is not None and verdict.problem.startswith(problem)
    assert verdict.reasons == ()
    note = nightly_note(verdict, "s").replace("\\-", "").replace("-", "")
    assert problem.split(":")[0].replace("-", "") in note


def test_a_run_within_the_noise_floor_raises_no_alarm() -> None:
    levels = [100, 108, 93, 101, 96, 106, 99, 110]
    every = nights(*(made(number, level) for number, level in enumerate(levels, start=1)))
    assert judge_nightly_run(every[-1], every, P99, 7).reasons == ()
    far = nights(*(made(number, level) for number, level in enumerate([*levels[:-1], 150], start=1)))
    assert len(judge_nightly_run(far[-1], far, P99, 7).reasons) == 1


def test_a_run_of_two_builds_counts_with_the_newer() -> None:
    every = nights([*made(1, 100), *made(1, 200, build="b2")])
    course = history_of(every, every[0].valid[0].config_id, P99[0])
    assert course.values[0] is not None and course.values[0].value > 190


def test_nights_without_the_figure_leave_a_gap() -> None:
    every = nights(*(made(number, 100, status="failed" if number == 4 else "valid") for number in range(1, 9)))
    course = history_of(every, every[0].valid[0].config_id, P99[0])
    assert [one is None for one in course.values].index(True) == 3
    assert course.changes == ()


def test_environment_changes_are_listed_by_date() -> None:
    every = nights(
        made(1, 100),
        made(2, 100),
        made(3, 100, status="failed"),
        made(4, 100, versions="4.3.0", build="b2"),
    )
    assert environment_changes(every) == {"2026-11-04T02:00:00+00:00": "pyspark 4.2.0 -> 4.3.0, build b1 -> b2"}


def test_nights_are_due_by_cron(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULTLINE_NIGHTLY_SCHEDULE", "30 1 * * 1-5")
    first, until = datetime(2026, 11, 19, 1, 30, tzinfo=UTC), datetime(2026, 11, 24, 1, 30, tzinfo=UTC)
    assert due_nights(schedule(), first, until) == ["2026-11-20T01:30:00+00:00", "2026-11-23T01:30:00+00:00"]
    monkeypatch.setenv("FAULTLINE_NIGHTLY_SCHEDULE", "at two")
    with pytest.raises(ConfigError, match="FAULTLINE_NIGHTLY_SCHEDULE: "):
        schedule()


BOTH = {"state_mb": 8.0}


@pytest.mark.parametrize(
    ("entries", "window", "days"),
    [
        # The window before the run, without invalid records.
        ([made(1, 100), made(2, 100), made(3, 100, status="invalid"), made(4, 100)], 7, [1, 2]),
        ([made(1, 100), made(2, 100), made(3, 100, status="invalid"), made(4, 100)], 1, [2]),
        ([made(1, 100), made(2, 100)], 0, []),
        ([made(1, 100)], 7, []),
        # Builds are never averaged: of those with five repetitions the newest, also where another lies between.
        ([made(1, 100), made(2, 100, build="b0"), made(3, 100), made(4, 100)], 7, [1, 3]),
        ([made(1, 100), made(2, 100, build="b2"), made(3, 100)], 7, [2]),
        ([made(1, 100), made(2, 110, build="b2"), made(3, 120, build="b3", n=1), made(4, 9, build="b3")], 7, [2]),
        ([made(1, 100), made(2, 150, build="b2", n=1), made(3, 150, build="b2")], 7, [1]),
        # If none has enough, the newest.
        ([made(1, 100, n=4), made(2, 150, build="b2", n=1), made(3, 150, build="b2")], 7, [2]),
        # A configuration that never succeeds with a build hides no baseline of the others.
        ([[*made(1, 100), *made(1, 100, **BOTH)], made(2, 110, build="b2"),
          [*made(3, 110, build="b2"), *made(3, 110, build="b2", **BOTH)]], 7, [2]),
    ],
)  # fmt: skip
def test_the_baseline_has_one_build(entries: list[list[IndexEntry]], window: int, days: list[int]) -> None:
    every = nights(*entries)
    assert [int(one.day[-2:]) for one in baseline_of(every[-1], every, window)] == days


def test_of_nights_with_two_builds_only_the_records_of_the_newer_are_compared() -> None:
    every = nights(
        [*made(1, 900, n=8), *made(1, 100, build="b2", n=5)],
        [*made(2, 900, n=9), *made(2, 100, build="b2", n=6)],
    )
    (row,) = judge_nightly_run(every[1], every, P99, 7).comparisons
    assert (row["before"]["n"], row["after"]["n"]) == (5, 6)
    assert row["before"]["median"] < 110 > row["after"]["median"]


def test_a_reason_has_metric_change_and_p() -> None:
    every = nights(
        [*made(1, 100), *made(1, 100, state_mb=8.0)],
        [*made(2, 150), *made(2, 100, state_mb=8.0)],
    )
    verdict = judge_nightly_run(every[1], every, P99, 7)
    (reason,) = verdict.reasons
    assert re.fullmatch(r"Latency p99 \(ms\): 1\d\d \(n=5\) -> 1\d\d \(n=5\), .*", reason)
    assert re.search(r", \+\d\d\.\d% \[\+.*%\], p < 0\.0001 \(state 1 MB\)$", reason)
    assert verdict.summary == "1 worse, 1 equivalent; against 2026-11-01"


def test_figures_without_enough_repetitions_are_counted() -> None:
    every = nights(
        [*made(1, 100), *made(1, 100, state_mb=8.0)],
        [*made(2, 100), *made(2, 100, state_mb=8.0, n=4)],
    )
    assert (
        judge_nightly_run(every[1], every, P99, 7).problem == "1 of 2 figures have fewer than 5 repetitions on a side"
    )


def test_without_comparison_the_summary_is_empty() -> None:
    for every in (nights(made(1, 100)), nights(made(1, 100), made(2, 100, state_mb=8.0))):
        verdict = judge_nightly_run(every[-1], every, P99, 7)
        assert (verdict.summary, verdict.comparisons, verdict.reasons) == ("nothing to compare", (), ())
        assert verdict.problem is not None and verdict.problem.startswith(every[-1].day)


def test_one_record_is_its_nights_level_and_one_that_did_not_end_is_none() -> None:
    """Two make an interval; of one the value is known all the same, unless the watch ended before it did."""
    (metric,) = metrics_named(["recovery.macro_s"])
    endless = {"recovered": False, "censored_at_s": 30.0}
    every = nights(
        made(1, 100, recovery={"macro_s": 12.5}, n=1),
        made(2, 100, recovery=endless, n=1),
        made(3, 100, recovery=endless, n=2),
        made(4, 100, recovery={"macro_s": 12.5}, n=2),
    )
    course = history_of(every, every[0].valid[0].config_id, metric)
    assert course.positions == tuple(f"2026-11-0{day}T02:00:00+00:00" for day in (1, 2, 3, 4))
    assert [one and round(one.high, 9) for one in (course.values[0], course.values[3])] == [12.5, 12.5]
    assert course.values[1] is None
    assert course.values[2] is not None and course.values[2].value == math.inf


def test_a_level_is_counted_over_the_nights_that_have_the_figure() -> None:
    """A run with half of the values censored is infinite, and would be a level of its own."""
    (metric,) = metrics_named(["recovery.macro_s"])
    nothing = {"recovered": False, "censored_at_s": 30.0}
    levels = {number: 10.0 if number < 9 else 20.0 for number in range(1, 19) if number != 4}
    every = nights(
        *(
            made(number, 100, recovery={"macro_s": levels[number] + number % 3} if number in levels else nothing)
            for number in range(1, 19)
        )
    )
    assert history_of(every, every[0].valid[0].config_id, metric).changes == (8,)


def test_unknown_properties_count_as_none() -> None:
    first, last = "2026-11-01T02:00:00+00:00", "2026-11-02T02:00:00+00:00"
    (plain,) = made(1, 100, n=1)
    known = replace(plain, commit="abc", surroundings={**plain.surroundings, "java": "17"})
    there = nights([plain], [replace(known, logical_date=last)])
    assert environment_changes(there) == {last: "commit none -> abc, java none -> 17"}
    back = nights([replace(known, logical_date=first)], [replace(plain, logical_date=last)])
    assert environment_changes(back) == {last: "java 17 -> none, commit abc -> none"}


def test_the_environment_is_that_of_the_newest_record() -> None:
    every = nights(
        made(1, 100),
        [*made(2, 100), *made(2, 100, build="b2"), *made(2, 100, build="b3", status="failed")],
    )
    assert environment_changes(every) == {"2026-11-02T02:00:00+00:00": "build b1 -> b2"}
    assert every[1].build == "b2"
    failed = nights(made(1, 100, status="failed"))
    assert (failed[0].build, failed[0].surroundings, environment_changes(failed)) == (None, {}, {})


def levels(seed: int, *parts: tuple[int, float]) -> list[float]:
    """Return runs at each level, with 2 % of noise."""
    rng = np.random.default_rng(seed)
    return [float(value) for n, level in parts for value in level * (1 + 0.02 * rng.standard_normal(n))]


@given(st.integers(0, 50), st.integers(8, 22))
def test_a_planted_change_is_found_within_one_run(seed: int, begins: int) -> None:
    found = change_points(levels(seed, (begins, 100), (30 - begins, 110)))
    assert any(abs(one - begins) <= 1 for one in found) and len(found) <= 3


def test_seldom_is_more_found_than_was_planted() -> None:
    assert sum(bool(change_points(levels(seed, (30, 100)))) for seed in range(100)) <= 5
    assert sum(len(change_points(levels(seed, (15, 100), (15, 110)))) > 1 for seed in range(30)) <= 2


def test_a_single_outlier_is_not_a_change() -> None:
    values = levels(4, (30, 100))
    values[15] = 200
    assert change_points(values) == []


@pytest.mark.parametrize(
    ("values", "found"),
    [
        (levels(3, (10, 100), (10, 120), (10, 100)), [10, 20]),
        ([*(100.0 + n % 3 for n in range(28)), 150.0, 151.0], []),
        ([*(100.0 + n % 3 for n in range(28)), 150.0, 151.0, 152.0], [28]),
        ([1e6] * 10 + [1e6 + 1e-4] * 10, []),
        ([1e6] * 10 + [1e6 + 0.1] * 10, [10]),
        ([1e-6] * 10 + [1.1e-6] * 10, [10]),
        *((nothing, []) for nothing in ([], [1.0] * 30, [1.0, 2.0], [math.nan] * 10, [0.0] * 8)),
    ],
)
def test_a_level_lasts_three_nights_and_differs_by_more_than_rounding(values: list[float], found: list[int]) -> None:
    assert change_points(values) == found
