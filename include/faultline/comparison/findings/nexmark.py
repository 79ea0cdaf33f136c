"""What Flink does with Nexmark, per core, beside Spark here.

Two lists, both in thousand events of the generator per second and core. `STEADY`: the suite's own guide
(nexmark/nexmark, GUIDE_V2.md): Flink 2 with 8 slots, RocksDB, 30 s between checkpoints, its state filled before.
`TWO_CORES`: the same suite on a machine with two cores: Flink 2.2.0, two slots, RocksDB, 30 s, mini-batches, from a
cold start over 5 to 20 million events, one run, the TaskManager's CPU.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from faultline.comparison.findings.finding import Claim, Outcome, Verdict
from faultline.comparison.findings.measures import valid
from faultline.experiment.workloads import nexmark
from faultline.experiment.workloads.base import has_schedule
from faultline.records.format import NONE
from faultline.records.record import Record

STEADY: Mapping[str, float] = {
    "q0": 379, "q1": 395, "q2": 414, "q3": 219, "q4": 28, "q5": 75, "q7": 23, "q8": 162, "q9": 14, "q10": 133,
    "q11": 46, "q12": 194, "q13": 188, "q14": 259, "q15": 168, "q16": 45, "q17": 161, "q18": 65, "q19": 43, "q20": 18,
    "q21": 147, "q22": 212,
}  # fmt: skip
TWO_CORES: Mapping[str, float] = {
    "q0": 483, "q1": 512, "q2": 576, "q3": 359, "q4": 63, "q5": 114, "q7": 55, "q8": 285, "q9": 39, "q11": 73,
    "q12": 229, "q14": 535, "q15": 110, "q16": 49, "q17": 138, "q18": 72, "q19": 94, "q20": 53, "q21": 219, "q22": 357,
}  # fmt: skip
STATELESS = tuple(query for query in nexmark.STATELESS if query in TWO_CORES)
STATELESS_RATIO, AHEAD = 1.5, 16


class Kind(StrEnum):
    """What a query began with, and whether its events lie as dense in event time as in the list from two cores."""

    EMPTY = "here, empty state"
    DENSE = "here, empty state, dense events"
    FILLED = "here, state filled"

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Kind:
        """By a record's configuration."""
        if config.get("preload_events"):
            return cls.FILLED
        return cls.DENSE if config.get("rate") == nexmark.DENSE_RATE else cls.EMPTY


def per_core(records: Sequence[Record], *, kind: Kind = Kind.EMPTY, driver: bool = False) -> dict[str, list[float]]:
    """Thousand events per second and core of each valid record, by query.

    Cores are those of executors and Python workers, and of the `driver` if it is to count. Only of queries that ran as
    fast as they can, and in one configuration: others cannot be told from each other here.
    """
    return {
        query: [value for record in measured if (value := _figure(record, driver)) is not None]
        for query, configurations in _measured(records, kind).items()
        if len(configurations) == 1
        for measured in configurations.values()
    }


def ambiguous(records: Sequence[Record], kind: Kind = Kind.EMPTY) -> list[str]:
    """Queries that were measured in more than one configuration, and so have no figure here."""
    return sorted((query for query, found in _measured(records, kind).items() if len(found) > 1), key=_number)


def _measured(records: Sequence[Record], kind: Kind) -> dict[str, dict[str, list[Record]]]:
    """Valid records by query and configuration."""
    found: dict[str, dict[str, list[Record]]] = {}
    for record in valid(records):
        config = record.config
        if record.metrics.rps_per_core is not None and not has_schedule(config) and Kind.of(config) is kind:
            found.setdefault(str(config["query"]), {}).setdefault(record.config_id, []).append(record)
    return found


def _figure(record: Record, driver: bool) -> float | None:
    """Thousand events per second and core; None where the driver is to count and is not known."""
    figure, rate, planning = record.metrics.rps_per_core, record.metrics.throughput_rps, record.metrics.cpu_cores.driver
    if figure is None or not driver:
        return None if figure is None else figure / 1000
    if not rate or not figure or planning is None:
        return None
    return rate / (rate / figure + planning) / 1000


def _number(query: str) -> int:
    return int(query[1:])


def ratios(records: Sequence[Record]) -> dict[str, list[float]]:
    """How often each record from an empty state reaches Flink's figure on two cores, by query of that list."""
    return {
        query: [one / TWO_CORES[query] for one in values]
        for query, values in per_core(records).items()
        if query in TWO_CORES
    }


def stateless(records: Sequence[Record]) -> Outcome:
    """Whether every repetition of the stateless queries reaches the ratio."""
    found = {query: values for query, values in ratios(records).items() if query in STATELESS}
    if set(found) != set(STATELESS):
        return Verdict.CANNOT_TELL, f"{len(found)} of {len(STATELESS)} measured in one configuration"
    said = ", ".join(f"{query} {statistics.median(found[query]):.2f}" for query in STATELESS)
    least = min(min(values) for values in found.values())
    return Verdict.AGREES if least >= STATELESS_RATIO else Verdict.DISAGREES, f"median ratios: {said}"


def ahead(records: Sequence[Record]) -> Outcome:
    """Whether enough queries are ahead in every repetition."""
    found = ratios(records)
    sure = [query for query, values in found.items() if min(values) > 1]
    behind = [query for query in TWO_CORES if query in found and statistics.median(found[query]) <= 1]
    said = f"{len(sure)} of {len(found)} ahead in every repetition; behind: {', '.join(behind) or 'none'}"
    if len(sure) >= AHEAD:
        return Verdict.AGREES, said
    missing = len(TWO_CORES) - len(found)
    return Verdict.CANNOT_TELL if len(sure) + missing >= AHEAD else Verdict.DISAGREES, said


_WHERE = "Faultline's design"
NEXMARK = (
    Claim(f"Stateless queries handle at least {STATELESS_RATIO} times Flink's events per core", _WHERE, stateless),
    Claim(f"At least {AHEAD} of the {len(TWO_CORES)} queries handle more events per core than Flink", _WHERE, ahead),
)


def beside(records: Sequence[Record]) -> list[str]:
    """Lines of a Markdown table: Spark here beside the list that is nearest.

    No lines when no query ran as fast as it can.
    """
    sides = [
        _Side(Kind.EMPTY, "Flink, two cores", TWO_CORES, records),
        _Side(Kind.DENSE, "Flink, two cores", TWO_CORES, records),
        _Side(Kind.FILLED, "Flink, steady state, 8 slots", STEADY, records),
    ]
    told = [side for side in sides if side.found]
    lines = []
    if told:
        heads = ["query", *(head for side in told for head in (side.kind, side.flink, "ratio", "with the driver"))]
        lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    for query in sorted({query for side in told for query in side.found}, key=_number):
        lines.append(f"| {' | '.join([query, *(cell for side in told for cell in side.cells(query))])} |")
    for side in sides:
        if left_out := ambiguous(records, side.kind):
            listed = ", ".join(left_out)
            lines += [
                "",
                f"No figure under *{side.kind}* where it was measured in more than one configuration: {listed}.",
            ]
    return lines


class _Side:
    """Spark here and one of Flink's lists, by query."""

    def __init__(self, kind: Kind, flink: str, published: Mapping[str, float], records: Sequence[Record]) -> None:
        self.kind, self.flink, self._published = kind, flink, published
        self.found = per_core(records, kind=kind)
        self._with_driver = per_core(records, kind=kind, driver=True)

    def cells(self, query: str) -> list[str]:
        """Median with least and greatest, Flink's figure, the ratio of the two, and that with the driver counted."""
        values, flink = self.found.get(query), self._published.get(query)
        said = NONE
        if values:
            spread = f" ({min(values):,.0f}–{max(values):,.0f})" if len(values) > 1 else ""
            said = f"{statistics.median(values):,.0f}{spread}"
        ratios = (_ratio(values, flink), _ratio(self._with_driver.get(query), flink))
        return [said, NONE if flink is None else f"{flink:,.0f}", *ratios]


def _ratio(values: Sequence[float] | None, flink: float | None) -> str:
    return f"{statistics.median(values) / flink:.2f}" if values and flink is not None else NONE
