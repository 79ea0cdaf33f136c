"""Claims of papers with their tests and results, and the metrics that claims are about."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from operator import attrgetter
from typing import NamedTuple

from faultline.experiment.workloads.registry import WORKLOADS
from faultline.records.format import cores, count, milliseconds, seconds, share
from faultline.records.record import Record
from faultline.system.process_tags import ENGINE


class ClaimVerdict(StrEnum):
    """Verdict of a measurement on a claim."""

    AGREES = "agrees"
    DISAGREES = "disagrees"
    INCONCLUSIVE = "inconclusive"
    # The records at hand lack the required runs.
    NOT_COVERED = "not covered"
    # Another engine or a larger machine would be required.
    NOT_TESTABLE = "not testable here"


# Verdicts on claims that the records cover.
ANSWERED = (ClaimVerdict.AGREES, ClaimVerdict.DISAGREES, ClaimVerdict.INCONCLUSIVE)


class ClaimResult(NamedTuple):
    """Verdict and evidence in one line.

    `p`: two-sided p that the verdict rests on, or None; the p of all verdicts on a page are corrected together.
    """

    verdict: ClaimVerdict
    evidence: str
    p: float | None = None


def verdict_of(holds: bool | None) -> ClaimVerdict:
    """Return the verdict on a claim that holds, does not, or is undecided (None)."""
    return ClaimVerdict.INCONCLUSIVE if holds is None else ClaimVerdict.AGREES if holds else ClaimVerdict.DISAGREES


def not_covered(why: str = "no valid runs that differ in this parameter only") -> ClaimResult:
    """Return the result for a claim that these runs do not cover; `why` names what is missing."""
    return ClaimResult(ClaimVerdict.NOT_COVERED, why)


def not_testable(needs: str) -> ClaimResult:
    """Return the result for a claim that cannot be tested here; `needs` gives the requirement."""
    return ClaimResult(ClaimVerdict.NOT_TESTABLE, needs)


Test = Callable[[Sequence[Record]], ClaimResult]


@dataclass(frozen=True)
class PaperClaim:
    """Claim of a paper with its source and its test, which gets all records, valid or not."""

    text: str
    source: str
    test: Test


def restricted(claims: Iterable[PaperClaim], chosen: Callable[[Record], bool]) -> tuple[PaperClaim, ...]:
    """Return the claims with tests of the chosen records only."""

    def narrowed(test: Test) -> Test:
        return lambda records: test([record for record in records if chosen(record)])

    return tuple(replace(claim, test=narrowed(claim.test)) for claim in claims)


def on_spark(record: Record) -> bool:
    """Return whether the record is of Spark, the engine of a record that names none."""
    return bool(record.config.get("engine", "spark") == "spark")


@dataclass(frozen=True)
class Measure:
    """A metric: name, value in a record (None: unknown), and text of a value with its unit."""

    name: str
    read: Callable[[Record], float | None]
    text: Callable[[float], str]


def measure(name: str, path: str, text: Callable[[float], str]) -> Measure:
    """Return the measure at `path` of a record's metrics, such as `latency_ms.mean`."""
    return Measure(name, lambda record: _at(record, path), text)


def valid_records(records: Iterable[Record]) -> list[Record]:
    """Return the usable records."""
    return [record for record in records if record.is_usable]


def without_fault(records: Iterable[Record]) -> list[Record]:
    """Return the usable records without a fault."""
    return [record for record in valid_records(records) if record.config.get("fault") == "none"]


def _at(record: Record, path: str) -> float | None:
    part, _, rest = path.rpartition(".")
    holder = attrgetter(part)(record.metrics) if part else record.metrics
    value = None if holder is None else getattr(holder, rest)
    return None if value is None else float(value)


def _cpu(record: Record, roles: Sequence[str]) -> float | None:
    """Return the CPU of several roles together, in cores; None if one is unknown."""
    used = [getattr(record.metrics.cpu_cores, role) for role in roles]
    return None if any(value is None for value in used) else float(sum(used))


def _machine_share(record: Record) -> float | None:
    """Return the share of the machine's cores used by engine, broker and generator."""
    used, total = _cpu(record, (*ENGINE, "kafka", "generator")), record.environment.cores
    return used / total if used is not None and total else None


def _ms(value: float) -> str:
    return f"{milliseconds(value)} ms"


def _s(value: float) -> str:
    return f"{seconds(value, 2 if abs(value) < 1 else 1)} s"


# In the fault-tolerance paper, latency is the mean over all tuples (4.1) and CPU that of the computing nodes.
LATENCY = measure("mean latency", "latency_ms.mean", _ms)
CPU = Measure("CPU of the engine", lambda record: _cpu(record, ENGINE), lambda value: f"{cores(value)} cores")
# The stock paper's latency is the time without computation (2.3); its throughput counts per second.
NON_COMPUTE = measure("non-compute time", "non_compute_ms", _ms)
THROUGHPUT = measure("throughput", "throughput_rps", lambda value: f"{count(value)}/s")
GC = measure("GC", "gc_s", _s)
TASKS = measure("tasks", "work.tasks", count)
TASK_TIME = measure("run time of tasks", "work.task_s", _s)
MACHINE = Measure("CPU of the machine", _machine_share, share)
REPLAY = measure("replay", "recovery.replay_s", _s)
MACRO = measure("macro recovery", "recovery.macro_s", _s)

# Fields of the audit (comparison of the output with a batch recomputation) that are 0 in an exact run.
MISCOUNTS = ("lost", "overcounted", "unexpected", "checksum_mismatches")


def miscounts(records: Iterable[Record]) -> dict[str, int]:
    """Return each of MISCOUNTS summed over the records; unknown counts are 0.

    Checksums are omitted if no record has them.
    """
    audits = [record.metrics.audit for record in records]
    known = MISCOUNTS if any(audit.checksum_mismatches is not None for audit in audits) else MISCOUNTS[:-1]
    return {name: sum(getattr(audit, name) or 0 for audit in audits) for name in known}


def identifies_tuples(record: Record) -> bool:
    """Return whether the audit identifies single tuples, by checksums of hashes or by ids in the output."""
    if record.metrics.audit.checksum_mismatches is not None:
        return True
    kind = WORKLOADS.get(str(record.config.get("workload")))
    return kind is not None and kind.carries_ids and record.metrics.audit.lost is not None
