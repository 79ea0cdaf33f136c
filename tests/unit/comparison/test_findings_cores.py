"""The findings on cores against made-up records."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from faultline.comparison.findings import shi
from faultline.comparison.findings.finding import Verdict
from faultline.records.record import GarbagePart
from tests.unit.made_up_findings import (
    AGREES,
    CANNOT_TELL,
    CORES,
    DISAGREES,
    NOT_ASKED,
    NOT_TESTABLE,
    cores,
    of,
    repeated,
    run,
    verdict,
)

MORE_GC = "the more cores, the more GC time"


def test_cores_lower_the_latency_and_leave_the_throughput() -> None:
    as_paper = cores(
        (2, {"non_compute_ms": 900.0, "throughput_rps": 500.0, "gc_s": 1.0, "cpu": 0.5}),
        (16, {"non_compute_ms": 300.0, "throughput_rps": 495.0, "gc_s": 2.0, "cpu": 0.7}),
        oversubscribed=True,
    )
    found = of(CORES, as_paper)
    assert MORE_GC in found and {one.verdict for text, one in found.items() if text != MORE_GC} == {AGREES}
    assert "oversubscribed at 2, 16" in found["the more cores, the smaller the latency"].evidence
    otherwise = cores(
        (2, {"non_compute_ms": 300.0, "throughput_rps": 100.0, "gc_s": 3.0, "cpu": 1.9}),
        (16, {"non_compute_ms": 290.0, "throughput_rps": 900.0, "gc_s": 2.0, "cpu": 1.8}),
    )
    verdicts = {text: one.verdict for text, one in of(CORES, otherwise).items()}
    assert verdicts.pop("the more cores, the smaller the latency") is AGREES
    assert verdicts.pop(MORE_GC) is CANNOT_TELL
    assert set(verdicts.values()) == {DISAGREES}


def test_gc_that_is_counted_once_a_task_says_nothing_of_more_cores() -> None:
    for fewest, most in ((1.0, 4.0), (4.0, 1.0)):
        found = of(CORES, cores((1, {"gc_s": fewest}), (4, {"gc_s": most})))[MORE_GC]
        assert found.verdict is CANNOT_TELL and "once for each running task" in found.evidence


def test_gc_by_the_jvms_logs_can_rise_with_the_cores() -> None:
    logged = {"gc": GarbagePart(driver_s=0.1, executors_s=1.0, pauses=9, longest_ms=30.0)}
    for fewest, most, expected in ((1.0, 4.0, AGREES), (4.0, 1.0, DISAGREES)):
        records = cores((1, {"gc_s": fewest}), (4, {"gc_s": most}))
        known = [one.model_copy(update={"metrics": one.metrics.model_copy(update=logged)}) for one in records]
        found = of(CORES, known)[MORE_GC]
        assert found.verdict is expected and "running task" not in found.evidence
        assert of(CORES, [*known[1:], records[0]])[MORE_GC].verdict is CANNOT_TELL, "one is of the other kind"


def test_a_third_of_the_latency_takes_eight_times_the_cores() -> None:
    begins = "with 16 cores instead of 2"
    four = cores((1, {"non_compute_ms": 900.0}), (4, {"non_compute_ms": 200.0}))
    assert verdict(CORES, begins, four) is NOT_TESTABLE
    wide = [
        *repeated((0.5, 1.0, 1.5), executor_cores=2, workload="stock_join", scaled={"non_compute_ms": 900.0}),
        *repeated((0.5, 1.0, 1.5), executor_cores=16, workload="stock_join", scaled={"non_compute_ms": 300.0}),
    ]
    assert verdict(CORES, begins, wide) is CANNOT_TELL
    assert verdict(CORES, begins, wide[::3]) is NOT_ASKED


@pytest.mark.parametrize(
    ("most", "share", "expected"),
    [
        (16, 0.42, AGREES), (16, 0.45, DISAGREES), (15, 0.2, NOT_TESTABLE), (18, 0.42, AGREES), (16, 0.0, NOT_ASKED),
    ],
)  # fmt: skip
def test_a_third_means_at_most_a_tenth_more_than_that(most: int, share: float, expected: Verdict) -> None:
    """By three runs each; a latency of nothing has no share. Also where all of it is less than a millisecond."""
    for latency in (900.0, 0.9):
        records = [
            run(number, executor_cores=count, workload="stock_join", partitions=4, non_compute_ms=value)
            for count, value in ((2, latency), (most, latency * share))
            for number in range(3)
        ]
        assert verdict(CORES, "with 16 cores instead of 2", records) is expected


def test_a_run_without_any_latency_makes_no_share() -> None:
    values = ((2, (0.0, 900.0, 900.0)), (16, (300.0, 300.0, 300.0)))
    records = [
        run(number, executor_cores=count, workload="stock_join", partitions=4, non_compute_ms=value)
        for count, every in values
        for number, value in enumerate(every)
    ]
    found = of(CORES, records)["with 16 cores instead of 2 the latency is a third"]
    assert (found.verdict, found.evidence) == (CANNOT_TELL, "33% to 33% of the non-compute time with 8 times the cores")


def test_the_claims_about_a_limit_rest_on_a_p() -> None:
    """A third of the latency, and a machine that is not fully used, are corrected beside the others of a page."""
    records = [
        run(number, executor_cores=cores, non_compute_ms=value * noise, fault="none")
        for cores, value in ((1, 900.0), (8, 300.0))
        for number, noise in enumerate((0.9, 1.0, 1.1))
    ]
    third, used = (shi.EXECUTOR_CORES[place].test(records) for place in (2, 5))
    shares = np.log([[900.0 * one, 300.0 * one] for one in (0.9, 1.0, 1.1)])
    asked = stats.ttest_ind(shares[:, 1] - math.log(1 / 3 + 0.1), shares[:, 0], equal_var=False)
    assert third.p == pytest.approx(asked.pvalue) and (third.verdict is AGREES) == (asked.pvalue <= 0.05)
    assert used.verdict is AGREES and used.p is not None and used.p <= 0.05
