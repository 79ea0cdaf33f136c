"""The findings on the input rate on synthetic records."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from faultline.comparison.findings import shi
from faultline.comparison.findings.claims import ClaimVerdict
from faultline.records.record import ByRole, Record
from faultline.records.work_parts import GarbagePart
from tests.unit.made_up_findings import (
    AGREES,
    CORES,
    DISAGREES,
    INCONCLUSIVE,
    NOT_COVERED,
    NOT_TESTABLE,
    RATE,
    cores,
    grid,
    of,
    rates,
    repeated,
    run,
    verdict,
)


def test_the_last_step_of_the_rate_is_the_steep_one() -> None:
    def records(*latencies: float) -> list[Record]:
        pairs = zip((100, 500, 2500, 12_500), latencies, strict=False)
        return rates(*((rate, {"non_compute_ms": ms, "task_s": ms / 100, "gc_s": ms / 1000}) for rate, ms in pairs))

    steep = records(500, 520, 560, 4000)
    for begins in (
        "the higher the rate, the larger the latency", "latency rises little", "execution time grows little",
        "the higher the rate, the more GC",
    ):  # fmt: skip
        assert verdict(RATE, begins, steep) is AGREES
    assert verdict(RATE, "latency rises little", records(500, 3000, 3900, 4000)) is DISAGREES
    assert verdict(RATE, "latency rises little", records(500, 505, 510, 516)) is DISAGREES
    assert verdict(RATE, "latency rises little", records(500, 4000)) is NOT_COVERED
    assert verdict(RATE, "the higher the rate, the more GC", records(4000, 600, 550, 500)) is DISAGREES
    searched = run(rate=50_000, workload="stock_group_by", non_compute_ms=1.0)
    assert verdict(RATE, "latency rises little", [*steep, searched]) is AGREES, "a single run ends no axis"


def test_tasks_find_their_ceiling() -> None:
    middle, last = "tasks hardly change", "tasks become fewer"

    def records(*tasks: int) -> list[Record]:
        return rates(*((rate, {"tasks": count}) for rate, count in zip((100, 500, 2500, 12_500), tasks, strict=False)))

    as_paper = records(1000, 5000, 5050, 3000)
    assert verdict(RATE, middle, as_paper) is verdict(RATE, last, as_paper) is AGREES
    otherwise = records(1000, 2000, 4000, 8000)
    assert verdict(RATE, middle, otherwise) is verdict(RATE, last, otherwise) is DISAGREES
    assert verdict(RATE, middle, records(1000, 2000)) is NOT_COVERED


def test_a_threshold_has_both_sides() -> None:
    begins = "performance is stable up to a threshold"

    def records(*held: bool | None) -> list[Record]:
        return [
            run(number, rate=rate, workload="stock_group_by", sustained=one if one is not None else number == 0)
            for rate, one in zip((100, 500, 2500), held, strict=False)
            for number in range(2)
        ]

    assert verdict(RATE, begins, records(True, True, False)) is AGREES
    assert verdict(RATE, begins, records(True, None, False)) is AGREES, "between them it is inconclusive"
    assert verdict(RATE, begins, records(True, False, True)) is DISAGREES
    assert verdict(RATE, begins, records(True, True, True)) is verdict(RATE, begins, records(False)) is INCONCLUSIVE
    assert verdict(RATE, begins, records(True, False)[::2]) is INCONCLUSIVE, "single runs"


def test_four_repetitions_of_a_rate_suffice() -> None:
    """Rates that only the search measured are not on the axis."""

    def records(*repetitions: int) -> list[Record]:
        latencies = {100: 1.0, 500: 1.1, 2500: 1.2, 12_500: 9.0}
        return [
            run(number, rate=rate, workload="stock_group_by", non_compute_ms=ms, tasks=int(1000 * ms))
            for times, (rate, ms) in zip(repetitions, latencies.items(), strict=False)
            for number in range(times)
        ]

    def evidence(begins: str, *repetitions: int) -> str:
        return next(one.evidence for text, one in of(RATE, records(*repetitions)).items() if text.startswith(begins))

    assert verdict(RATE, "latency rises little", records(4, 4, 4, 4)) is AGREES
    assert verdict(RATE, "latency rises little", records(2, 2, 2, 2)) is INCONCLUSIVE
    for few in ((2, 2), (2, 2, 1, 1)):
        assert evidence("latency rises little", *few) == "requires 3 values of rate, each measured more than once"
    for few in ((2, 2, 2), (2, 2, 2, 1)):
        assert evidence("tasks hardly change", *few) == "requires 4 values of rate, each measured more than once"
    for few in ((2,), (2, 1, 1)):
        assert evidence("tasks become fewer", *few) == "requires 2 values of rate, each measured more than once"


@pytest.mark.parametrize(
    ("last", "expected"),
    [((2.0, 2.1, 2.2, 2.3), AGREES), ((0.9, 1.0, 1.1, 1.2), INCONCLUSIVE), ((2.0, 2.1), INCONCLUSIVE)],
    ids=["steeper", "as flat", "too few"],
)
def test_the_last_step_is_steeper_by_more_than_repetitions_differ(
    last: tuple[float, ...], expected: ClaimVerdict
) -> None:
    levels = ((100, 1.0), (500, 1.0), (2500, 1.0), (12_500, None))
    records = [
        run(number, rate=rate, workload="stock_group_by", non_compute_ms=value if flat is None else flat + number / 20)
        for rate, flat in levels
        for number, value in enumerate(last)
    ]
    assert verdict(RATE, "latency rises little", records) is expected


def test_a_last_step_that_is_flatter_disagrees_also_by_less_than_a_millisecond() -> None:
    pairs = zip((100, 500, 2500), (0.1, 0.9, 1.0), strict=True)
    records = rates(*((rate, {"non_compute_ms": ms}) for rate, ms in pairs))
    assert verdict(RATE, "latency rises little", records) is DISAGREES


def test_series_that_differ_about_the_last_step_leave_it_open() -> None:
    def records(workload: str, *latencies: float) -> list[Record]:
        pairs = zip((100, 500, 2500), latencies, strict=True)
        return grid([({"rate": rate}, {"non_compute_ms": ms}) for rate, ms in pairs], workload=workload)

    steep, flat = records("stock_group_by", 500, 520, 4000), records("stock_join", 500, 3900, 4000)
    assert verdict(RATE, "latency rises little", steep) is AGREES
    assert verdict(RATE, "latency rises little", flat) is DISAGREES
    assert verdict(RATE, "latency rises little", [*steep, *flat]) is INCONCLUSIVE


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (((100, 1.45),), AGREES), (((100, 1.5),), INCONCLUSIVE), (((100, 1.55),), DISAGREES),
        (((10, 1.9), (100, 0.5)), AGREES), (((10, 0.1), (100, 1.69)), DISAGREES),
    ],
)  # fmt: skip
def test_nine_tenths_of_the_machine_at_the_highest_rate_are_fully_used(
    rows: tuple[tuple[float, float], ...], expected: ClaimVerdict
) -> None:
    """The machine has two cores; driver, broker and generator use 0.1 each."""
    records = rates(*((rate, {"cpu": cpu}) for rate, cpu in rows))
    assert verdict(RATE, "at the highest rate the CPU is not", records) is expected
    rising = len(rows) > 1 and rows[0][1] < rows[1][1]
    assert not rising or verdict(RATE, "the higher the rate, the more CPU", records) is AGREES


OVER: dict[str, Any] = {"rate": 9000, "workload": "stock_group_by"}


def lost_to(reason: str = "fault-in-control: executor 0 was lost") -> Record:
    return run(**OVER, status="invalid", reasons=[reason])


def test_an_overload_costs_no_executor() -> None:
    begins = "a rate that is too high"

    def found(*records: Record) -> tuple[ClaimVerdict, str]:
        (one,) = [one for text, one in of(RATE, records).items() if text.startswith(begins)]
        return one.verdict, one.evidence

    over = [run(number, **OVER, sustained=False) for number in range(2)]
    assert found(*over)[0] is AGREES
    assert found(*over, lost_to())[0] is found(lost_to())[0] is DISAGREES
    assert found(over[0])[0] is INCONCLUSIVE
    assert found(run(rate=10))[0] is NOT_COVERED
    for reason in (
        "fault-in-control: the driver was restarted", "fault-in-control: executor 0 was slow",
        "fault-in-control: worker 1 was lost", "not-steady: executor 0 was lost",
    ):  # fmt: skip
        assert found(*over, lost_to(reason))[0] is AGREES, "only an executor that was lost without a fault"
    assert found(*over, lost_to())[1] == "1 of 3 runs at rates that were too high lost an executor"
    sizes = ByRole(driver=9999.0, executors=1200.0, python_workers=0.0, kafka=9999.0, generator=9999.0)
    held = [
        run(number, **OVER, sustained=False, rss_mb=sizes.model_copy(update={"executors": size}))
        for number, size in enumerate((1200.0, None, 3400.0))
    ]
    text = "0 of 3 runs at rates that were too high lost an executor; executors held 3,400 MB at most"
    assert found(*held)[1] == text
    broken = [run(number, **OVER, sustained=False, fault="executor", duration_s=100) for number in range(2)]
    assert found(*broken)[0] is NOT_COVERED, "what a fault did is not the rate's doing"
    assert verdict(RATE, "performance is stable", broken) is NOT_COVERED


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
    assert verdicts.pop(MORE_GC) is INCONCLUSIVE
    assert set(verdicts.values()) == {DISAGREES}


def test_gc_per_task_is_inconclusive_about_cores() -> None:
    for fewest, most in ((1.0, 4.0), (4.0, 1.0)):
        found = of(CORES, cores((1, {"gc_s": fewest}), (4, {"gc_s": most})))[MORE_GC]
        assert found.verdict is INCONCLUSIVE and "once for each running task" in found.evidence


def test_gc_by_the_jvms_logs_can_rise_with_the_cores() -> None:
    logged = {"gc": GarbagePart(driver_s=0.1, executors_s=1.0, pauses=9, longest_ms=30.0)}
    for fewest, most, expected in ((1.0, 4.0, AGREES), (4.0, 1.0, DISAGREES)):
        records = cores((1, {"gc_s": fewest}), (4, {"gc_s": most}))
        known = [one.model_copy(update={"metrics": one.metrics.model_copy(update=logged)}) for one in records]
        found = of(CORES, known)[MORE_GC]
        assert found.verdict is expected and "running task" not in found.evidence
        assert of(CORES, [*known[1:], records[0]])[MORE_GC].verdict is INCONCLUSIVE, "one is of the other kind"


def test_a_third_of_the_latency_takes_eight_times_the_cores() -> None:
    begins = "with 16 cores instead of 2"
    four = cores((1, {"non_compute_ms": 900.0}), (4, {"non_compute_ms": 200.0}))
    assert verdict(CORES, begins, four) is NOT_TESTABLE
    wide = [
        *repeated((0.5, 1.0, 1.5), executor_cores=2, workload="stock_join", scaled={"non_compute_ms": 900.0}),
        *repeated((0.5, 1.0, 1.5), executor_cores=16, workload="stock_join", scaled={"non_compute_ms": 300.0}),
    ]
    assert verdict(CORES, begins, wide) is INCONCLUSIVE
    assert verdict(CORES, begins, wide[::3]) is NOT_COVERED


@pytest.mark.parametrize(
    ("most", "share", "expected"),
    [
        (16, 0.42, AGREES), (16, 0.45, DISAGREES), (15, 0.2, NOT_TESTABLE), (18, 0.42, AGREES), (16, 0.0, NOT_COVERED),
    ],
)  # fmt: skip
def test_a_third_means_at_most_a_tenth_more_than_that(most: int, share: float, expected: ClaimVerdict) -> None:
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
    assert (found.verdict, found.evidence) == (
        INCONCLUSIVE,
        "33% to 33% of the non-compute time with 8 times the cores",
    )


def test_the_claims_about_a_limit_rest_on_a_p() -> None:
    """A third of the latency, and a partly used machine, are corrected with the others of the page."""
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
