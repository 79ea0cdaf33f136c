"""The workload supervisor: runs what the engine submits, and starts it again when it dies.

It stands for the cluster manager that a production driver has. Each life of the driver is an
incarnation; all of them are journalled, and belong to the timeline.

    python -m faultline.lifecycle.workload_supervisor --attempt-dir DIR faultline-run=ATTEMPT

`workload.json` in the attempt's folder: {"command", "env", "restart_delay_s", "max_restarts",
"ends_itself"}; one that does not end by itself is ended by a signal once the attempt's stop file is there.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import psutil

from faultline.engines.registry import engine_at
from faultline.experiment.attempt import Attempt
from faultline.experiment.run import Run, run_of
from faultline.system.journal import Journal
from faultline.system.settings import load_settings

TERM_GRACE_S = 10.0
WATCH_EVERY_S = 0.25


class WorkloadSupervisor:
    """Keeps one command running until it ends by itself, is stopped, or has died too often."""

    def __init__(self, run: Run, specification: dict[str, Any]) -> None:
        self._attempt = run.attempt
        self._command: list[str] = specification["command"]
        self._environment = {**os.environ, **specification["env"]}
        self._restart_delay_s = float(specification["restart_delay_s"])
        self._max_restarts = int(specification["max_restarts"])
        self._ends_itself = bool(specification.get("ends_itself", True))
        self._guardian = engine_at(run.plan).guardian(run)
        self._stop = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None

    def stop(self) -> None:
        """Ends the driver and with it this supervisor; may be called from a signal handler."""
        self._stop.set()
        if self._child and self._child.poll() is None:
            self._child.terminate()

    def run(self) -> int:
        """Returns the exit status of the last incarnation; negative: the signal that ended it."""
        with Journal(self._attempt.supervisor_journal) as journal:
            for incarnation in range(self._max_restarts + 1):
                code = self._incarnate(journal, incarnation)
                if code == 0 or self._stop.is_set() or self._attempt.stop_file.exists():
                    break
                # No fault comes before the gate: what ends by itself there would end again.
                if not self._attempt.gate.exists():
                    break
                if self._guardian is not None:
                    self._guardian.driver_died(journal)
                if incarnation < self._max_restarts:
                    journal.write("restart", delay_s=self._restart_delay_s)
                    if self._stop.wait(self._restart_delay_s):
                        break
            journal.write("stop", returncode=code, sync=True)
        return code

    def _incarnate(self, journal: Journal, incarnation: int) -> int:
        log = self._attempt.engine_logs / f"driver-{incarnation}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            self._child = subprocess.Popen(
                self._command,
                env=self._environment,
                cwd=self._attempt.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            process = psutil.Process(self._child.pid)
            journal.write("start", incarnation=incarnation, pid=process.pid, create_time=process.create_time())
            code = self._wait(journal)
        journal.write("exit", incarnation=incarnation, returncode=code, signal=-code if code < 0 else None, sync=True)
        return code

    def _wait(self, journal: Journal) -> int:
        assert self._child is not None
        every_s = 1.0 if self._guardian is None else WATCH_EVERY_S
        while not self._stop.is_set():
            try:
                return self._child.wait(timeout=every_s)
            except subprocess.TimeoutExpired:
                if not self._ends_itself and self._attempt.stop_file.exists():
                    self.stop()
                elif self._guardian is not None and not self._stop.is_set():
                    self._guardian.watch(journal)
        try:
            return self._child.wait(timeout=TERM_GRACE_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            return self._child.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attempt-dir", type=Path, required=True)
    options, _ = parser.parse_known_args()
    attempt = Attempt(options.attempt_dir)
    run = run_of(attempt, load_settings())
    supervisor = WorkloadSupervisor(run, json.loads((attempt.folder / "workload.json").read_text()))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: supervisor.stop())
    code = supervisor.run()
    return 0 if code == 0 else 1


if __name__ == "__main__":
    raise SystemExit(main())
