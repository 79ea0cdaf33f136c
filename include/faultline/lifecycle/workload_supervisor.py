"""Workload supervisor: run the submitted commands and restart them after a crash.

It restarts a driver as a cluster manager does in production. Each run of a process is an incarnation; all are
journalled and part of the timeline.

    python -m faultline.lifecycle.workload_supervisor --attempt-dir DIR faultline-run=ATTEMPT

`workload.json` in the attempt's folder: {"processes": [{"role", "command", "env", "restart_delay_s", "max_restarts",
"final_statuses"}], "ends_itself"}. Without "ends_itself", the processes are terminated once the attempt's stop file
exists.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from faultline.engines.registry import engine_of_plan
from faultline.experiment.attempt import Attempt
from faultline.experiment.run import Run, run_of
from faultline.system.journal import Journal
from faultline.system.settings import load_settings

TERM_GRACE_S = 10.0
WATCH_INTERVAL_S = 0.25


class _SupervisedProcess:
    """One supervised process: its specification and current incarnation."""

    def __init__(self, specification: Mapping[str, Any]) -> None:
        self.role: str = specification["role"]
        self.command: list[str] = specification["command"]
        self.environment = {**os.environ, **specification["env"]}
        self.restart_delay_s = float(specification["restart_delay_s"])
        self.max_restarts = int(specification["max_restarts"])
        self.final_statuses = {int(status) for status in specification.get("final_statuses", {})}
        self.incarnation = -1
        self.child: subprocess.Popen[bytes] | None = None
        self.returncode = 0
        # Monotonic time of the next start; None while it runs, or if it is not restarted.
        self.restart_at_s: float | None = None


class WorkloadSupervisor:
    """Supervisor of the processes until one exits for good or is stopped; the others then end too."""

    def __init__(self, run: Run, specification: Mapping[str, Any]) -> None:
        self._attempt = run.attempt
        self._processes = [_SupervisedProcess(one) for one in specification["processes"]]
        self._ends_itself = bool(specification["ends_itself"])
        self._guardian = engine_of_plan(run.plan).state_guardian(run)
        self._stop = threading.Event()
        # Processes that have exited; None: `stop` was called.
        self._exits: queue.SimpleQueue[_SupervisedProcess | None] = queue.SimpleQueue()

    def stop(self) -> None:
        """End the processes and this supervisor; safe in a signal handler."""
        self._stop.set()
        for child in [one.child for one in self._processes]:
            if child is not None and child.poll() is None:
                child.terminate()
        self._exits.put(None)

    def run(self) -> int:
        """Return the exit status of the process that exited for good first, else of the first process.

        A negative status is the signal that ended it.
        """
        with Journal(self._attempt.supervisor_journal) as journal:
            for one in self._processes:
                self._start(journal, one)
            final = self._run_until_final_exit(journal) or self._processes[0]
            self._terminate_all(journal)
            journal.write("stop", returncode=final.returncode, sync=True)
        return final.returncode

    def _run_until_final_exit(self, journal: Journal) -> _SupervisedProcess | None:
        """Return the process that is not restarted; None after `stop`."""
        while not self._stop.is_set():
            exited = self._next_exit(1.0 if self._guardian is None else WATCH_INTERVAL_S)
            if exited is not None:
                self._journal_exit(journal, exited)
                if not self._schedule_restart(journal, exited):
                    return exited
            elif self._stop.is_set():
                break
            elif not self._ends_itself and self._attempt.stop_file.exists():
                self.stop()
            elif waiting := [one for one in self._processes if one.restart_at_s is not None]:
                for one in waiting:
                    if one.restart_at_s is not None and one.restart_at_s <= time.monotonic():
                        self._start(journal, one)
            elif self._guardian is not None:
                self._guardian.watch(journal)
        return None

    def _next_exit(self, longest_s: float) -> _SupervisedProcess | None:
        """Return the next process that exits; None on timeout, or when a restart is due."""
        due_s = [one.restart_at_s - time.monotonic() for one in self._processes if one.restart_at_s is not None]
        with contextlib.suppress(queue.Empty):
            return self._exits.get(timeout=max(0.0, min([longest_s, *due_s])))
        return None

    def _schedule_restart(self, journal: Journal, exited: _SupervisedProcess) -> bool:
        if exited.returncode == 0 or self._stop.is_set() or self._attempt.stop_file.exists():
            return False
        # No fault precedes the start barrier, so a restart would crash again.
        if not self._attempt.gate.exists() or exited.returncode in exited.final_statuses:
            return False
        if self._guardian is not None:
            self._guardian.on_driver_exit(journal)
        if exited.incarnation >= exited.max_restarts:
            return False
        journal.write("restart", role=exited.role, delay_s=exited.restart_delay_s)
        exited.restart_at_s = time.monotonic() + exited.restart_delay_s
        return True

    def _start(self, journal: Journal, one: _SupervisedProcess) -> None:
        one.incarnation, one.restart_at_s = one.incarnation + 1, None
        log = self._attempt.engine_logs / f"{one.role}-{one.incarnation}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            one.child = subprocess.Popen(
                one.command,
                env=one.environment,
                cwd=self._attempt.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        process = psutil.Process(one.child.pid)
        journal.write(
            "start", role=one.role, incarnation=one.incarnation, pid=process.pid, create_time=process.create_time()
        )
        threading.Thread(target=self._await_exit, args=(one, one.child), daemon=True).start()

    def _await_exit(self, one: _SupervisedProcess, child: subprocess.Popen[bytes]) -> None:
        one.returncode = child.wait()
        self._exits.put(one)

    def _journal_exit(self, journal: Journal, one: _SupervisedProcess) -> None:
        code, one.child = one.returncode, None
        signum = -code if code < 0 else None
        journal.write("exit", role=one.role, incarnation=one.incarnation, returncode=code, signal=signum, sync=True)

    def _terminate_all(self, journal: Journal) -> None:
        """Terminate all processes, and kill them after a grace period."""
        if not self._stop.is_set():
            self.stop()
        until_s: float | None = time.monotonic() + TERM_GRACE_S
        while running := [one.child for one in self._processes if one.child is not None]:
            try:
                exited = self._exits.get(timeout=None if until_s is None else max(0.0, until_s - time.monotonic()))
            except queue.Empty:
                for child in running:
                    child.kill()
                until_s = None
                continue
            if exited is not None:
                self._journal_exit(journal, exited)


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
