"""Sweeps to which something is done while they run: begun, counted, and summed up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from benchmarks.diary import Diary
from benchmarks.figure import Figure, summarise
from benchmarks.installation import LONGEST_SWEEP_S, MATRIX, await_run, form
from benchmarks.leftovers import Tally, series_tally, stray_ports, stray_processes, stray_topics, unclosed
from faultline.experiment.cell import EXPERIMENT
from faultline.experiment.sweep_id import sweep_id_of
from faultline.orchestration.airflow_api import AirflowApi
from faultline.records.store import Store
from faultline.system.errors import ConfigError, InfrastructureError
from faultline.system.settings import Settings
from faultline.system.text import Say
from faultline.system.waiting import wait_until

RATES = [100.0, 150.0]
REPETITIONS = 2
_END_S = 180.0

# Figures by what they sum of a tally.
_COUNTS = {
    "cells": "planned", "cells_once": "once", "lost_records": "lost", "duplicate_records": "double",
    "remeasured": "remeasured", "attempts": "attempts",
}  # fmt: skip
_NEVER = ("lost_records", "duplicate_records", "remeasured")


@dataclass(frozen=True)
class Sweep:
    """One sweep to which something was done `acts` times, with the runs that it took; `seconds` from its trigger to
    its end; `state` that of its last run."""

    series: str
    acts: int
    triggers: int
    seconds: float
    outcome: Tally
    state: str


def new_series(name: str) -> str:
    return f"{name}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"


def trigger(api: AirflowApi, series: str, number: int, diary: Diary) -> str:
    """Triggers a run of the series, which is noted before; returns its id."""
    run_id = f"{series}-{number}"
    diary.note("run", series=series, run_id=run_id)
    api.trigger(MATRIX, form(series, RATES, REPETITIONS), run_id=run_id)
    return run_id


def await_noted(api: AirflowApi, series: str, run_id: str, *, timeout_s: float = LONGEST_SWEEP_S) -> str:
    """The state in which a run ends that an interrupted call noted, and maybe did not come to trigger."""
    try:
        api.run(MATRIX, run_id)
    except ConfigError:
        api.trigger(MATRIX, form(series, RATES, REPETITIONS), run_id=run_id)
    return await_run(api, run_id, timeout_s=timeout_s)


def counted(
    settings: Settings, series: str, runs: Sequence[str], acts: int, seconds: float, state: str, diary: Diary
) -> Sweep:
    """The sweep with its tally, noted."""
    outcome = series_tally(settings, series, [sweep_id_of(run) for run in runs])
    sweep = Sweep(series, acts, len(runs), seconds, outcome, state)
    diary.note("sweep", **asdict(sweep))
    return sweep


def calm(settings: Settings, say: Say) -> None:
    """One experiment to which nothing is done: it cleans up behind the last dead one. Waits until no run is left."""
    api = AirflowApi(settings)
    say("one experiment in peace")
    run_id = new_series("calm")
    api.trigger(MATRIX, form(run_id, RATES[:1], 1), run_id=run_id)
    if (state := await_run(api, run_id)) != "success":
        raise InfrastructureError(f"{run_id}: ended as {state} although nothing was done to it")
    wait_until(
        lambda: not api.runs(EXPERIMENT, "queued", "running"),
        timeout_s=_END_S,
        every_s=1.0,
        what="airflow: the end of every experiment",
    )


def left_behind(settings: Settings, say: Say) -> dict[str, Figure]:
    """What is left of the dead once all is calm, each of which is said; and records that cannot be read."""
    found = {
        "orphan_processes": stray_processes(settings),
        "orphan_ports": stray_ports(settings),
        "orphan_topics": stray_topics(settings),
        "orphan_attempts": unclosed(settings),
    }
    problems = list(Store(settings.results).read().problems)
    for line in [*(line for lines in found.values() for line in lines), *problems]:
        say(line)
    figures = {name: total([len(lines)]) for name, lines in found.items()}
    figures["orphans"] = total([sum(map(len, found.values()))])
    figures["unreadable_records"] = summarise([len(problems)], "1")
    return figures


def sums(sweeps: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
    """Of all sweeps' tallies, runs and seconds; `low` and `high` are those of single sweeps."""
    found = {name: total([sweep["outcome"][key] for sweep in sweeps]) for name, key in _COUNTS.items()}
    found["triggers"] = total([sweep["triggers"] for sweep in sweeps])
    found["wall_s"] = total([sweep["seconds"] for sweep in sweeps], "s")
    return found


def total(values: Sequence[float], unit: str = "1") -> Figure:
    """Their sum; `low` and `high` where single ones say something."""
    return Figure(sum(values), unit, min(values, default=0), max(values, default=0), len(values))


def require_none(name: str, found: Mapping[str, Figure], never: Sequence[str] = ()) -> None:
    """Raises InfrastructureError for what must not be in the benchmark `name`, beside that also figures `never`."""
    forbidden = [figure for figure in found if figure.startswith(("orphan_", "unreadable_"))]
    forbidden += [*_NEVER, *never]
    bad = [f"{figure} {found[figure].value:g}" for figure in forbidden if found[figure].value]
    if bad:
        raise InfrastructureError(f"{name}: {', '.join(bad)}")
