"""The claims of the dynamic-topology paper against made-up records."""

from __future__ import annotations

from typing import Any

import pytest

from faultline.comparison.findings.catalogue import findings
from faultline.comparison.findings.finding import Verdict
from faultline.records.record import LatencyMs, Record, StagesPart
from tests.unit.sample_records import sample

AGREES, DISAGREES, CANNOT_TELL = Verdict.AGREES, Verdict.DISAGREES, Verdict.CANNOT_TELL
NOT_ASKED, NOT_TESTABLE = Verdict.NOT_ASKED, Verdict.NOT_TESTABLE
NOISE = (0.99, 0.995, 1.0, 1.005, 1.01)
Figures = dict[str, float]


def verdict(words: str, records: list[Record]) -> Verdict:
    (found,) = [one for one in findings("topology_optimisation", records) if words in one.claim.text]
    assert found.evidence and "\n" not in found.evidence
    return found.verdict


def run(mechanisms: str, *, repetition: int = 0, parallelism: str = "1-1-1", **given: Any) -> Record:
    """A record; `latency`, `throughput`, `sustained` and `stages` are its figures, the rest is the configuration."""
    latency, throughput = given.pop("latency", 1000.0), given.pop("throughput", 500.0)
    sustained, stages = given.pop("sustained", True), given.pop("stages", None)
    record = sample(workload="topology", mechanisms=mechanisms, parallelism=parallelism, repetition=repetition, **given)
    update = {
        "latency_ms": LatencyMs.empty().model_copy(update={"mean": latency}),
        "throughput_rps": throughput,
        "sustained": sustained,
        "stages": stages,
    }
    return record.model_copy(update={"metrics": record.metrics.model_copy(update=update)})


def repeated(mechanisms: str, figures: Figures, **given: Any) -> list[Record]:
    return [
        run(mechanisms, repetition=number, **{name: value * noise for name, value in figures.items()}, **given)
        for number, noise in enumerate(NOISE)
    ]


@pytest.mark.parametrize(("with_all", "expected"), [(600.0, AGREES), (400.0, DISAGREES), (501.0, DISAGREES)])
def test_throughput_while_tasks_are_few(with_all: float, expected: Verdict) -> None:
    records = repeated("none", {"throughput": 500.0}) + repeated("all", {"throughput": with_all})
    assert verdict("raise the throughput", records) is expected
    assert verdict("with enough tasks", records) is NOT_ASKED


@pytest.mark.parametrize(("with_all", "expected"), [(505.0, AGREES), (900.0, DISAGREES)])
def test_throughput_with_enough_tasks(with_all: float, expected: Verdict) -> None:
    records = repeated("none", {"throughput": 500.0}, parallelism="1-4-6")
    records += repeated("all", {"throughput": with_all}, parallelism="1-4-6")
    assert verdict("with enough tasks", records) is expected


@pytest.mark.parametrize(("with_all", "expected"), [(800.0, AGREES), (1200.0, DISAGREES)])
def test_latency_over_a_book(with_all: float, expected: Verdict) -> None:
    records = repeated("none", {"latency": 1000.0}, parallelism="1-2-4-1")
    records += repeated("all", {"latency": with_all}, parallelism="1-2-4-1")
    assert verdict("lower the latency", records) is expected
    assert verdict("cost no noticeable", records) is DISAGREES  # it moved noticeably


@pytest.mark.parametrize(
    ("with_queue", "without", "expected"),
    [(True, False, AGREES), (False, False, DISAGREES), (True, True, DISAGREES)],
)
def test_a_slow_store(with_queue: bool, without: bool, expected: Verdict) -> None:
    slow: dict[str, Any] = {"parallelism": "1-2-4-1", "topology": {"persist_delay_ms": 5}}
    queued = [run("delayed_persistence", repetition=number, sustained=with_queue, **slow) for number in range(2)]
    direct = [run("none", repetition=number, sustained=without, **slow) for number in range(2)]
    assert verdict("slow store", queued + direct) is expected
    assert verdict("slow store", queued) is NOT_ASKED
    assert verdict("lower the latency", queued + direct) is NOT_ASKED, "a slow store is another test"


def stages(gap: float | None, batch: float | None = 1.0) -> StagesPart:
    return StagesPart(
        signals=0, failed=9, set_aside=0, replacements=1, gap_s=gap, batch_s=batch, most_queued=9, unstored=None
    )


@pytest.mark.parametrize(("gap_s", "expected"), [(0.8, AGREES), (1.0, AGREES), (1.1, DISAGREES), (3.0, DISAGREES)])
def test_a_replacement_leaves_one_batch_at_most(gap_s: float, expected: Verdict) -> None:
    rebalanced = run("rebalance", stages=stages(5.0))
    assert verdict("without a pause", [run("replacement", stages=stages(gap_s)), rebalanced]) is expected
    assert verdict("without a pause", [rebalanced]) is NOT_ASKED


def test_the_longest_pause_is_held_against_the_shortest_batch() -> None:
    def evidence(*records: Record) -> tuple[Verdict, str]:
        (found,) = [one for one in findings("topology_optimisation", records) if "without a pause" in one.claim.text]
        return found.verdict, found.evidence

    replaced = [
        run("replacement", stages=stages(0.5, 0.9)),
        run("replay+replacement", stages=stages(0.8, 2.0)),
        run("all", stages=stages(0.7, None)),
        run("replacement", stages=stages(None, 0.1)),
        run("replacement"),
    ]
    assert evidence(*replaced) == (AGREES, "longest pause 0.8 s, longest batch 2.0 s (n = 3)")
    assert evidence(*replaced, run("replacement", stages=stages(1.0)))[0] is DISAGREES
    stopped = [run("rebalance", stages=stages(5.0, 0.1)), run("replay+rebalance", stages=stages(7.0, 0.1))]
    assert evidence(*replaced, *stopped) == (
        AGREES, "longest pause 0.8 s, longest batch 2.0 s; stopped and started: 5.0 to 7.0 s (n = 5)"
    )  # fmt: skip
    assert evidence(run("replacement", stages=stages(0.1, None))) == (NOT_ASKED, "no stage was replaced")


@pytest.mark.parametrize(
    ("with_queue", "without", "expected", "said"),
    [
        ("++", "--", AGREES, "lag stayed in 2 of 2 runs with the queue, in 0 of 2 without"),
        ("+++", "-+-", CANNOT_TELL, "lag stayed in 3 of 3 runs with the queue, in 1 of 3 without"),
        ("+-", "--", CANNOT_TELL, "lag stayed in 1 of 2 runs with the queue, in 0 of 2 without"),
        ("--", "-+", DISAGREES, "lag stayed in 0 of 2 runs with the queue, in 1 of 2 without"),
        ("+-", "++", DISAGREES, "lag stayed in 1 of 2 runs with the queue, in 2 of 2 without"),
        ("+?", "--", NOT_ASKED, "takes a slow store with and without the queue, each measured more than once"),
        ("++", "-", NOT_ASKED, "takes a slow store with and without the queue, each measured more than once"),
    ],
)
def test_all_runs_with_the_queue_keep_up_and_none_without(
    with_queue: str, without: str, expected: Verdict, said: str
) -> None:
    held = {"+": True, "-": False, "?": None}
    slow: dict[str, Any] = {"parallelism": "1-2-4-1", "topology": {"persist_delay_ms": 5}}
    records = [
        run(mechanisms, repetition=number, sustained=held[sign], **slow)
        for signs, every in ((with_queue, ("all", "replay+delayed_persistence")), (without, ("none", "replay")))
        for number, sign in enumerate(signs)
        for mechanisms in [every[number % 2]]
    ]
    # A store that is as fast as it is says nothing.
    records += [run("all", parallelism="1-2-4-1", sustained=False), run("none", parallelism="1-2-4-1")]
    (found,) = [one for one in findings("topology_optimisation", records) if "slow store" in one.claim.text]
    assert (found.verdict, found.evidence) == (expected, said)


def test_only_what_kept_up_says_what_the_mechanisms_cost() -> None:
    """In an overload latency is that of a queue."""
    words = "cost no noticeable"
    same = repeated("none", {"latency": 1000.0}) + repeated("all", {"latency": 1010.0})
    assert verdict(words, same) is AGREES
    overloaded = repeated("none", {"latency": 1000.0}, rate=70, sustained=False)
    overloaded += repeated("all", {"latency": 9000.0}, rate=70, sustained=False)
    assert verdict(words, same + overloaded) is AGREES
    assert verdict(words, overloaded) is NOT_ASKED
