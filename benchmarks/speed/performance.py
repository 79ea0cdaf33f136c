"""All self-benchmarks in turn, and the page with their figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from faultline.system.errors import FaultlineError
from faultline.system.text import Progress, one_line

Outcome = Mapping[str, Any]

# Description of each self-benchmark, in the order of execution.
SPEED: Mapping[str, str] = {
    "generator": "One generator process and Kafka's `ProducerPerformance` in turn: same broker, record size, "
    "acknowledgements and partitions. Ratios are of records per second.",
    "overhead": "Time of an experiment outside its warm-up and measured window, in a sweep and alone, by step.",
    "recorder": "Cores used by the recorder and the services in the measured windows of a sweep, and how much of "
    "that had lowered priority.",
    "fault_timing": "Difference between the actual and the planned time of a SIGKILL.",
    "harvest": "Growth of the harvest of an experiment with its tuples; an exponent of 1 is linear.",
    "aggregate": "Growth of the tables over all records with their tuples.",
    "page": "Response time of the results pages with many records.",
}
HEAD = """\
# Faultline's own speed

Figures of `./faultline bench` on the machine below: the median of `n` repetitions with their minimum and maximum.
Ratios compare figures that one run measured in turn; times depend on the machine.

| | |
| --- | --- |
"""


@dataclass(frozen=True)
class Failure:
    """Benchmark without figures, and the reason in one line."""

    name: str
    reason: str


def run_all(
    run: Callable[[str], Outcome], progress: Progress, names: Sequence[str] = tuple(SPEED)
) -> tuple[list[Outcome], list[Failure]]:
    """Run each benchmark by `run`; a failure does not stop the others."""
    outcomes, failures = [], []
    for name in names:
        progress(f"bench {name}")
        try:
            outcomes.append(run(name))
        except FaultlineError as error:
            failures.append(Failure(name, one_line(str(error))))
            progress(f"bench {name}: {failures[-1].reason}")
    return outcomes, failures


def page(
    outcomes: Sequence[Outcome], failures: Sequence[Failure], *, build: str, quick: bool, now: datetime | None = None
) -> str:
    """Return the page as Markdown; `build`: the measured revision of Faultline."""
    measured = (now or datetime.now(UTC)).strftime("%d %B %Y, %H:%M UTC")
    machine = outcomes[0]["machine"] if outcomes else {}
    about = {
        "measured": measured + (", in the quick form" if quick else ""),
        "build": build,
        "machine": ", ".join(f"{key} {value}" for key, value in machine.items() if key != "load_1m"),
    }
    parts = [HEAD + "".join(f"| {key} | {value} |\n" for key, value in about.items())]
    parts += [_section(outcome) for outcome in outcomes]
    parts += [
        f"## {failure.name}\n\n{SPEED.get(failure.name, '')}\n\n*No figures:* {failure.reason}\n"
        for failure in failures
    ]
    return "\n".join(parts)


def _section(outcome: Outcome) -> str:
    rows = []
    for name, figure in outcome["figures"].items():
        value, low, high = (f"{figure[key]:,.4g}" for key in ("value", "low", "high"))
        rows.append(f"| `{name}` | {value} | {low} | {high} | {figure['n']} | {figure['unit']} |")
    head = ["| figure | median | least | greatest | n | unit |", "| --- | ---: | ---: | ---: | ---: | --- |"]
    return "\n".join([f"## {outcome['name']}", "", SPEED.get(outcome["name"], ""), "", *head, *rows, ""])
