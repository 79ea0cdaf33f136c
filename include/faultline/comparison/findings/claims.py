"""A claim of a paper, the test of it, and what came out; and the figures that claims are about."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from typing import NamedTuple

from faultline.experiment.workloads.registry import WORKLOADS
from faultline.records.format import cores, count, milliseconds, seconds, share
from faultline.records.record import Record
from faultline.system.process_tags import ENGINE


class ClaimVerdict(StrEnum):
    """What a measurement says of a claim."""

    AGREES = "agrees"
    DISAGREES = "disagrees"
    INCONCLUSIVE = "inconclusive"
    # These runs were not made for it: others of the same matrix answer.
    NOT_COVERED = "not covered"
    # Nothing that is measured here could answer it: another engine, or a larger machine, would.
    NOT_TESTABLE = "not testable here"


# Of records that hold what a claim is about.
ANSWERED = (ClaimVerdict.AGREES, ClaimVerdict.DISAGREES, ClaimVerdict.INCONCLUSIVE)


class ClaimResult(NamedTuple):
    """The verdict, and in one line what it rests on. `p`: how likely such figures are by chance, two-sided, where that
    is what the verdict rests on; of all such verdicts on a page some would be wrong, so they are corrected together."""

    verdict: ClaimVerdict
    evidence: str
    p: float | None = None


def verdict_of(holds: bool | None) -> ClaimVerdict:
    """The verdict that follows when a claim holds, does not, or nobody can tell."""
    return ClaimVerdict.INCONCLUSIVE if holds is None else ClaimVerdict.AGREES if holds else ClaimVerdict.DISAGREES


def not_covered(why: str = "no valid runs that differ in nothing but this") -> ClaimResult:
    """Nothing was measured that could answer, though it could be; `why` says what it takes."""
    return ClaimResult(ClaimVerdict.NOT_COVERED, why)


def not_testable(needs: str) -> ClaimResult:
    """Nothing that can be measured here answers; `needs` says what would."""
    return ClaimResult(ClaimVerdict.NOT_TESTABLE, needs)


Test = Callable[[Sequence[Record]], ClaimResult]


@dataclass(frozen=True)
class PaperClaim:
    """What a paper says, where it says so, and how records are asked. `test` gets all records, valid or not."""

    text: str
    source: str
    test: Test


@dataclass(frozen=True)
class Measure:
    """One figure: its name, how a record gives it (None: unknown), and how a value is written with its unit."""

    name: str
    read: Callable[[Record], float | None]
    text: Callable[[float], str]


def measure(name: str, path: str, text: Callable[[float], str]) -> Measure:
    """The figure at `path` of a record's metrics, such as `latency_ms.mean`; unknown where a part of it is."""
    return Measure(name, lambda record: _at(record, path), text)


def valid_records(records: Iterable[Record]) -> list[Record]:
    """Those that are measured and believed."""
    return [record for record in records if record.sound]


def without_fault(records: Iterable[Record]) -> list[Record]:
    """The valid ones in which nothing was broken on purpose."""
    return [record for record in valid_records(records) if record.config.get("fault") == "none"]


def _at(record: Record, path: str) -> float | None:
    part, _, rest = path.rpartition(".")
    holder = attrgetter(part)(record.metrics) if part else record.metrics
    value = None if holder is None else getattr(holder, rest)
    return None if value is None else float(value)


def _cpu(record: Record, roles: Sequence[str]) -> float | None:
    """CPU of several roles together, in cores; unknown when one of them is."""
    used = [getattr(record.metrics.cpu_cores, role) for role in roles]
    return None if any(value is None for value in used) else float(sum(used))


def _machine_share(record: Record) -> float | None:
    """Share of the machine's cores that engine, broker and generator used together."""
    used, there = _cpu(record, (*ENGINE, "kafka", "generator")), record.environment.cores
    return used / there if used is not None and there else None


def _ms(value: float) -> str:
    return f"{milliseconds(value)} ms"


def _s(value: float) -> str:
    return f"{seconds(value, 2 if abs(value) < 1 else 1)} s"


# The fault-tolerance paper means the mean over all tuples (4.1), and the CPU of the nodes that compute.
LATENCY = measure("mean latency", "latency_ms.mean", _ms)
CPU = Measure("CPU of the engine", lambda record: _cpu(record, ENGINE), lambda value: f"{cores(value)} cores")
# The stock paper's latency is the time in which nothing is computed (2.3), its throughput is counted per second.
NON_COMPUTE = measure("non-compute time", "non_compute_ms", _ms)
THROUGHPUT = measure("throughput", "throughput_rps", lambda value: f"{count(value)}/s")
GC = measure("GC", "gc_s", _s)
TASKS = measure("tasks", "work.tasks", count)
TASK_TIME = measure("run time of tasks", "work.task_s", _s)
MACHINE = Measure("CPU of the machine", _machine_share, share)
REPLAY = measure("replay", "recovery.replay_s", _s)
MACRO = measure("macro recovery", "recovery.macro_s", _s)

# What an exact run has none of, by its name in the audit.
MISCOUNTS = ("lost", "overcounted", "unexpected", "checksum_mismatches")


def miscounts(records: Iterable[Record]) -> dict[str, int]:
    """The sum over records of each of MISCOUNTS; what is unknown counts as none, and sums that nobody has are left
    out."""
    audits = [record.metrics.audit for record in records]
    known = MISCOUNTS if any(audit.checksum_mismatches is not None for audit in audits) else MISCOUNTS[:-1]
    return {name: sum(getattr(audit, name) or 0 for audit in audits) for name in known}


def identifies_tuples(record: Record) -> bool:
    """Whether its audit knows which tuples were counted: by sums of their hashes, or by the ids that outputs carry."""
    if record.metrics.audit.checksum_mismatches is not None:
        return True
    kind = WORKLOADS.get(str(record.config.get("workload")))
    return kind is not None and kind.carries_ids and record.metrics.audit.lost is not None
