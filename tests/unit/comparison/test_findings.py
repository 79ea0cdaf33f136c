"""The papers' findings against made-up records: each verdict can be reached, and says what it rests on."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from faultline.comparison.findings.catalogue import CLAIMS, PAPERS, findings
from faultline.comparison.findings.finding import Finding, Verdict
from faultline.experiment.matrices import MATRICES
from faultline.records.record import ByRole, GarbagePart, Record, WorkPart
from tests.unit.sample_records import sample

AGREES, DISAGREES, CANNOT_TELL = Verdict.AGREES, Verdict.DISAGREES, Verdict.CANNOT_TELL
NOT_ASKED, NOT_TESTABLE = Verdict.NOT_ASKED, Verdict.NOT_TESTABLE
# Five repetitions, closer to each other than to anything else.
NOISE = (0.99, 0.995, 1.0, 1.005, 1.01)


def run(repetition: int = 0, *, status: str = "valid", oversubscribed: bool = False, **named: Any) -> Record:
    """A record; `latency`, `cpu` (executors, cores), `tasks`, `task_s` and METRICS by name, the rest is config."""
    latency = named.pop("latency", 1000.0)
    cpu, tasks, task_s = named.pop("cpu", 0.5), named.pop("tasks", 100), named.pop("task_s", 10.0)
    metrics = {name: named.pop(name) for name in list(named) if name in METRICS}
    record = sample(status=status, repetition=repetition, latency={"mean": latency}, **{"fault": "none", **named})
    update = {
        "cpu_cores": ByRole(driver=0.1, executors=cpu, python_workers=0.0, kafka=0.1, generator=0.1),
        "work": WorkPart(batches=10, tasks=tasks, batch_s=10.0, task_s=task_s),
        "effective_interval_s": record.config["checkpoint_interval_s"],
        **metrics,
    }
    environment = record.environment.model_copy(update={"oversubscribed": oversubscribed})
    return record.model_copy(update={"metrics": record.metrics.model_copy(update=update), "environment": environment})


METRICS = ("gc_s", "non_compute_ms", "throughput_rps", "sustained", "effective_interval_s", "realtime", "rss_mb")


def repeated(times: Iterable[float] = NOISE, **named: Any) -> list[Record]:
    """Repetitions whose `scaled` figures are multiplied by the noise."""
    figures = named.pop("scaled")
    return [
        run(number, **named, **{name: type(value)(value * noise) for name, value in figures.items()})
        for number, noise in enumerate(times)
    ]


def grid(points: Iterable[tuple[dict[str, Any], dict[str, float]]], **named: Any) -> list[Record]:
    return [record for config, figures in points for record in repeated(**named, **config, scaled=figures)]


def of(matrix: str, records: Iterable[Record]) -> dict[str, Finding]:
    return {one.claim.text.split(": ", 1)[1]: one for one in findings(matrix, list(records))}


def verdict(matrix: str, begins: str, records: Iterable[Record]) -> Verdict:
    (found,) = [one for text, one in of(matrix, records).items() if text.startswith(begins)]
    assert found.evidence and "\n" not in found.evidence
    return found.verdict


def kill(victim: str = "executor", interval_s: float = 2.0, state_mb: float = 1.0, **parts: Any) -> Record:
    recovery = {"recovered": True, "detection_s": 0.1, "reload_s": 4.0, "replay_s": 1.0, "macro_s": 9.0}
    config: dict[str, Any] = {"fault": victim, "checkpoint_interval_s": interval_s, "state_mb": state_mb}
    return sample(recovery={**recovery, **parts}, duration_s=100, **config)


def test_every_matrix_has_claims_but_that_of_no_paper() -> None:
    assert CLAIMS.keys() == PAPERS.keys() == MATRICES.keys() - {"nexmark", "sweep"}


@pytest.mark.parametrize("matrix", CLAIMS)
def test_without_records_no_claim_can_be_told(matrix: str) -> None:
    assert CLAIMS[matrix]
    assert len({claim.text for claim in CLAIMS[matrix]}) == len(CLAIMS[matrix])
    invalid = [run(status="unsound", reasons=["schedule-lag: p99 70 ms > 50 ms"], state_mb=state) for state in (1, 8)]
    for records in ([], invalid):
        found = {one.verdict for one in findings(matrix, records)}
        assert NOT_ASKED in found and found <= {NOT_ASKED, NOT_TESTABLE}
        assert all(one.evidence for one in findings(matrix, records))


STATE = "state_size_x_checkpoint_interval"


def states(*figures: tuple[float, float, float, float], **named: Any) -> list[Record]:
    """Runs at (state MB, interval s) with latency (ms) and CPU (cores)."""
    points = [
        ({"state_mb": state, "checkpoint_interval_s": interval}, {"latency": latency, "cpu": cpu})
        for state, interval, latency, cpu in figures
    ]
    return grid(points, **named)


def test_state_and_interval_move_latency_and_cpu() -> None:
    as_flink = states((1, 1, 3000, 0.9), (1, 5, 1500, 0.5), (8, 1, 4000, 1.2), (8, 5, 2000, 0.7))
    for begins in (
        "the shorter the checkpoint interval, the larger", "the shorter the checkpoint interval, the more",
        "the larger the state, the larger", "the larger the state, the more",
    ):  # fmt: skip
        assert verdict(STATE, begins, as_flink) is AGREES
    otherwise = states((1, 1, 1000, 0.5), (1, 5, 3000, 0.9), (8, 1, 500, 0.2), (8, 5, 2000, 0.4))
    assert verdict(STATE, "the shorter the checkpoint interval, the larger", otherwise) is DISAGREES
    assert verdict(STATE, "the larger the state, the more", otherwise) is DISAGREES


def test_a_run_with_a_kill_says_nothing_of_runs_without() -> None:
    kills = [record for state in (1, 8) for record in [kill(state_mb=state)] * 3]
    found = of(STATE, kills)["the larger the state, the larger the latency"]
    assert found.verdict is NOT_ASKED and "fault=none" in found.evidence


def test_an_interval_of_a_second_is_too_short_when_the_largest_state_cannot_hold_it() -> None:
    begins = "checkpoints every 1 s"
    held = [run(number, checkpoint_interval_s=1, state_mb=8) for number in range(2)]
    late = ["interval-not-held: 1.9 s between commits > 1.20 s"]
    failed = [run(number, checkpoint_interval_s=1, state_mb=8, status="unsound", reasons=late) for number in range(2)]
    other = run(checkpoint_interval_s=1, state_mb=8, status="unsound", reasons=["schedule-lag: p99 70 ms > 50 ms"])
    small = run(checkpoint_interval_s=1, state_mb=1)
    assert verdict(STATE, begins, [*held, small]) is DISAGREES
    assert verdict(STATE, begins, [*failed, small, other]) is AGREES
    assert verdict(STATE, begins, [*held, *failed]) is verdict(STATE, begins, failed[:1]) is CANNOT_TELL
    assert verdict(STATE, begins, [small, other]) is NOT_ASKED


def test_which_axis_moves_the_latency_more() -> None:
    small, large = "up to 5 MB the interval moves the latency", "from 5 to 15 MB the state moves the latency"
    records = states(
        (0, 5, 1000, 1), (0, 30, 3000, 1), (5, 5, 1100, 1), (5, 30, 3100, 1), (15, 5, 9100, 1), (15, 30, 11_000, 1)
    )
    assert verdict(STATE, small, records) is verdict(STATE, large, records) is AGREES
    turned = states(
        (0, 5, 1000, 1), (0, 30, 1100, 1), (5, 5, 3000, 1), (5, 30, 3100, 1), (15, 5, 3100, 1), (15, 30, 9100, 1)
    )
    assert verdict(STATE, small, turned) is DISAGREES
    assert verdict(STATE, large, turned) is CANNOT_TELL, "at one of the two intervals the state moved a lot as well"
    assert verdict(STATE, small, records[::3]) is CANNOT_TELL, "a single run has no spread"
    assert verdict(STATE, "up to 10 MB the interval moves the CPU", records) is CANNOT_TELL, "nothing moves it"


def test_a_straight_line_takes_three_states() -> None:
    begins = "latency is linear in the state"
    assert verdict(STATE, begins, states((1, 5, 1000, 1), (8, 5, 8000, 1))) is NOT_ASKED
    assert verdict(STATE, begins, states((0, 5, 1000, 1), (5, 5, 2000, 1), (10, 5, 3000, 1))) is AGREES
    assert verdict(STATE, begins, states((0, 5, 1000, 1), (5, 5, 1050, 1), (10, 5, 9000, 1))) is DISAGREES
    assert verdict(STATE, begins, states((0, 5, 3000, 1), (5, 5, 2000, 1), (10, 5, 1000, 1))) is DISAGREES


@pytest.mark.parametrize(
    ("begins", "inside", "outside"),
    [
        ("up to 5 MB the interval moves the latency", (0, 5), (6,)),
        ("from 5 to 15 MB the state moves the latency", (5, 15), (4, 16)),
        ("up to 10 MB the interval moves the CPU", (0, 10), (11,)),
        ("from 10 MB on the state moves the CPU", (10, 15), (9, 16)),
    ],
)
def test_which_axis_moves_more_is_asked_within_the_papers_range_of_states(
    begins: str, inside: tuple[int, int], outside: tuple[int, ...]
) -> None:
    def figures(state: int, short: float, long: float) -> list[tuple[float, float, float, float]]:
        return [(state, 5, short, short / 1000), (state, 30, long, long / 1000)]

    # Outside the axes matter the other way round.
    if "the interval" in begins:
        rows = [row for state in inside for row in figures(state, 3000 + 10 * state, 1000 + 10 * state)]
        rows += [row for state in outside for row in figures(state, 50_000, 50_000)]
    else:
        rows = [row for state in inside for row in figures(state, 1000 * state, 1000 * state + 10)]
        rows += [row for state in outside for row in figures(state, 90_000, 1)]
    assert verdict(STATE, begins, states(*rows)) is AGREES
    assert verdict(STATE, begins, states(*rows[:2])) is NOT_ASKED, "a single state"


@pytest.mark.parametrize(
    ("by_interval", "by_state", "expected"),
    [(1600, 900, AGREES), (1000, 900, CANNOT_TELL), (900, 1000, CANNOT_TELL), (900, 1600, DISAGREES)],
)
def test_one_axis_moves_more_when_it_does_by_more_than_repetitions_differ(
    by_interval: int, by_state: int, expected: Verdict
) -> None:
    records = [
        run(number, state_mb=state, checkpoint_interval_s=interval, latency=1000.0 + far + further + 100 * number)
        for state, far in ((0, 0), (5, by_state))
        for interval, further in ((30, 0), (5, by_interval))
        for number in range(5)
    ]
    assert verdict(STATE, "up to 5 MB the interval moves the latency", records) is expected
    few = [record for record in records if record.repetition < 3]
    assert verdict(STATE, "up to 5 MB the interval moves the latency", few) is CANNOT_TELL


def test_only_intervals_of_a_second_with_a_state_and_no_fault_are_too_short() -> None:
    begins = "checkpoints every 1 s"

    def twice(**named: Any) -> list[Record]:
        return [run(number, **{"checkpoint_interval_s": 1, "state_mb": 8, **named}) for number in range(2)]

    late: dict[str, Any] = {"status": "unsound", "reasons": ["interval-not-held: 1.9 s between commits > 1.20 s"]}
    assert verdict(STATE, begins, twice(**late)) is AGREES
    assert verdict(STATE, begins, twice(**late, checkpoint_interval_s=0.5)) is AGREES
    assert verdict(STATE, begins, twice(**late, checkpoint_interval_s=2)) is NOT_ASKED
    assert verdict(STATE, begins, twice(**late, fault="executor", duration_s=100)) is NOT_ASKED
    assert verdict(STATE, begins, twice(**late, state_mb=0)) is NOT_ASKED
    assert verdict(STATE, begins, [*twice(), *twice(**late, state_mb=2)]) is DISAGREES, "a smaller state says nothing"
    assert verdict(STATE, begins, [*twice(**late), *twice(state_mb=2)]) is AGREES


def test_a_level_line_is_straight_but_does_not_rise() -> None:
    found = of(STATE, states((0, 5, 1000, 1), (5, 5, 1000, 1), (10, 5, 1000, 1)))["latency is linear in the state"]
    assert found.verdict is CANNOT_TELL
    assert found.evidence.startswith(
        "mean latency by state_mb: 1,000 ms at 0, 1,000 ms at 10; r² 1.00 to 1.00 (n = 15, p = 1)"
    )


SKEW = "skew_x_alignment_mode"


def modes(**latencies: tuple[float, float]) -> list[Record]:
    """Runs of each mode at skew 0 and 1.5, with these latencies in ms."""
    points = [
        ({"skew": skew, "commit_mode": mode}, {"latency": value})
        for mode, pair in latencies.items()
        for skew, value in zip((0.0, 1.5), pair, strict=True)
    ]
    return grid(points, checkpoint_interval_s=5, realtime=True)


def test_aligning_is_compared_with_real_time_mode_only_where_that_was_real() -> None:
    much, little = "with much skew, aligning", "with even data, aligning"
    as_flink = modes(aligned=(1000, 3000), unaligned=(1000, 1000))
    assert verdict(SKEW, much, as_flink) is verdict(SKEW, little, as_flink) is AGREES
    otherwise = modes(aligned=(3000, 1000), unaligned=(1000, 1000))
    assert verdict(SKEW, much, otherwise) is verdict(SKEW, little, otherwise) is DISAGREES
    without = modes(aligned=(1000, 3000), none=(1000, 1000))
    assert verdict(SKEW, much, without) is verdict(SKEW, little, without) is NOT_TESTABLE
    waited = [
        record.model_copy(update={"metrics": record.metrics.model_copy(update={"realtime": False})})
        for record in as_flink
    ]
    assert verdict(SKEW, much, waited) is NOT_TESTABLE
    assert "real-time mode" in next(iter(of(SKEW, waited).values())).evidence


def test_alignment_under_skew_against_no_checkpoints() -> None:
    grows = "what checkpoints with alignment add"
    assert verdict(SKEW, grows, modes(aligned=(1100, 3000), none=(1000, 1000))) is AGREES
    assert verdict(SKEW, grows, modes(aligned=(3000, 1100), none=(1000, 1000))) is DISAGREES
    assert verdict(SKEW, grows, modes(aligned=(1100, 1102), none=(1000, 1000))) is CANNOT_TELL
    rises = "with alignment (CP+A), the more skew"
    assert verdict(SKEW, rises, modes(aligned=(1100, 3000))) is AGREES
    assert verdict(SKEW, rises, modes(**{"aligned-changelog": (3000, 1100)})) is DISAGREES


def test_heavy_computing_is_disturbed_more() -> None:
    matrix, more = "compute_x_checkpoint_interval", "the heavier the computing"

    def records(light: tuple[float, float], heavy: tuple[float, float]) -> list[Record]:
        points = [
            ({"iterations": count, "checkpoint_interval_s": interval}, {"latency": value})
            for count, pair in ((100, light), (10_000, heavy))
            for interval, value in zip((1, 5), pair, strict=True)
        ]
        return grid(points, workload="pi")

    disturbed = records((1100, 1000), (5000, 2000))
    assert verdict(matrix, more, disturbed) is AGREES
    assert verdict(matrix, "the shorter the checkpoint interval", disturbed) is AGREES
    assert verdict(matrix, more, records((5000, 2000), (1100, 1000))) is DISAGREES
    waiting = records((600, 3000), (700, 3200))
    assert verdict(matrix, "the shorter the checkpoint interval", waiting) is DISAGREES
    assert verdict(matrix, more, disturbed[:3]) is NOT_ASKED


def test_aligning_takes_two_skews_and_is_asked_at_the_largest_and_at_the_least() -> None:
    much, little = "with much skew, aligning", "with even data, aligning"

    def at(*rows: tuple[float, float, float], aligned: str = "aligned") -> list[Record]:
        """Runs at (skew, latency of the mode with alignment, latency of that without)."""
        points = [
            ({"skew": skew, "commit_mode": mode}, {"latency": latency})
            for skew, *latencies in rows
            for mode, latency in zip((aligned, "unaligned"), latencies, strict=True)
        ]
        return grid(points, checkpoint_interval_s=5, realtime=True)

    def evidence(records: list[Record]) -> str:
        (found,) = {one.evidence for text, one in of(SKEW, records).items() if text.startswith((much, little))}
        return found

    three = at((0.0, 1000, 1000), (1.0, 900, 5000), (2.0, 3000, 1000))
    assert verdict(SKEW, much, three) is verdict(SKEW, little, three) is AGREES
    one = at((0.0, 1000, 1000))
    assert verdict(SKEW, much, one) is verdict(SKEW, little, one) is NOT_ASKED
    both = [*three, *at((0.0, 9000, 1000), (2.0, 100, 1000), aligned="aligned-changelog")]
    assert verdict(SKEW, much, both) is verdict(SKEW, little, both) is AGREES, "of two modes the first is compared"
    assert evidence(one) == "takes two skews in commit mode unaligned (CP+NA)"
    without = [record for record in three if record.config["commit_mode"] == "aligned"]
    assert "barriers" in evidence(without)
    changelog = at((0.0, 9000, 1000), (2.0, 9000, 1000), aligned="aligned-changelog")
    assert verdict(SKEW, much, changelog) is AGREES and verdict(SKEW, little, changelog) is DISAGREES


def test_what_a_shorter_interval_adds_is_the_shortest_less_the_longest() -> None:
    points = [
        ({"iterations": count, "checkpoint_interval_s": interval}, {"latency": latency})
        for count, latencies in ((100, (1500, 9000, 1000)), (10_000, (5000, 100, 2000)))
        for interval, latency in zip((1, 5, 30), latencies, strict=True)
    ]
    found = of("compute_x_checkpoint_interval", grid(points, workload="pi"))[
        "the heavier the computing, the more frequent checkpoints add to its latency"
    ]
    assert found.verdict is AGREES
    assert found.evidence.startswith(
        "mean latency at 1 s less that at 30 s by iterations: 500 ms at 100, 3,000 ms at 10,000 ("
    )


RATE = "input_rate"


def rates(*rows: tuple[float, dict[str, Any]], **named: Any) -> list[Record]:
    return grid([({"rate": rate}, figures) for rate, figures in rows], workload="stock_group_by", **named)


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
    assert verdict(RATE, "latency rises little", records(500, 505, 510, 516)) is CANNOT_TELL
    assert verdict(RATE, "latency rises little", records(500, 4000)) is NOT_ASKED
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
    assert verdict(RATE, middle, records(1000, 2000)) is NOT_ASKED


def test_a_threshold_has_both_sides() -> None:
    begins = "performance is stable up to a threshold"

    def records(*held: bool | None) -> list[Record]:
        return [
            run(number, rate=rate, workload="stock_group_by", sustained=one if one is not None else number == 0)
            for rate, one in zip((100, 500, 2500), held, strict=False)
            for number in range(2)
        ]

    assert verdict(RATE, begins, records(True, True, False)) is AGREES
    assert verdict(RATE, begins, records(True, None, False)) is AGREES, "between them nobody can tell"
    assert verdict(RATE, begins, records(True, False, True)) is DISAGREES
    assert verdict(RATE, begins, records(True, True, True)) is verdict(RATE, begins, records(False)) is CANNOT_TELL
    assert verdict(RATE, begins, records(True, False)[::2]) is CANNOT_TELL, "single runs"


def test_an_overload_costs_no_executor() -> None:
    begins = "a rate that is too high"
    over = [run(number, rate=9000, workload="stock_group_by", sustained=False) for number in range(2)]
    lost = run(
        rate=9000, workload="stock_group_by", status="unsound", reasons=["fault-in-control: executor 0 was lost"]
    )
    assert verdict(RATE, begins, over) is AGREES
    assert verdict(RATE, begins, [*over, lost]) is verdict(RATE, begins, [lost]) is DISAGREES
    assert verdict(RATE, begins, over[:1]) is CANNOT_TELL
    assert verdict(RATE, begins, [run(rate=10)]) is NOT_ASKED


def test_what_is_fully_used() -> None:
    begins = "at the highest rate the CPU is not"
    assert verdict(RATE, begins, rates((10, {"cpu": 1.9}), (100, {"cpu": 0.5}))) is AGREES
    assert verdict(RATE, begins, rates((10, {"cpu": 0.1}), (100, {"cpu": 1.69}))) is DISAGREES
    assert verdict(RATE, begins, rates((100, {"cpu": 1.5}))) is CANNOT_TELL
    assert verdict(RATE, "the higher the rate, the more CPU", rates((10, {"cpu": 0.1}), (99, {"cpu": 1.6}))) is AGREES


def test_four_repetitions_of_a_rate_are_enough_two_tell_nothing_and_one_is_not_asked() -> None:
    """What the search for the highest rate measured once is not on the axis."""

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
    assert verdict(RATE, "latency rises little", records(2, 2, 2, 2)) is CANNOT_TELL
    for few in ((2, 2), (2, 2, 1, 1)):
        assert evidence("latency rises little", *few) == "takes three rates, each measured more than once"
    for few in ((2, 2, 2), (2, 2, 2, 1)):
        assert evidence("tasks hardly change", *few) == "takes four rates, each measured more than once"
    for few in ((2,), (2, 1, 1)):
        assert evidence("tasks become fewer", *few) == "takes two rates, each measured more than once"


@pytest.mark.parametrize(
    ("last", "expected"),
    [((2.0, 2.1, 2.2, 2.3), AGREES), ((0.9, 1.0, 1.1, 1.2), CANNOT_TELL), ((2.0, 2.1), CANNOT_TELL)],
    ids=["steeper", "as flat", "too few"],
)
def test_the_last_step_is_steeper_by_more_than_repetitions_differ(last: tuple[float, ...], expected: Verdict) -> None:
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
    assert verdict(RATE, "latency rises little", [*steep, *flat]) is CANNOT_TELL


def test_only_an_executor_that_was_lost_without_a_fault_was_lost_to_the_rate() -> None:
    begins = "a rate that is too high"
    over = [run(number, rate=9000, workload="stock_group_by", sustained=False) for number in range(2)]

    def evidence(records: list[Record]) -> str:
        return next(one.evidence for text, one in of(RATE, records).items() if text.startswith(begins))

    for reason in (
        "fault-in-control: the driver was restarted", "fault-in-control: executor 0 was slow",
        "fault-in-control: worker 1 was lost", "not-steady: executor 0 was lost",
    ):  # fmt: skip
        other = run(rate=9000, workload="stock_group_by", status="unsound", reasons=[reason])
        assert verdict(RATE, begins, [*over, other]) is AGREES
    lost = run(
        rate=9000, workload="stock_group_by", status="unsound", reasons=["fault-in-control: executor 0 was lost"]
    )
    assert evidence([*over, lost]) == "1 of 3 runs at rates that were too high lost an executor"
    named: dict[str, Any] = {"rate": 9000, "workload": "stock_group_by", "sustained": False}
    sizes = ByRole(driver=9999.0, executors=1200.0, python_workers=0.0, kafka=9999.0, generator=9999.0)
    held = [
        run(number, **named, rss_mb=sizes.model_copy(update={"executors": size}))
        for number, size in enumerate((1200.0, None, 3400.0))
    ]
    assert evidence(held) == "0 of 3 runs at rates that were too high lost an executor; executors held 3,400 MB at most"
    broken = [run(number, **named, fault="executor", duration_s=100) for number in range(2)]
    assert verdict(RATE, begins, broken) is NOT_ASKED, "what a fault did is not the rate's doing"
    assert verdict(RATE, "performance is stable", broken) is NOT_ASKED


@pytest.mark.parametrize(("cpu", "expected"), [(1.45, AGREES), (1.5, CANNOT_TELL), (1.55, DISAGREES)])
def test_nine_tenths_of_the_machine_are_fully_used(cpu: float, expected: Verdict) -> None:
    """Of two cores; driver, broker and generator use 0.1 each, which counts as well."""
    assert verdict(RATE, "at the highest rate the CPU is not", rates((100, {"cpu": cpu}))) is expected


CORES = "executor_cores"
MORE_GC = "the more cores, the more GC time"


def cores(*rows: tuple[int, dict[str, Any]], **named: Any) -> list[Record]:
    return grid(
        [({"executor_cores": number}, figures) for number, figures in rows],
        workload="stock_join",
        partitions=4,
        **named,
    )


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
    """By two runs each; a latency of nothing has no share. Also where all of it is less than a millisecond."""
    for latency in (900.0, 0.9):
        records = [
            run(number, executor_cores=count, workload="stock_join", partitions=4, non_compute_ms=value)
            for count, value in ((2, latency), (most, latency * share))
            for number in range(2)
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
    assert (found.verdict, found.evidence) == (AGREES, "33% to 33% of the non-compute time with 8 times the cores")


RECOVERY = "recovery"
RELOAD = "reload takes the larger part of a recovery"
HEARTBEAT = "reload takes about 45 s"
TOTAL = "a recovery takes less than 60 s"
REPLAY = "replay grows with the state"
ONCE = "every record is counted exactly once"
RESTART = "starting the dead process again takes about 10 s"
INTERVAL = "recovery grows with the checkpoint interval"


def test_reload_dominates_when_it_does_everywhere() -> None:
    assert verdict(RECOVERY, RELOAD, [kill(), kill(), kill("worker")]) is AGREES
    assert verdict(RECOVERY, RELOAD, [kill(reload_s=1.0, replay_s=2.0)] * 3) is DISAGREES
    assert verdict(RECOVERY, RELOAD, [kill(), kill(), kill(reload_s=1.0, replay_s=2.0)]) is CANNOT_TELL
    assert verdict(RECOVERY, RELOAD, [kill()] * 2) is CANNOT_TELL, "two agree by accident too often"
    assert verdict(RECOVERY, RELOAD, [kill("driver")] * 3) is NOT_ASKED, "the paper ended processes of the workers"


def test_the_heartbeat_is_seen_in_length_and_in_detection() -> None:
    assert verdict(RECOVERY, HEARTBEAT, [kill(reload_s=45.0, detection_s=40.0)] * 3) is AGREES
    assert verdict(RECOVERY, HEARTBEAT, [kill(reload_s=45.0, detection_s=0.1)] * 3) is DISAGREES
    assert verdict(RECOVERY, HEARTBEAT, [kill()] * 3) is DISAGREES
    assert verdict(RECOVERY, HEARTBEAT, [kill()] * 2) is CANNOT_TELL
    assert verdict(RECOVERY, HEARTBEAT, [kill(reload_s=45.0, detection_s=40.0), kill(), kill()]) is CANNOT_TELL


def test_a_censored_recovery_is_no_proof_of_speed() -> None:
    censored = {"recovered": False, "macro_s": None}
    assert verdict(RECOVERY, TOTAL, [kill()] * 3) is AGREES
    assert verdict(RECOVERY, TOTAL, [kill()] * 2) is CANNOT_TELL
    assert verdict(RECOVERY, TOTAL, [*[kill()] * 3, kill(**censored, censored_at_s=34.0)]) is CANNOT_TELL
    assert verdict(RECOVERY, TOTAL, [kill(), kill(**censored, censored_at_s=79.0)]) is DISAGREES


def test_growth_is_believed_from_repetitions_only() -> None:
    def pairs(figure: str, low: float, high: float, **ends: tuple[float, float]) -> list[Record]:
        ((name, values),) = ends.items()
        return [
            kill(**{name: at, figure: value * noise})
            for at, value in zip(values, (low, high), strict=True)
            for noise in NOISE
        ]

    assert verdict(RECOVERY, REPLAY, pairs("replay_s", 1, 2, state_mb=(1, 8))) is AGREES
    assert verdict(RECOVERY, REPLAY, pairs("replay_s", 2, 1, state_mb=(1, 8))) is DISAGREES
    assert verdict(RECOVERY, REPLAY, pairs("replay_s", 1, 2, state_mb=(1, 8))[::3]) is CANNOT_TELL
    assert verdict(RECOVERY, INTERVAL, pairs("macro_s", 5, 9, interval_s=(2, 5))) is AGREES
    censored = kill(interval_s=5, macro_s=None, recovered=False, censored_at_s=70.0)
    assert verdict(RECOVERY, INTERVAL, [*pairs("macro_s", 5, 9, interval_s=(2, 5)), censored]) is NOT_ASKED


def test_the_restart_is_the_replacements_registration() -> None:
    assert verdict(RECOVERY, RESTART, [kill(replacement_up_s=up) for up in (9.0, 10.0, 11.0)]) is AGREES
    assert verdict(RECOVERY, RESTART, [kill(replacement_up_s=2.0)] * 3) is DISAGREES
    assert verdict(RECOVERY, RESTART, [kill(replacement_up_s=up) for up in (7.4, 16.7)]) is CANNOT_TELL


def test_one_miscount_is_enough() -> None:
    def counted(**numbers: int) -> Record:
        record = kill("driver")
        exact = {"lost": 0, "overcounted": 0, "wrong": 0, "sums_differ": 0}
        audit = record.metrics.audit.model_copy(update={**exact, **numbers})
        return record.model_copy(update={"metrics": record.metrics.model_copy(update={"audit": audit})})

    assert verdict(RECOVERY, ONCE, [counted(), counted()]) is AGREES
    assert verdict(RECOVERY, ONCE, [counted(), counted(wrong=1)]) is DISAGREES
    assert verdict(RECOVERY, ONCE, [counted(), counted(sums_differ=1)]) is DISAGREES
    assert verdict(RECOVERY, ONCE, [counted()]) is CANNOT_TELL
    without = counted(lost=5)
    without = without.model_copy(update={"config": {**without.config, "commit_mode": "none"}})
    assert verdict(RECOVERY, ONCE, [without]) is NOT_ASKED, "without checkpoints a loss is expected"


@pytest.mark.parametrize(
    ("reload_s", "expected"),
    [(29.0, DISAGREES), (31.0, AGREES), (59.0, AGREES), (61.0, DISAGREES), (30.0, CANNOT_TELL)],
)
def test_a_reload_of_half_a_minute_to_a_minute_is_about_45_seconds(reload_s: float, expected: Verdict) -> None:
    assert verdict(RECOVERY, HEARTBEAT, [kill(reload_s=reload_s, detection_s=0.8 * reload_s)] * 3) is expected


def test_what_is_noticed_within_a_second_waited_for_no_heartbeat() -> None:
    for detection_s, said in ((0.9, True), (1.1, False)):
        evidence = of(RECOVERY, [kill(detection_s=detection_s)] * 3)[
            "reload takes about 45 s, because the loss is noticed by a heartbeat's timeout"
        ].evidence
        assert ("a broken connection is noticed" in evidence) is said


def test_half_of_a_reload_is_mostly_waiting_and_no_reload_is_not() -> None:
    at_once = kill(reload_s=0.0, detection_s=0.0)
    found = of(RECOVERY, [at_once])["reload takes about 45 s, because the loss is noticed by a heartbeat's timeout"]
    assert found.evidence.startswith("median reload 0.0 s, of which detection 0.00 s: a broken connection")
    assert verdict(RECOVERY, HEARTBEAT, [*[kill(reload_s=45.0, detection_s=22.0)] * 4, at_once]) is DISAGREES
    assert verdict(RECOVERY, HEARTBEAT, [*[kill(reload_s=45.0, detection_s=23.0)] * 4, at_once]) is CANNOT_TELL
    assert verdict(RECOVERY, HEARTBEAT, [kill(reload_s=45.0, detection_s=23.0)] * 5) is AGREES


def test_a_recovery_without_reload_and_replay_has_no_share_of_either() -> None:
    nothing = kill(reload_s=0.0, replay_s=0.0)
    found = of(RECOVERY, [nothing])["reload takes the larger part of a recovery"]
    assert (found.verdict, found.evidence) == (NOT_ASKED, "no valid record of such a kill")
    half_known = [kill(reload_s=None), kill(replay_s=None)]
    assert verdict(RECOVERY, RELOAD, half_known) is NOT_ASKED
    assert verdict(RECOVERY, RELOAD, [nothing, *half_known, *[kill()] * 3]) is AGREES
    assert verdict(RECOVERY, RELOAD, [kill(reload_s=0.6, replay_s=0.3)] * 3) is AGREES


@pytest.mark.parametrize(
    ("macro_s", "expected"), [(59.0, AGREES), (60.0, CANNOT_TELL), (60.5, DISAGREES), (61.0, DISAGREES)]
)
def test_a_recovery_of_a_minute_is_the_limit(macro_s: float, expected: Verdict) -> None:
    assert verdict(RECOVERY, TOTAL, [kill(macro_s=macro_s)] * 3) is expected
    censored = of(RECOVERY, [kill(macro_s=None, recovered=False, censored_at_s=macro_s)])[TOTAL]
    assert censored.evidence == "longest macro recovery 0.0 s, 1 not seen to end (n = 1)"
    assert censored.verdict is (DISAGREES if macro_s > 60 else CANNOT_TELL)


@pytest.mark.parametrize(("up_s", "expected"), [(4.8, DISAGREES), (5.5, AGREES), (19.5, AGREES), (20.5, DISAGREES)])
def test_a_restart_between_5_and_20_seconds_is_about_ten(up_s: float, expected: Verdict) -> None:
    assert verdict(RECOVERY, RESTART, [kill(replacement_up_s=up_s)] * 3) is expected


def test_only_valid_kills_whose_recovery_was_watched_are_recoveries() -> None:
    """Nothing else is counted, whatever figures it has."""
    recovery = {"recovered": True, "reload_s": 1.0, "replay_s": 9.0, "macro_s": 99.0}
    others = [
        kill(recovered=None, reload_s=1.0, replay_s=9.0, macro_s=99.0),
        sample(fault="executor", fault_action="pause", duration_s=100, recovery=recovery),
        sample(fault="none", recovery=recovery),
        sample(fault="executor", duration_s=100, recovery=recovery, status="unsound"),
    ]
    assert {one.verdict for one in of(RECOVERY, others).values()} == {NOT_ASKED}
    assert verdict(RECOVERY, RELOAD, [*[kill()] * 3, *others]) is verdict(RECOVERY, TOTAL, [*[kill()] * 3, *others])
    assert verdict(RECOVERY, RELOAD, [*[kill()] * 3, *others]) is AGREES
    elsewhere = [kill("driver", replacement_up_s=1.0), kill("worker", replacement_up_s=1.0)]
    assert verdict(RECOVERY, RESTART, [*[kill(replacement_up_s=10.0)] * 3, *elsewhere]) is AGREES, "of an executor"


def test_replay_is_that_of_processes_of_the_engine_and_the_interval_is_asked_of_all() -> None:
    def records(victim: str) -> list[Record]:
        return [
            kill(victim, state_mb=at, interval_s=interval, replay_s=at * noise, macro_s=10 * interval * noise)
            for at, interval in ((1, 2), (8, 2), (1, 5))
            for noise in NOISE
        ]

    for victim, expected in (("any", AGREES), ("worker", AGREES), ("driver", NOT_ASKED)):
        assert verdict(RECOVERY, REPLAY, records(victim)) is expected
        assert verdict(RECOVERY, INTERVAL, records(victim)) is AGREES


def test_an_audit_that_counted_only_losses_is_an_audit() -> None:
    found = of(RECOVERY, [audited(lost=0, wrong=None, overcounted=None)] * 2)
    assert [one.evidence for one in found.values() if "0 lost" in one.evidence] == [
        "0 lost, 0 overcounted, 0 wrong (n = 2, of which 0 tell which tuples were counted)"
    ]
    assert verdict(RECOVERY, ONCE, [audited(lost=None, wrong=9)] * 2) is NOT_ASKED, "nothing was audited"


def test_counts_alone_do_not_show_that_each_record_was_counted_once() -> None:
    assert verdict(RECOVERY, ONCE, [audited(lost=0)] * 2) is CANNOT_TELL
    assert verdict(RECOVERY, ONCE, [audited(lost=0, sums_differ=0), audited(lost=0)]) is CANNOT_TELL
    assert verdict(RECOVERY, ONCE, [audited(lost=0, sums_differ=0)] * 2) is AGREES
    assert verdict(RECOVERY, ONCE, [audited(lost=0, workload="pi")] * 2) is AGREES, "its outputs carry ids"
    assert verdict(RECOVERY, ONCE, [audited(lost=0, workload="of another version")] * 2) is CANNOT_TELL


def audited(workload: str | None = None, **numbers: int | None) -> Record:
    """A record of a kill, whose audit has these."""
    record = kill()
    audit = record.metrics.audit.model_copy(update={"overcounted": 0, "wrong": 0, **numbers})
    config = {**record.config, **({} if workload is None else {"workload": workload})}
    metrics = record.metrics.model_copy(update={"audit": audit})
    return record.model_copy(update={"metrics": metrics, "config": config})


def sayings() -> dict[str, tuple[str, list[Record]]]:
    """By case: a matrix and records of it."""
    latencies = ((1, 1, 3000, 0.9), (1, 5, 1500, 0.5), (5, 1, 3500, 1.0), (5, 5, 1600, 0.6), (8, 1, 4000, 1.2))
    rows = zip((100, 500, 2500, 12_500), (500, 520, 560, 4000), strict=True)
    overload = [run(number, rate=9000, workload="stock_group_by", sustained=number == 5) for number in range(6)]
    recoveries = [
        kill(),
        kill("worker", reload_s=2.0, detection_s=0.5, replacement_up_s=4.0),
        kill("any", reload_s=0.5, replay_s=0.0, detection_s=None, macro_s=3.0),
        kill(macro_s=None, recovered=False, censored_at_s=34.0),
        kill(macro_s=12.5, replay_s=3.0, replacement_up_s=6.0),
        kill("driver", macro_s=70.0),
        kill(reload_s=None, replay_s=None, replacement_up_s=8.5),
    ]
    return {
        "state": (STATE, states(*latencies, (8, 5, 2000, 0.7))),
        "skew": (SKEW, modes(aligned=(1100, 3000), unaligned=(1000, 1000), none=(900, 1000))),
        "rate": (RATE, rates(*((rate, {
            "non_compute_ms": ms, "task_s": ms / 100, "gc_s": ms / 1000, "tasks": int(ms), "cpu": ms / 4000
        }) for rate, ms in rows))),
        "overload": (RATE, [*overload, *(run(number, rate=10, workload="stock_group_by") for number in range(2))]),
        "cores": (CORES, cores(
            (2, {"non_compute_ms": 900.0, "throughput_rps": 500.0, "gc_s": 1.0, "cpu": 0.5}),
            (16, {"non_compute_ms": 300.0, "throughput_rps": 495.0, "gc_s": 2.0, "cpu": 0.7}),
            oversubscribed=True,
        )),
        "recovery": (RECOVERY, recoveries),
        "fewer recoveries": (RECOVERY, [
            kill(reload_s=45.0, detection_s=24.0, macro_s=60.5), kill(reload_s=44.0, detection_s=23.0, macro_s=60.0)
        ]),
    }  # fmt: skip


@pytest.mark.parametrize("case", ["state", "skew", "rate", "overload", "cores", "recovery", "fewer recoveries"])
def test_what_a_verdict_rests_on_is_said_in_figures(case: str) -> None:
    """They stand in evidence.txt, claim by claim."""
    matrix, records = sayings()[case]
    kept = (Path(__file__).parent / "evidence.txt").read_text().split("\n\n")
    (expected,) = [part.splitlines()[1:] for part in kept if part.startswith(f"{case}:\n")]
    assert [f"{one.verdict}: {one.evidence}" for one in findings(matrix, records)] == expected
