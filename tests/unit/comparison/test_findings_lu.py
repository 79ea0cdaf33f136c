"""The claims of the dynamic-topology paper against made-up records."""

from __future__ import annotations

from typing import Any

import pytest

from faultline.comparison.findings.catalogue import findings
from faultline.comparison.findings.finding import Verdict
from faultline.records.record import LatencyMs, Record, StagesPart
from tests.unit.sample_records import sample

AGREES, DISAGREES, CANNOT_TELL = Verdict.AGREES, Verdict.DISAGREES, Verdict.CANNOT_TELL
NOISE = (0.99, 1.0, 1.01)
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


@pytest.mark.parametrize(("with_all", "expected"), [(600.0, AGREES), (400.0, DISAGREES), (501.0, CANNOT_TELL)])
def test_throughput_while_tasks_are_few(with_all: float, expected: Verdict) -> None:
    records = repeated("none", {"throughput": 500.0}) + repeated("all", {"throughput": with_all})
    assert verdict("raise the throughput", records) is expected
    assert verdict("with enough tasks", records) is CANNOT_TELL


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
    assert verdict("slow store", queued) is CANNOT_TELL
    assert verdict("lower the latency", queued + direct) is CANNOT_TELL, "a slow store is another test"


@pytest.mark.parametrize(("gap_s", "expected"), [(0.8, AGREES), (3.0, DISAGREES)])
def test_a_replacement_leaves_one_batch_at_most(gap_s: float, expected: Verdict) -> None:
    def stages(gap: float) -> StagesPart:
        return StagesPart(
            signals=0, failed=9, set_aside=0, replacements=1, gap_s=gap, batch_s=1.0, most_queued=9, unstored=None
        )

    rebalanced = run("rebalance", stages=stages(5.0))
    assert verdict("without a pause", [run("replacement", stages=stages(gap_s)), rebalanced]) is expected
    assert verdict("without a pause", [rebalanced]) is CANNOT_TELL
