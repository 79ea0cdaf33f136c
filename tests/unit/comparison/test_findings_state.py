"""The findings on state and interval on synthetic records."""

from __future__ import annotations

from typing import Any

import pytest

from faultline.comparison.findings.claims import ClaimVerdict
from faultline.records.record import Record
from tests.unit.made_up_findings import (
    AGREES,
    DISAGREES,
    INCONCLUSIVE,
    NOT_COVERED,
    NOT_TESTABLE,
    SKEW,
    STATE,
    grid,
    kill,
    modes,
    of,
    run,
    states,
    verdict,
)


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


def test_runs_with_a_kill_do_not_count() -> None:
    kills = [record for state in (1, 8) for record in [kill(state_mb=state)] * 3]
    found = of(STATE, kills)["the larger the state, the larger the latency"]
    assert found.verdict is NOT_COVERED and "fault=none" in found.evidence


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
    assert verdict(STATE, large, turned) is INCONCLUSIVE, "at one of the two intervals the state moved a lot as well"
    assert verdict(STATE, small, records[::3]) is INCONCLUSIVE, "a single run has no spread"
    assert verdict(STATE, "up to 10 MB the interval moves the CPU", records) is INCONCLUSIVE, "nothing moves it"


def test_a_straight_line_takes_three_states() -> None:
    begins = "latency is linear in the state"
    assert verdict(STATE, begins, states((1, 5, 1000, 1), (8, 5, 8000, 1))) is NOT_COVERED
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
    assert verdict(STATE, begins, states(*rows[:2])) is NOT_COVERED, "a single state"


@pytest.mark.parametrize(
    ("by_interval", "by_state", "expected"),
    [(1600, 900, AGREES), (1000, 900, INCONCLUSIVE), (900, 1000, INCONCLUSIVE), (900, 1600, DISAGREES)],
)
def test_one_axis_moves_more_when_it_does_by_more_than_repetitions_differ(
    by_interval: int, by_state: int, expected: ClaimVerdict
) -> None:
    records = [
        run(number, state_mb=state, checkpoint_interval_s=interval, latency=1000.0 + far + further + 100 * number)
        for state, far in ((0, 0), (5, by_state))
        for interval, further in ((30, 0), (5, by_interval))
        for number in range(5)
    ]
    assert verdict(STATE, "up to 5 MB the interval moves the latency", records) is expected
    few = [record for record in records if record.repetition < 2]
    assert verdict(STATE, "up to 5 MB the interval moves the latency", few) is INCONCLUSIVE


def second(times: int = 2, **named: Any) -> list[Record]:
    """Runs at an interval of a second with 8 MB; `late`: that did not hold it."""
    reasons = ["interval-not-held: 1.9 s between commits > 1.20 s"] if named.pop("late", False) else []
    status = {"status": "invalid", "reasons": reasons} if reasons else {}
    return [run(number, **{"checkpoint_interval_s": 1, "state_mb": 8, **status, **named}) for number in range(times)]


LATE, OTHER = second(late=True), second(1, status="invalid", reasons=["schedule-lag: p99 70 ms > 50 ms"])


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        (LATE, AGREES),
        (second(), DISAGREES),
        ([*second(), *LATE], INCONCLUSIVE),
        (LATE[:1], INCONCLUSIVE),
        # A smaller state, or what is invalid for another reason, says nothing.
        ([*LATE, *second(state_mb=2), *OTHER], AGREES),
        ([*second(), *second(late=True, state_mb=2)], DISAGREES),
        ([*second(1, state_mb=1), *OTHER], NOT_COVERED),
        # Only intervals of a second with a state and no fault are too short.
        (second(late=True, checkpoint_interval_s=0.5), AGREES),
        (second(late=True, checkpoint_interval_s=2), NOT_COVERED),
        (second(late=True, fault="executor", duration_s=100), NOT_COVERED),
        (second(late=True, state_mb=0), NOT_COVERED),
    ],
)
def test_an_interval_of_a_second_is_too_short_when_the_largest_state_cannot_hold_it(
    records: list[Record], expected: ClaimVerdict
) -> None:
    assert verdict(STATE, "checkpoints every 1 s", records) is expected


def test_a_level_line_is_straight_but_does_not_rise() -> None:
    found = of(STATE, states((0, 5, 1000, 1), (5, 5, 1000, 1), (10, 5, 1000, 1)))["latency is linear in the state"]
    assert found.verdict is INCONCLUSIVE
    assert found.evidence.startswith(
        "mean latency by state_mb: 1,000 ms at 0, 1,000 ms at 10; r² 1.00 to 1.00 (n = 15, p = 1)"
    )


MUCH, LITTLE = "with much skew, aligning", "with even data, aligning"


def at(*rows: tuple[float, float, float], aligned: str = "aligned") -> list[Record]:
    """Runs at (skew, latency of the mode with alignment, latency of that without)."""
    points = [
        ({"skew": skew, "commit_mode": mode}, {"latency": latency})
        for skew, *latencies in rows
        for mode, latency in zip((aligned, "unaligned"), latencies, strict=True)
    ]
    return grid(points, checkpoint_interval_s=5, realtime=True)


THREE = at((0.0, 1000, 1000), (1.0, 900, 5000), (2.0, 3000, 1000))
WAITED = [
    record.model_copy(update={"metrics": record.metrics.model_copy(update={"realtime": False})}) for record in THREE
]


@pytest.mark.parametrize(
    ("records", "much", "little"),
    [
        (at((0.0, 1000, 1000), (1.5, 3000, 1000)), AGREES, AGREES),
        (at((0.0, 3000, 1000), (1.5, 1000, 1000)), DISAGREES, DISAGREES),
        (at((0.0, 1000, 1000)), NOT_COVERED, NOT_COVERED),
        # It is asked at the largest skew and at the least.
        (THREE, AGREES, AGREES),
        # The first of two modes with alignment is compared.
        ([*THREE, *at((0.0, 9000, 1000), (2.0, 100, 1000), aligned="aligned-changelog")], AGREES, AGREES),
        (at((0.0, 9000, 1000), (2.0, 9000, 1000), aligned="aligned-changelog"), AGREES, DISAGREES),
        # Without real-time mode, or if that waits as well, it is inconclusive.
        (modes(aligned=(1000, 3000), none=(1000, 1000)), NOT_TESTABLE, NOT_TESTABLE),
        (WAITED, NOT_TESTABLE, NOT_TESTABLE),
    ],
)
def test_aligning_is_compared_with_real_time_mode_only_where_that_was_real(
    records: list[Record], much: ClaimVerdict, little: ClaimVerdict
) -> None:
    found = {text: one for text, one in of(SKEW, records).items() if text.startswith((MUCH, LITTLE))}
    assert [one.verdict for one in found.values()] == [much, little]
    text = {NOT_TESTABLE: "barriers", NOT_COVERED: "requires two skews in commit mode unaligned"}.get(much, "")
    assert all(text in one.evidence for one in found.values())


def test_alignment_under_skew_against_no_checkpoints() -> None:
    grows = "what checkpoints with alignment add"
    assert verdict(SKEW, grows, modes(aligned=(1100, 3000), none=(1000, 1000))) is AGREES
    assert verdict(SKEW, grows, modes(aligned=(3000, 1100), none=(1000, 1000))) is DISAGREES
    assert verdict(SKEW, grows, modes(aligned=(1100, 1100), none=(1000, 1000))) is DISAGREES
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
    assert verdict(matrix, more, disturbed[:3]) is NOT_COVERED


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
