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


def per_core(records: Sequence[Record], *, filled: bool = False) -> dict[str, list[float]]:
    """Thousand events per second and core of each valid record, by query: from a cold start, or with `filled` state.

    Only of queries that ran as fast as they can, and in one configuration: others cannot be told from each other here.
    """
    return {
        query: [value for values in by_configuration.values() for value in values]
        for query, by_configuration in _measured(records, filled).items()
        if len(by_configuration) == 1
    }


def ambiguous(records: Sequence[Record]) -> list[str]:
    """Queries that were measured in more than one configuration, and so have no figure here."""
    several = {
        query
        for filled in (False, True)
        for query, by_configuration in _measured(records, filled).items()
        if len(by_configuration) > 1
    }
    return sorted(several, key=_number)


def _measured(records: Sequence[Record], filled: bool) -> dict[str, dict[str, list[float]]]:
    """Figures by query and configuration."""
    found: dict[str, dict[str, list[float]]] = {}
    for record in valid(records):
        config, figure = record.config, record.metrics.rps_per_core
        if figure is not None and config.get("source") == "engine" and bool(config.get("preload_events")) == filled:
            found.setdefault(str(config["query"]), {}).setdefault(record.config_id, []).append(figure / 1000)
    return found


def _number(query: str) -> int:
    return int(query[1:])


def ratios(records: Sequence[Record]) -> dict[str, list[float]]:
    """How often Flink's figure on two cores each record from a cold start reaches, by query; only those of its list."""
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


_WHERE = "design target, against Flink on two cores"
NEXMARK = (
    Claim(f"Stateless queries handle at least {STATELESS_RATIO} times Flink's events per core", _WHERE, stateless),
    Claim(f"At least {AHEAD} of the {len(TWO_CORES)} queries handle more events per core than Flink", _WHERE, ahead),
)


def beside(records: Sequence[Record]) -> list[str]:
    """Lines of a Markdown table: Spark here beside the list that was made alike, cold or in steady state.

    None when no query ran as fast as it can.
    """
    cold, filled = per_core(records), per_core(records, filled=True)
    left_out = ambiguous(records)
    if not (cold or filled or left_out):
        return []
    sides = [(cold, "here, from a cold start", TWO_CORES, "Flink, two cores")]
    if filled:
        sides.append((filled, "here, state filled", STEADY, "Flink, steady state, 8 slots"))
    heads = ["query", *(head for _, here, _, flink in sides for head in (here, flink, "ratio"))]
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    for query in sorted(cold.keys() | filled.keys(), key=_number):
        cells = [query]
        for found, _, published, _ in sides:
            cells += _beside(found.get(query), published.get(query))
        lines.append(f"| {' | '.join(cells)} |")
    if left_out:
        lines += ["", f"No figure where measured in more than one configuration: {', '.join(left_out)}."]
    return lines


def _beside(values: Sequence[float] | None, flink: float | None) -> list[str]:
    """Median with least and greatest, Flink's figure, and the ratio of the two."""
    if not values:
        return ["—", "—" if flink is None else f"{flink:,.0f}", "—"]
    spread = f" ({min(values):,.0f}–{max(values):,.0f})" if len(values) > 1 else ""
    ratio = ["—", "—"] if flink is None else [f"{flink:,.0f}", f"{statistics.median(values) / flink:.2f}"]
    return [f"{statistics.median(values):,.0f}{spread}", *ratio]
