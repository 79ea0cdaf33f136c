"""What watches an experiment, and what else of ours runs beside it: the cores that both take from what is measured.

The real recorder samples an attempt of thirty processes that do nothing; the services are left alone while a window is
held open, as one is while an experiment is measured.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from faultline.base.attempt import Attempt, write_json
from faultline.base.errors import InfrastructureError
from faultline.base.journal import read_journal
from faultline.base.machine_lock import RECORDER
from faultline.base.processes import end_processes, spawn_detached
from faultline.base.settings import Settings
from faultline.base.text import Say
from faultline.base.waiting import wait_until
from faultline.base.window_lock import window
from faultline.bench.figure import summarise
from faultline.bench.topics import fresh_topics
from faultline.client.operations import bring_up
from faultline.cluster.daemon import Supervisor

PROCESSES = 30
SECONDS, QUICK_SECONDS = 30.0, 10.0
TIMES = 5
# The first samples read every process's command line, once.
SETTLE_S = 5.0
# Parts of what is measured itself.
MEASURED = ("kafka", "spark-worker-1", "spark-worker-2")


def run(say: Say, quick: bool) -> dict[str, dict[str, Any]]:
    """Figures: `recorder_cores` at 30 processes, `recorder_late` samples, `services_cores` beside a window."""
    settings = bring_up(say)
    seconds = QUICK_SECONDS if quick else SECONDS
    used, late = [], []
    with recording(settings, PROCESSES) as (recorder, attempt):
        time.sleep(SETTLE_S)
        for _ in range(TIMES):
            used.append(cores(lambda: _seconds_of([recorder]), seconds))
            say(f"recorder: {used[-1]:.4f} cores at {PROCESSES} processes")
        late.append(sum(line.get("kind") == "overrun" for line in read_journal(attempt.recorder_journal)))
    beside = []
    with window(settings.window_lock):
        time.sleep(SETTLE_S)
        for _ in range(TIMES):
            beside.append(cores(lambda: _services(settings), seconds))
            say(f"services: {beside[-1]:.4f} cores beside a window")
    return {
        "recorder_cores": asdict(summarise(used, "cores")),
        "recorder_late": asdict(summarise(late, "samples")),
        "services_cores": asdict(summarise(beside, "cores")),
    }


def cores(counter: Callable[[], float], seconds: float) -> float:
    """By how much a counter of CPU seconds grows in a second of the next `seconds`."""
    before, began = counter(), time.monotonic()
    time.sleep(seconds)
    return (counter() - before) / (time.monotonic() - began)


@contextlib.contextmanager
def recording(settings: Settings, processes: int) -> Iterator[tuple[psutil.Process, Attempt]]:
    """A recorder at work on an attempt with so many processes; all of it is ended and removed on the way out."""
    with (
        fresh_topics(settings.endpoints.kafka, 4) as topics,
        tempfile.TemporaryDirectory(prefix="faultline-recorder-") as folder,
    ):
        attempt = Attempt(Path(folder) / "recorded")
        attempt.logs.mkdir(parents=True)
        write_json(attempt.folder / "attempt.json", {
            "config": {"workload": "word_count"},
            "kafka": {"bootstrap": settings.endpoints.kafka},
            "topics": {"input": topics[0]},
            # Nobody answers there: asking costs as much as an answer that says little.
            "spark": {"ui": "http://127.0.0.1:9"},
        })  # fmt: skip
        idle = [sys.executable, "-c", "import time; time.sleep(3600)"]
        started = []
        try:
            for number in range(processes):
                entry = spawn_detached(
                    idle, role=f"idle-{number}", attempt=attempt.id, ledger=attempt.ledger,
                    stdout=Path(os.devnull), stderr=Path(os.devnull), cwd=settings.root,
                )  # fmt: skip
                started.append(psutil.Process(entry.pid))
            recorder = psutil.Popen(
                [
                    *(sys.executable, "-m", RECORDER, "--attempt-dir", str(attempt.folder)),
                    *("--machine", settings.machine, "--turn", str(Path(folder) / "turn.json")),
                ],
                stderr=subprocess.PIPE,
                text=True,
            )
            started.append(recorder)
            wait_until(
                lambda: any(line.get("kind") == "proc" for line in read_journal(attempt.recorder_journal)),
                timeout_s=60.0,
                what="recorder: its first sample",
                alive=lambda: None if recorder.poll() is None else str(recorder.communicate()[1])[-300:],
            )
            yield recorder, attempt
        finally:
            end_processes(started)


def _services(settings: Settings) -> float:
    """CPU seconds of all that runs the experiments, since each process started."""
    pids = {name: pid for name, pid in Supervisor(settings).pids().items() if name not in MEASURED}
    if not pids:
        raise InfrastructureError("services: none runs; ./faultline up first")
    found: dict[int, psutil.Process] = {}
    for pid in pids.values():
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            found |= {one.pid: one for one in (process, *process.children(recursive=True))}
    return _seconds_of(found.values())


def _seconds_of(processes: Any) -> float:
    total = 0.0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total
