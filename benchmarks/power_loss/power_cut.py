"""Survival of a sweep through power failures, on a disk that drops unsynced writes (root, 45 minutes).

A separate installation lies on a simulated disk. While a sweep of short scripted experiments runs, the disk is shut
down at a random time and all processes are killed. Then the disk is mounted again and `./faultline up` is called: the
sweep must resume by itself. Each power cut is logged outside of that disk, so an interrupted benchmark continues with
the next one.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.broken_sweeps import BenchmarkLog, BrokenSweeps, require_zero, sum_sweeps
from benchmarks.crash import LONGEST_WAIT_S
from benchmarks.figure import BenchmarkFigure, summarise, total
from benchmarks.installation import MATRIX, home_of, own_services
from benchmarks.leak_check import attempts_of
from benchmarks.power_loss.disk import Disk, own_boots, own_disk
from benchmarks.power_loss.durability_check import (
    DurableRecords,
    InstallationProcesses,
    broken_databases,
    broken_tables,
    index_differences,
    refresh_index,
)
from faultline.experiment.cell import sweep_id_of
from faultline.installation.airflow import installation_environment
from faultline.orchestration.airflow_api import FINISHED, AirflowApi
from faultline.system.errors import InfrastructureError
from faultline.system.settings import Settings
from faultline.system.text import Progress
from faultline.system.waiting import wait_until

NAME = "power_cut"
CUTS, QUICK_CUTS = 30, 3
# Size of the disk; its file is sparse.
SIZE_MB = 2048
_POLL_S = 0.5
# Time limits for the start of an experiment and the end of a sweep.
_BEGIN_S, _END_S = 300.0, 1800.0
_UP_S = 600.0
# Figures of a power cut that must be 0.
_MUST_BE_ZERO = ("records_damaged", "databases_damaged", "tables_damaged", "index_differences", "unsaid")


@dataclass(frozen=True)
class Cut:
    """One power failure, `wait_s` seconds after the start of an experiment."""

    number: int
    wait_s: float


@dataclass(frozen=True)
class Power:
    """Disk that loses its power, and function that simulates a reboot."""

    disk: Disk
    new_boot: Callable[[], None]


def plan_cuts(number: int = CUTS, seed: int = 1) -> list[Cut]:
    """Return `number` power cuts at random times of an experiment."""
    rng = random.Random(seed)
    return [Cut(one, rng.uniform(0.0, LONGEST_WAIT_S)) for one in range(number)]


def run(progress: Progress, quick: bool) -> dict[str, BenchmarkFigure]:
    """Run thirty power cuts, or three if `quick`.

    Figures: power cuts, results of cells, records, databases and tables, leftovers, and seconds until the services are
    up and until the sweep resumes. Raises ConfigError without permission to mount a disk, and InfrastructureError
    naming cells that were lost or measured twice, and leftovers.
    """
    diary_name = f"{NAME}-quick.jsonl" if quick else f"{NAME}.jsonl"
    found = run_cuts(plan_cuts(QUICK_CUTS if quick else CUTS), diary_name, progress)
    return found


def run_cuts(cuts: Sequence[Cut], diary_name: str, progress: Progress) -> dict[str, BenchmarkFigure]:
    """Perform the power cuts that the log of this name lacks; raises like `run`."""
    home = home_of(NAME)
    boot = home.with_name(f"{NAME}.boot")
    with own_disk(home, SIZE_MB) as disk, own_boots(boot) as new_boot, own_services(NAME, progress) as settings:
        diary = BenchmarkLog(home.with_name(diary_name), "cut")
        leftovers = PowerCuts(settings, diary, progress, Power(disk, new_boot)).go_through(cuts)
        found = {**figures(diary.sweeps, diary.acts), **leftovers}
    diary.move_aside()  # all cuts are done: the next call measures again
    require_zero(NAME, found, ("red_sweeps", *_MUST_BE_ZERO))
    return found


def figures(sweeps: Sequence[dict[str, Any]], cuts: Sequence[dict[str, Any]]) -> dict[str, BenchmarkFigure]:
    """Return sums over all sweeps and power cuts; for seconds the median."""
    found = {"cuts": total([1.0 for _ in cuts])} | sum_sweeps(sweeps)
    found["red_sweeps"] = total([float(sweep["state"] != "success") for sweep in sweeps])
    found["killed"] = total([cut["killed"] for cut in cuts])
    found["records_kept"] = total([cut["records"] for cut in cuts])
    found |= {name: total([len(cut[name]) for cut in cuts]) for name in _MUST_BE_ZERO}
    found |= {name: summarise([cut[name] for cut in cuts], "s") for name in ("up_s", "goes_on_s") if cuts}
    return found


class PowerCuts(BrokenSweeps[Cut]):
    """Sweeps whose installation loses its power; each is triggered once."""

    name = "power"
    per_sweep = 3
    end_s = _END_S

    def __init__(self, settings: Settings, diary: BenchmarkLog, progress: Progress, power: Power) -> None:
        super().__init__(_current_settings(settings), diary, progress)
        self._power = power

    def deliver(self, cut: Cut, run_id: str) -> bool:
        if not _await_moment(self.settings, cut, run_id):
            return False
        self.note(cut, run_id, **_cut_power(self.settings, self._power, cut, run_id, self.progress))
        self.settings = _current_settings(self.settings)
        return True


def _await_moment(settings: Settings, cut: Cut, run_id: str) -> bool:
    """Wait until `cut.wait_s` after the start of another experiment of the sweep.

    Returns False if the sweep ends before.
    """
    api, before = AirflowApi(settings), _attempts(settings, run_id)
    began, due = time.monotonic(), 0.0
    while not due or time.monotonic() < due:
        if api.run_state(MATRIX, run_id) in FINISHED:
            return False
        if not due and _attempts(settings, run_id) - before:
            due = time.monotonic() + cut.wait_s
        if not due and time.monotonic() - began > _BEGIN_S:
            raise InfrastructureError(f"{run_id}: no experiment started within {_BEGIN_S:g} s")
        refresh_index(settings)
        time.sleep(min(_POLL_S, max(0.0, due - time.monotonic())) if due else _POLL_S)
    return True


def _cut_power(settings: Settings, power: Power, cut: Cut, run_id: str, progress: Progress) -> dict[str, Any]:
    """Cut the power and restore it; return the facts to log."""
    processes, done = InstallationProcesses.of(settings), _records(settings, run_id)
    alive, kept = processes.alive(), DurableRecords.of(settings)
    power.disk.cut()
    try:
        killed = processes.kill(alive)
    finally:
        power.disk.detach()
        power.disk.attach()
        power.new_boot()
    progress(f"cut {cut.number}: at {cut.wait_s:.1f} s, {killed} processes, {len(kept.records)} records on the disk")
    damaged = {"databases_damaged": broken_databases(settings), "tables_damaged": broken_tables(settings)}
    before = _attempts(settings, run_id)

    def is_resumed() -> bool:
        return bool(_attempts(settings, run_id) - before) or _records(settings, run_id) > done

    output, up_s, goes_on_s = _call_up(settings, run_id, is_resumed, progress)
    facts: dict[str, Any] = {
        "killed": killed,
        "records": len(kept.records),
        "young": len(kept.young),
        **damaged,
        "records_damaged": kept.damage(settings),
        "index_differences": index_differences(settings),
        "unsaid": [] if f"{run_id}: running" in output else [run_id],
        "up_s": up_s,
        "goes_on_s": goes_on_s,
    }
    for name in _MUST_BE_ZERO:
        for line in facts[name]:
            progress(f"cut {cut.number}: {name}: {line}")
    return facts


def _call_up(
    settings: Settings, run_id: str, is_resumed: Callable[[], bool], progress: Progress
) -> tuple[str, float, float]:
    """Call `up` like a user; return its output, and the seconds until its end and until the run resumes or ends.

    Raises InfrastructureError if `up` fails, or if the run does not resume.
    """
    began, times = time.monotonic(), dict[str, float]()
    with tempfile.TemporaryFile("w+") as output:
        call = subprocess.Popen(
            [sys.executable, "-P", "-m", "faultline", "up"],
            env={**os.environ, **installation_environment(settings)},
            cwd=settings.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=output,
        )

        def both() -> bool:
            if "up" not in times and call.poll() is not None:
                times["up"] = time.monotonic() - began
            ended = (
                call.returncode == 0 and AirflowApi(_current_settings(settings)).run_state(MATRIX, run_id) in FINISHED
            )
            if "goes_on" not in times and (is_resumed() or ended):
                times["goes_on"] = time.monotonic() - began
            return len(times) == 2 or bool(call.returncode)

        try:
            wait_until(both, timeout_s=_UP_S, every_s=_POLL_S, what=f"{run_id}: resumption after a power cut")
        finally:
            call.kill()
            call.wait()
        output.seek(0)
        text = output.read()
    for line in text.splitlines():
        progress(f"  up: {line}")
    if call.returncode:
        raise InfrastructureError(f"{NAME}: `up` failed after a power cut: {text.strip() or 'no message'}")
    return text, times["up"], times["goes_on"]


def _attempts(settings: Settings, run_id: str) -> set[str]:
    """Return the ids of the sweep's attempts."""
    return {attempt.id for attempt in attempts_of(settings, sweep_id_of(run_id))}


def _records(settings: Settings, run_id: str) -> set[str]:
    """Return the ids of the sweep's attempts with a record."""
    present = {path.stem for path in settings.records.glob("*/[!.]*.json")}
    return present & _attempts(settings, run_id)


def _current_settings(settings: Settings) -> Settings:
    """Return the settings with the ports that the last `up` chose."""
    try:
        ports = json.loads((settings.home / "ports.json").read_text())
    except (OSError, ValueError) as error:
        raise InfrastructureError(f"{settings.home / 'ports.json'}: {error}") from None
    return replace(settings, ports={**settings.ports, **ports})
