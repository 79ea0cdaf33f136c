"""Fixed cost of an experiment, by step: time outside its warm-up and measured window.

It is measured over a sweep, because an experiment starts during the harvest of the previous one.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from benchmarks.figure import BenchmarkFigure, summarise
from benchmarks.installation import await_run
from benchmarks.leak_check import attempts_of
from faultline.cli.service_control import bring_up
from faultline.cli.sweep_runner import await_dags
from faultline.experiment.attempt import Attempt
from faultline.experiment.cell import sweep_id_of
from faultline.experiment.config import parse_configuration
from faultline.orchestration.airflow_api import AirflowApi
from faultline.system.journal import find_last, read_journal
from faultline.system.settings import Settings
from faultline.system.text import Progress

MATRIX = "state_size_x_checkpoint_interval"
# The default word count with a kill, a cell like those of the demo.
WARMUP_S, DURATION_S = 20.0, 55.0
QUICK_WARMUP_S, QUICK_DURATION_S = 5.0, 10.0
REPETITIONS = 6
TIMEOUT_S = 3600.0
# Steps of an experiment, in order; `steps_of` defines their limits.
STEPS = ("processes", "engine", "warm", "gate", "drain", "harvest", "judge", "close")


def run(progress: Progress, quick: bool) -> dict[str, BenchmarkFigure]:
    """Run a sweep of six default word counts, or of six short ones if `quick`.

    Figures: `fixed_s`, time from one T0 (start of the warm-up) to the next, less warm-up and window; `single_s`, time
    of a single experiment outside these; `share`, share of the fixed cost in a default experiment; seconds of each
    step.
    """
    settings = bring_up(progress)
    warmup_s, duration_s = (QUICK_WARMUP_S, QUICK_DURATION_S) if quick else (WARMUP_S, DURATION_S)
    attempts = sweep(settings, REPETITIONS, warmup_s, duration_s, progress)
    own = {one.id for one in attempts}
    foreign = [gate for one in attempts_of(settings) if one.id not in own and (gate := gate_s(one)) is not None]
    return figures(attempts, warmup_s + duration_s, foreign)


def sweep(
    settings: Settings, repetitions: int, warmup_s: float, duration_s: float, progress: Progress
) -> list[Attempt]:
    """Measure one cell `repetitions` times in a new sweep; return its attempts in the order of T0."""
    series = f"overhead-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    default = parse_configuration({})
    form = {
        "state_mb": [default.state_mb], "checkpoint_interval_s": [default.checkpoint_interval_s],
        "fault": [default.fault],
        "series": series, "repetitions": repetitions, "controls": 0, "max_measurements": 1,
        "warmup_s": warmup_s, "duration_s": duration_s,
    }  # fmt: skip
    if duration_s < DURATION_S:
        form |= {"fault": ["none"], "checkpoint_interval_s": [1.0]}
    api = AirflowApi(settings)
    await_dags(api, MATRIX)
    run_id = api.trigger(MATRIX, form, run_id=series)
    await_run(api, run_id, MATRIX, timeout_s=TIMEOUT_S)
    measured = [one for one in attempts_of(settings, sweep_id_of(run_id)) if gate_s(one) is not None]
    for one in measured:
        progress(f"{one.id}: " + ", ".join(f"{name} {seconds:.1f}" for name, seconds in steps_of(one).items()) + " s")
    return sorted(measured, key=lambda one: gate_s(one) or 0.0)


def figures(attempts: Sequence[Attempt], window_s: float, foreign: Sequence[float] = ()) -> dict[str, BenchmarkFigure]:
    """Return the figures of attempts in the order of T0.

    `foreign`: T0 of other experiments, in seconds since the epoch. Time between two attempts does not count if it
    contains one of them.
    """
    gates = [gate_s(one) or 0.0 for one in attempts]
    fixed = [
        later - earlier - window_s
        for earlier, later in pairwise(gates)
        if not any(earlier < gate < later for gate in foreign)
    ]
    steps = [steps_of(one) for one in attempts]
    found = {"fixed_s": summarise(fixed, "s")} if fixed else {}
    if fixed:
        default_s = WARMUP_S + DURATION_S
        found["share"] = summarise([cost / (cost + default_s) for cost in fixed], "1")
    found["single_s"] = summarise([sum(one.values()) for one in steps], "s")
    for name in STEPS:
        if values := [one[name] for one in steps if name in one]:
            found[f"step_{name}_s"] = summarise(values, "s")
    return found


def gate_s(attempt: Attempt) -> float | None:
    """Return T0 in seconds since the epoch; None if it was never reached."""
    gate = find_last(read_journal(attempt.conductor_journal), event="gate")
    return None if gate is None else int(gate["t0_wall_ns"]) / 1e9


def steps_of(attempt: Attempt) -> dict[str, float]:
    """Return the seconds of each step of a measured attempt, by STEPS; steps without data are omitted.

    processes: start of the attempt to the start of the engine · engine: to the start of its query · warm: to the
    query's first commit · gate: to T0 · drain: end of the schedule to the end of all processes · harvest, judge, close:
    to the last table, to the record's series, to the end of the attempt.
    """
    began_s, gate = attempt.begun_at_ns() / 1e9, gate_s(attempt)
    marks: list[tuple[str, float | None]] = [
        ("processes", _first(attempt.supervisor_journal, "start")),
        ("engine", _first(attempt.listener_journal, "started")),
        ("warm", _first(attempt.listener_journal, "progress")),
        ("gate", gate),
    ]
    found = _spans(began_s, marks)
    files = {"drain": "end.json", "harvest": "harvest/counts.parquet", "judge": "series.json", "close": "closed.json"}
    done = _first(attempt.conductor_journal, "done")
    after = [(name, _changed(attempt, file)) for name, file in files.items()]
    return found | (_spans(done, after) if done else {})


def _spans(began_s: float, marks: Sequence[tuple[str, float | None]]) -> dict[str, float]:
    found, before = {}, began_s
    for name, at_s in marks:
        if at_s is not None:
            found[name], before = at_s - before, at_s
    return found


def _first(journal: Any, event: str) -> float | None:
    return next((int(line["wall_ns"]) / 1e9 for line in read_journal(journal) if line.get("event") == event), None)


def _changed(attempt: Attempt, name: str) -> float | None:
    file = attempt.folder / name
    return file.stat().st_mtime if file.exists() else None
