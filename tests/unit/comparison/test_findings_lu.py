"""The claims of the dynamic-topology paper on synthetic records."""

from __future__ import annotations

from typing import Any

import pytest

from faultline.comparison.findings.claims import ClaimVerdict
from faultline.records.record import Record
from faultline.records.work_parts import StagesPart
from tests.unit.made_up_findings import AGREES, DISAGREES, INCONCLUSIVE, NOT_COVERED, TOPOLOGY, grid, of, run, verdict

FAST, ENOUGH, BOOK = "all mechanisms together raise", "with enough tasks", "all together lower the latency"
COST, SLOW, PAUSE = "where nothing is overloaded", "with a slow store", "a stage is replaced without a pause"


def both(figure: str, none: float, every: float, **named: Any) -> list[Record]:
    """Five runs without and five with all mechanisms."""
    points = [({"mechanisms": which}, {figure: value}) for which, value in (("none", none), ("all", every))]
    return grid(points, **{"workload": "topology", "parallelism": "1-1-1", **named})


@pytest.mark.parametrize(
    ("figure", "parallelism", "with_all", "expected"),
    [
        ("throughput_rps", "1-1-1", 600.0, {FAST: AGREES, ENOUGH: NOT_COVERED}),
        ("throughput_rps", "1-1-1", 400.0, {FAST: DISAGREES}),
        ("throughput_rps", "1-1-1", 501.0, {FAST: DISAGREES}),
        ("throughput_rps", "1-4-6", 505.0, {ENOUGH: AGREES, FAST: NOT_COVERED}),
        ("throughput_rps", "1-4-6", 900.0, {ENOUGH: DISAGREES}),
        ("latency", "1-2-4-1", 400.0, {BOOK: AGREES, COST: DISAGREES}),
        ("latency", "1-2-4-1", 600.0, {BOOK: DISAGREES, COST: DISAGREES}),
        ("latency", "1-2-2", 505.0, {COST: AGREES, BOOK: NOT_COVERED}),
    ],
)
def test_what_all_mechanisms_do_to_a_figure(
    figure: str, parallelism: str, with_all: float, expected: dict[str, ClaimVerdict]
) -> None:
    records = both(figure, 500.0, with_all, parallelism=parallelism)
    assert {begins: verdict(TOPOLOGY, begins, records) for begins in expected} == expected


def test_only_sustained_runs_show_the_cost_of_mechanisms() -> None:
    """In an overload latency is that of a queue."""
    kept_up = both("latency", 1000.0, 1010.0, sustained=True)
    overloaded = both("latency", 1000.0, 9000.0, rate=70, sustained=False)
    assert verdict(TOPOLOGY, COST, kept_up + overloaded) is AGREES
    assert verdict(TOPOLOGY, COST, overloaded) is NOT_COVERED


def replaced(mechanisms: str, gap_s: float | None, batch_s: float | None = 1.0) -> Record:
    stages = StagesPart(
        signals=0, failed=9, set_aside=0, replacements=1, gap_s=gap_s, batch_s=batch_s, most_queued=9, unstored=None
    )
    return run(workload="topology", mechanisms=mechanisms, stages=stages)


@pytest.mark.parametrize(("gap_s", "expected"), [(0.8, AGREES), (1.0, AGREES), (1.1, DISAGREES), (3.0, DISAGREES)])
def test_a_replacement_leaves_one_batch_at_most(gap_s: float, expected: ClaimVerdict) -> None:
    rebalanced = replaced("rebalance", 5.0)
    assert verdict(TOPOLOGY, PAUSE, [replaced("replacement", gap_s), rebalanced]) is expected
    assert verdict(TOPOLOGY, PAUSE, [rebalanced]) is NOT_COVERED


def test_the_longest_pause_is_held_against_the_shortest_batch() -> None:
    def evidence(*records: Record) -> tuple[ClaimVerdict, str]:
        found = of(TOPOLOGY, records)[PAUSE]
        return found.verdict, found.evidence

    every = [
        replaced("replacement", 0.5, 0.9), replaced("replay+replacement", 0.8, 2.0), replaced("all", 0.7, None),
        replaced("replacement", None, 0.1), run(workload="topology", mechanisms="replacement"),
    ]  # fmt: skip
    assert evidence(*every) == (AGREES, "longest pause 0.8 s, longest batch 2.0 s (n = 3)")
    assert evidence(*every, replaced("replacement", 1.0))[0] is DISAGREES
    assert evidence(*every, replaced("rebalance", 5.0, 0.1), replaced("replay+rebalance", 7.0, 0.1)) == (
        AGREES, "longest pause 0.8 s, longest batch 2.0 s; stopped and started: 5.0 to 7.0 s (n = 5)"
    )  # fmt: skip
    assert evidence(replaced("replacement", 0.1, None)) == (NOT_COVERED, "no stage was replaced")


@pytest.mark.parametrize(
    ("with_queue", "without", "expected", "evidence"),
    [
        ("++", "--", AGREES, "lag was stable in 2 of 2 runs with the queue, in 0 of 2 without"),
        ("+++", "-+-", INCONCLUSIVE, "lag was stable in 3 of 3 runs with the queue, in 1 of 3 without"),
        ("+-", "--", INCONCLUSIVE, "lag was stable in 1 of 2 runs with the queue, in 0 of 2 without"),
        ("--", "-+", DISAGREES, "lag was stable in 0 of 2 runs with the queue, in 1 of 2 without"),
        ("++", "++", DISAGREES, "lag was stable in 2 of 2 runs with the queue, in 2 of 2 without"),
        ("+-", "++", DISAGREES, "lag was stable in 1 of 2 runs with the queue, in 2 of 2 without"),
        ("+?", "--", NOT_COVERED, "requires a slow store with and without the queue, each measured more than once"),
        ("++", "-", NOT_COVERED, "requires a slow store with and without the queue, each measured more than once"),
    ],
)
def test_all_runs_with_the_queue_keep_up_and_none_without(
    with_queue: str, without: str, expected: ClaimVerdict, evidence: str
) -> None:
    held = {"+": True, "-": False, "?": None}
    named: dict[str, Any] = {"workload": "topology", "parallelism": "1-2-4-1"}
    records = [
        run(number, mechanisms=every[number % 2], sustained=held[sign], topology={"persist_delay_ms": 5}, **named)
        for signs, every in ((with_queue, ("all", "replay+delayed_persistence")), (without, ("none", "replay")))
        for number, sign in enumerate(signs)
    ]
    assert verdict(TOPOLOGY, BOOK, records) is NOT_COVERED, "a slow store is another test"
    # A store that is as fast as it is says nothing.
    records += [run(mechanisms="all", sustained=False, **named), run(mechanisms="none", sustained=True, **named)]
    (found,) = [one for text, one in of(TOPOLOGY, records).items() if text.startswith(SLOW)]
    assert (found.verdict, found.evidence) == (expected, evidence)
