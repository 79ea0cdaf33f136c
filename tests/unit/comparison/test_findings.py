"""The papers' findings on synthetic records: each verdict is reachable and names its evidence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.comparison.findings.catalogue import CLAIMS, PAPERS, findings
from faultline.comparison.findings.claims import MISCOUNTS, identifies_tuples, miscounts
from faultline.experiment.matrices import MATRICES
from faultline.records.record import AuditPart, Record
from tests.unit.made_up_findings import (
    AGREES,
    CORES,
    NOT_COVERED,
    NOT_TESTABLE,
    RATE,
    RECOVERY,
    SKEW,
    STATE,
    cores,
    kill,
    modes,
    rates,
    run,
    states,
    verdict,
)
from tests.unit.sample_records import sample


def test_every_matrix_has_claims_but_that_of_no_paper() -> None:
    assert CLAIMS.keys() == PAPERS.keys() == MATRICES.keys() - {"nexmark", "network_faults", "sweep"}


@pytest.mark.parametrize("matrix", CLAIMS)
def test_claims_without_records_are_not_covered(matrix: str) -> None:
    assert CLAIMS[matrix]
    assert len({claim.text for claim in CLAIMS[matrix]}) == len(CLAIMS[matrix])
    invalid = [run(status="invalid", reasons=["schedule-lag: p99 70 ms > 50 ms"], state_mb=state) for state in (1, 8)]
    for records in ([], invalid):
        found = {one.verdict for one in findings(matrix, records)}
        assert NOT_COVERED in found and found <= {NOT_COVERED, NOT_TESTABLE}
        assert all(one.evidence for one in findings(matrix, records))


def test_flink_claims_exclude_other_engines_and_settings() -> None:
    """The paper measured Flink with its default heartbeats."""

    def killed(macro_s: float, **config: Any) -> Record:
        record = kill(macro_s=macro_s)
        return record.model_copy(update={"config": {**record.config, **config}})

    slow = [killed(90.0, engine="spark"), killed(90.0, engine="flink", flink_conf={"heartbeat.interval": "1s"})]
    claim = "a recovery takes less than 60 s"
    assert verdict("spark_and_flink_recovery", claim, slow) is NOT_COVERED
    fast = [killed(20.0 + number, engine="flink") for number in range(3)]
    assert verdict("spark_and_flink_recovery", claim, [*slow, *fast]) is AGREES


def test_alignment_of_flink_is_compared_with_at_least_once() -> None:
    records = modes(**{"at-least-once": (1000, 1000), "aligned": (1001, 3000), "unaligned-barriers": (9000, 9000)})
    assert verdict("flink_alignment", "with much skew", records) is AGREES
    assert verdict("flink_alignment", "with even data", records) is AGREES


def test_claims_on_spark_exclude_other_engines() -> None:
    points = (100, 500, 2500, 12_500)
    flink = rates(*((rate, {"non_compute_ms": 100.0 * rate}) for rate in points), engine="flink")
    assert verdict(RATE, "the higher the rate, the larger", flink) is NOT_COVERED


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
def test_the_evidence_of_each_verdict_has_figures(case: str) -> None:
    """They stand in evidence.txt, claim by claim."""
    matrix, records = sayings()[case]
    kept = (Path(__file__).parent / "evidence.txt").read_text().split("\n\n")
    (expected,) = [part.splitlines()[1:] for part in kept if part.startswith(f"{case}:\n")]
    assert [f"{one.verdict}: {one.evidence}" for one in findings(matrix, records)] == expected


some = st.none() | st.integers(0, 9)
audits = st.builds(AuditPart, **dict.fromkeys((*MISCOUNTS, "expected", "reemitted", "unknown"), some))
workloads = st.sampled_from(["word_count", "pi", "known_truth", "topology", "nexmark", "of another version", None])


def record(audit: AuditPart, workload: str | None = "word_count") -> Record:
    made = sample(fault="none", raw_config={"workload": workload})
    return made.model_copy(update={"metrics": made.metrics.model_copy(update={"audit": audit})})


@given(st.lists(audits, max_size=4))
def test_miscounts_add_up_and_sums_are_named_where_they_are_kept(found: list[AuditPart]) -> None:
    counts = miscounts(record(audit) for audit in found)
    assert ("checksum_mismatches" in counts) is any(audit.checksum_mismatches is not None for audit in found)
    for name, number in counts.items():
        assert number == sum(getattr(audit, name) or 0 for audit in found)
    assert list(counts) == [name for name in MISCOUNTS if name in counts]


@given(audits, workloads)
def test_which_tuples_were_counted_is_known_by_sums_or_by_ids(audit: AuditPart, workload: str | None) -> None:
    by_ids = workload in ("pi", "known_truth") and audit.lost is not None
    assert identifies_tuples(record(audit, workload)) is (audit.checksum_mismatches is not None or by_ids)
