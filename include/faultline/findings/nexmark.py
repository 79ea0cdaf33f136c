"""What Flink does with Nexmark, per core, and what of it holds for Spark here.

Two lists, both in thousand events of the generator per second and core. `STEADY`: the suite's own guide
(nexmark/nexmark, GUIDE_V2.md): Flink 2 with 8 slots, RocksDB, 30 s between checkpoints, its state filled before.
`TWO_CORES`: the same suite on a machine with two cores: Flink 2.2.0, two slots, RocksDB, 30 s, mini-batches, from a
cold start over 5 to 20 million events, one run, the TaskManager's CPU.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from faultline import nexmark
from faultline.findings.finding import Claim, Outcome, Verdict
from faultline.findings.measures import valid
from faultline.record import Record

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


def per_core(records: Sequence[Record]) -> dict[str, list[float]]:
    """Thousand events per second and core of each valid record, by query.

    Only of queries that ran as fast as they can, and in one configuration: others cannot be told from each other here.
    """
    found: dict[str, list[float]] = {}
    configurations: dict[str, set[str]] = {}
    for record in valid(records):
        if record.metrics.rps_per_core is not None and record.config.get("source") == "engine":
            query = str(record.config["query"])
            configurations.setdefault(query, set()).add(record.config_id)
            found.setdefault(query, []).append(record.metrics.rps_per_core / 1000)
    return {query: values for query, values in found.items() if len(configurations[query]) == 1}


def ratios(records: Sequence[Record], published: Mapping[str, float]) -> dict[str, list[float]]:
    """How often Flink's figure each record reaches, by query; only queries of the list."""
    return {
        query: [one / published[query] for one in values]
        for query, values in per_core(records).items()
        if query in published
    }


def stateless(records: Sequence[Record]) -> Outcome:
    """Whether every repetition of the stateless queries reaches the ratio."""
    found = {query: values for query, values in ratios(records, TWO_CORES).items() if query in STATELESS}
    if set(found) != set(STATELESS):
        return Verdict.CANNOT_TELL, f"{len(found)} of {len(STATELESS)} measured"
    said = ", ".join(f"{query} {statistics.median(found[query]):.2f}" for query in STATELESS)
    least = min(min(values) for values in found.values())
    return Verdict.AGREES if least >= STATELESS_RATIO else Verdict.DISAGREES, f"median ratios: {said}"


def ahead(records: Sequence[Record]) -> Outcome:
    """Whether enough queries are ahead in every repetition."""
    found = ratios(records, TWO_CORES)
    sure = [query for query, values in found.items() if min(values) > 1]
    behind = [query for query in TWO_CORES if query in found and statistics.median(found[query]) <= 1]
    said = f"{len(sure)} of {len(found)} ahead in every repetition; behind: {', '.join(behind) or 'none'}"
    if len(sure) >= AHEAD:
        return Verdict.AGREES, said
    missing = len(TWO_CORES) - len(found)
    return Verdict.CANNOT_TELL if len(sure) + missing >= AHEAD else Verdict.DISAGREES, said


_WHERE = "design target, against Flink on two cores"
NEXMARK = (
    Claim(f"Stateless queries handle at least {STATELESS_RATIO} times Flink's events per core", _WHERE, stateless),
    Claim(f"At least {AHEAD} of the {len(TWO_CORES)} queries handle more events per core than Flink", _WHERE, ahead),
)


def beside(records: Sequence[Record]) -> list[str]:
    """Lines of a Markdown table: Spark here beside both lists."""
    lines = [
        "| query | here (k events/s/core) | Flink, two cores | ratio | Flink, steady state, 8 slots | ratio |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    found = per_core(records)
    for query in sorted(found, key=lambda name: int(name[1:])):
        values = found[query]
        spread = f" ({min(values):,.0f}–{max(values):,.0f})" if len(values) > 1 else ""
        cells = [query, f"{statistics.median(values):,.0f}{spread}"]
        for published in (TWO_CORES, STEADY):
            flink = published.get(query)
            cells += ["—", "—"] if flink is None else [f"{flink:,.0f}", f"{statistics.median(values) / flink:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines
