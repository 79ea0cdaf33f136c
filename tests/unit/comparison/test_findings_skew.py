"""The findings on skew and commit modes against made-up records."""

from __future__ import annotations

import pytest

from faultline.comparison.findings.finding import Verdict
from faultline.records.record import Record
from tests.unit.made_up_findings import (
    AGREES,
    DISAGREES,
    NOT_ASKED,
    NOT_TESTABLE,
    SKEW,
    grid,
    modes,
    of,
    verdict,
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
        (at((0.0, 1000, 1000)), NOT_ASKED, NOT_ASKED),
        # It is asked at the largest skew and at the least.
        (THREE, AGREES, AGREES),
        # Of two modes with alignment the first is compared.
        ([*THREE, *at((0.0, 9000, 1000), (2.0, 100, 1000), aligned="aligned-changelog")], AGREES, AGREES),
        (at((0.0, 9000, 1000), (2.0, 9000, 1000), aligned="aligned-changelog"), AGREES, DISAGREES),
        # Without real-time mode, or where that waited as well, nobody can tell.
        (modes(aligned=(1000, 3000), none=(1000, 1000)), NOT_TESTABLE, NOT_TESTABLE),
        (WAITED, NOT_TESTABLE, NOT_TESTABLE),
    ],
)
def test_aligning_is_compared_with_real_time_mode_only_where_that_was_real(
    records: list[Record], much: Verdict, little: Verdict
) -> None:
    found = {text: one for text, one in of(SKEW, records).items() if text.startswith((MUCH, LITTLE))}
    assert [one.verdict for one in found.values()] == [much, little]
    said = {NOT_TESTABLE: "barriers", NOT_ASKED: "takes two skews in commit mode unaligned (CP+NA)"}.get(much, "")
    assert all(said in one.evidence for one in found.values())


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
    assert verdict(matrix, more, disturbed[:3]) is NOT_ASKED


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
