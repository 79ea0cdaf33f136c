"""Claims of papers, by the matrix that tests them; the matrix `nexmark` tests none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from faultline.comparison.findings.claims import ClaimResult, ClaimVerdict, PaperClaim, on_spark, restricted
from faultline.comparison.findings.jiang import (
    COMPUTE_AND_INTERVAL,
    FLINK_RECOVERY,
    RECOVERY,
    SKEW_AND_ALIGNMENT,
    STATE_AND_INTERVAL,
)
from faultline.comparison.findings.lu import TOPOLOGY
from faultline.comparison.findings.shi import EXECUTOR_CORES, INPUT_RATE
from faultline.comparison.statistics.estimate import ALPHA, false_discoveries
from faultline.records.record import Record

FAULT_TOLERANCE = "Jiang, Wang and Zhang 2019 (fault tolerance of Flink and Storm)"
DYNAMIC_TOPOLOGY = "Lu and others 2020 (dynamic topology in Storm)"
STOCK_TRADING = "Shi and others 2020 (stock trading on Spark Streaming)"

CLAIMS: Mapping[str, tuple[PaperClaim, ...]] = MappingProxyType(
    {
        "state_size_x_checkpoint_interval": (*STATE_AND_INTERVAL, *RECOVERY),
        "skew_x_alignment_mode": SKEW_AND_ALIGNMENT,
        "compute_x_checkpoint_interval": COMPUTE_AND_INTERVAL,
        "input_rate": restricted(INPUT_RATE, on_spark),
        "executor_cores": restricted(EXECUTOR_CORES, on_spark),
        "recovery": RECOVERY,
        "spark_and_flink_recovery": FLINK_RECOVERY,
        "flink_alignment": SKEW_AND_ALIGNMENT,
        "topology_optimisation": TOPOLOGY,
    }
)
PAPERS: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(CLAIMS, FAULT_TOLERANCE)
    | {"input_rate": STOCK_TRADING, "executor_cores": STOCK_TRADING}
    | {"topology_optimisation": DYNAMIC_TOPOLOGY}
)


@dataclass(frozen=True)
class Finding:
    """Verdict on a claim, with its evidence."""

    claim: PaperClaim
    verdict: ClaimVerdict
    evidence: str


def findings(matrix: str, records: Sequence[Record]) -> list[Finding]:
    """Return the verdicts on all claims that `matrix` tests; records may have any status.

    Verdicts that rest on a p are corrected together, with a false discovery rate of 5 % (Benjamini and Hochberg 1995).
    """
    claims = CLAIMS[matrix]
    outcomes = correct_verdicts([claim.test(records) for claim in claims])
    return [Finding(claim, *found) for claim, found in zip(claims, outcomes, strict=True)]


def correct_verdicts(outcomes: Sequence[ClaimResult]) -> list[tuple[ClaimVerdict, str]]:
    """Return verdicts and evidence; a verdict whose p does not survive the correction becomes inconclusive."""
    tested = [index for index, one in enumerate(outcomes) if one.p is not None]
    shares = false_discoveries([outcomes[index].p or 0.0 for index in tested])
    q = dict(zip(tested, shares, strict=True))
    found = []
    for index, one in enumerate(outcomes):
        if one.p is not None and one.p <= ALPHA < q[index]:
            found.append(
                (ClaimVerdict.INCONCLUSIVE, f"{one.evidence}; p = {q[index]:.2g} after correction for this page")
            )
        else:
            found.append((one.verdict, one.evidence))
    return found
