"""Faultline's own speed: the benchmarks of it one after another, and the page that says what they came to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from faultline.system.errors import FaultlineError
from faultline.system.text import Progress, one_line

Outcome = Mapping[str, Any]

# What each measures, in words; the benchmarks of speed, in the order in which they run.
SPEED: Mapping[str, str] = {
    "generator": "One generator process beside Kafka's own `ProducerPerformance`: same broker, record size, "
    "acknowledgements and partitions, in turns. Ratios are of records a second.",
    "overhead": "What an experiment costs beside its warm-up and its measured window, in a sweep and alone, by step.",
    "recorder": "What the recorder and the services take of a core in the measured windows of a sweep, and how much of "
    "it gave way.",
    "fault_timing": "How far the instant of a SIGKILL lies from the one that was planned.",
    "harvest": "How the harvest of an experiment grows with its tuples; an exponent of 1 is linear.",
    "aggregate": "How the tables over all records grow with the tuples behind them.",
    "page": "How long the results page takes over many records.",
}
HEAD = """\
# Faultline's own speed

What `./faultline bench` came to on the machine below. A figure is the median of `n` repetitions, between the least and
the greatest of them. Ratios are of figures that one run measured in turns: times themselves belong to this machine.

| | |
| --- | --- |
"""


@dataclass(frozen=True)
class Failure:
    """A benchmark that gave no figures, and why, in one line."""

    name: str
    reason: str


def run_all(
    run: Callable[[str], Outcome], say: Progress, names: Sequence[str] = tuple(SPEED)
) -> tuple[list[Outcome], list[Failure]]:
    """Runs each benchmark by `run`; one that fails keeps none of the others from running."""
    outcomes, failures = [], []
    for name in names:
        say(f"bench {name}")
        try:
            outcomes.append(run(name))
        except FaultlineError as error:
            failures.append(Failure(name, one_line(str(error))))
            say(f"bench {name}: {failures[-1].reason}")
    return outcomes, failures


def page(
    outcomes: Sequence[Outcome], failures: Sequence[Failure], *, build: str, quick: bool, now: datetime | None = None
) -> str:
    """The document as Markdown; `build`: the revision of Faultline that was measured."""
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
