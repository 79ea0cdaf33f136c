"""Self-benchmark history: figures of the benchmarks, judged like those of experiments.

A run stores the output of `./faultline bench NAME --quick --json` for each benchmark in one file. Runs of one build are
pooled, builds are never averaged, and a run is compared with runs on an equal machine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faultline.comparison.compare import Comparison, ComparisonVerdict, compare, series_noise
from faultline.comparison.nightly_history import verdict_counts
from faultline.comparison.nightly_verdict import NightlyVerdict
from faultline.comparison.statistics.estimate import Values, exact_values, median_of

# Prefixes of figures of which more is better; of all others less is: seconds, cores, megabytes, errors, exponents.
MORE_IS_BETTER = ("ratio_", "records_per_", "efficiency_")
# Properties in which machines must agree to be comparable; their load does not count.
OF_A_MACHINE = ("cores", "memory_mb", "system", "python")


@dataclass(frozen=True)
class SpeedRun:
    """One self-benchmark run.

    `figures`: repetitions by `<benchmark>.<figure>`. `failed`: benchmarks without figures.
    """

    date: str
    build: str
    machine: tuple[str, ...]
    figures: Mapping[str, Values]
    failed: tuple[str, ...] = ()

    @property
    def day(self) -> str:
        """Date without the time."""
        return self.date[:10]


def judge_speed(run: SpeedRun, runs: Sequence[SpeedRun], window: int) -> NightlyVerdict:
    """Compare a run with those of the newest build among the last `window` runs on an equal machine."""
    before = [one for one in runs if one.date < run.date and one.machine == run.machine and one.figures]
    before = sorted(before, key=lambda one: one.date)[-window:]
    baseline = [one for one in before if one.build == before[-1].build]
    known: dict[str, Any] = {"date": run.date, "build": run.build, "baseline": tuple(one.date for one in baseline)}
    if not run.figures or not baseline:
        why = "no earlier run on an equal machine" if run.figures else "no benchmark has a figure"
        return NightlyVerdict(**known, summary="nothing to compare", problem=f"{run.day}: {why}")
    pairs, floors = {}, {}
    for name, after in run.figures.items():
        sides = [one.figures[name] for one in baseline if name in one.figures]
        if sides:
            pairs[name] = ([value for side in sides for value in side], after)
            floors[name] = series_noise(sides)
    found: dict[str, Comparison] = {}
    for lower in (True, False):
        chosen = {name: pair for name, pair in pairs.items() if lower is not _more_is_better(name)}
        found |= compare(chosen, lower_is_better=lower, floors=floors)
    verdicts = [one.verdict for one in found.values()]
    summary = verdict_counts({one: verdicts.count(one) for one in ComparisonVerdict}, [one.day for one in baseline])
    worse = (name for name in pairs if found[name].verdict is ComparisonVerdict.WORSE)
    reasons = tuple(_line(name, found[name]) for name in worse)
    return NightlyVerdict(**known, summary=summary if found else "nothing to compare", reasons=reasons)


def read_runs(folder: Path) -> list[SpeedRun]:
    """Return the runs stored in a folder, the oldest first."""
    return [_run_of(json.loads(file.read_text())) for file in sorted(folder.glob("*.json"))]


def as_json(
    date: str, build: str, outcomes: Sequence[Mapping[str, Any]], failures: Mapping[str, str]
) -> dict[str, Any]:
    """Return a run in its stored form. `outcomes`: results of benchmarks; `failures`: reasons by failed benchmark."""
    return {"schema": 1, "date": date, "build": build, "outcomes": list(outcomes), "failures": dict(failures)}


def _run_of(kept: Mapping[str, Any]) -> SpeedRun:
    outcomes = kept["outcomes"]
    machine = outcomes[0]["machine"] if outcomes else {}
    return SpeedRun(
        date=kept["date"],
        build=kept["build"],
        machine=tuple(str(machine.get(key)) for key in OF_A_MACHINE),
        figures={
            f"{outcome['name']}.{name}": exact_values(figure["values"])
            for outcome in outcomes
            for name, figure in outcome["figures"].items()
        },
        failed=tuple(kept["failures"]),
    )


def _more_is_better(name: str) -> bool:
    return name.partition(".")[2].startswith(MORE_IS_BETTER)


def _line(name: str, one: Comparison) -> str:
    change = "" if one.change is None else f", {one.change.value:+.0%} ({one.change.low:+.0%}…{one.change.high:+.0%})"
    return f"{name}: {median_of(one.before):.4g} -> {median_of(one.after):.4g}{change}, p = {one.p:.2g}"
