"""Partial traces of a running attempt on Spark, read incrementally from its raw files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from faultline.engines.log_tail import LogTail
from faultline.engines.protocol import Commit, Traces
from faultline.engines.spark import checkpoint
from faultline.engines.spark.collect import application_folders, input_topic
from faultline.engines.spark.driver_log import DriverEvents, parse_driver_log
from faultline.engines.spark.executor_log import ExecutorLogReader, merge_events
from faultline.engines.spark.shared_storage import executor_logs, find_hdfs, find_shared
from faultline.engines.spark.traces import events_of_driver_logs, events_of_executor_logs, events_of_samples
from faultline.engines.supervisor_journal import epochs_of, process_runs_of
from faultline.experiment.run import Run
from faultline.system.errors import InfrastructureError
from faultline.system.journal import JournalReader, Line


class LiveTraces:
    """Incremental reader of one attempt's traces; `traces` parses only what was written since the last call.

    It omits batch times, totals, garbage collection and sizes, which are not needed during a run. It also omits commits
    if the checkpoint is in HDFS, and executor logs if no worker folder is on this machine.
    """

    def __init__(self, run: Run) -> None:
        attempt = self._attempt = run.attempt
        self._settings = run.settings
        self._topic = input_topic(run.plan)
        self._samples = JournalReader(attempt.recorder_journal)
        self._supervisor = JournalReader(attempt.supervisor_journal)
        # First and newest sample of each application; the newest lists all executors.
        self._first: dict[str, Line] = {}
        self._newest: dict[str, Line] = {}
        self._supervised: list[Line] = []
        self._logs: dict[Path, LogTail] = {}
        self._executors: dict[Path, ExecutorLogReader] = {}
        self._drivers: list[DriverEvents] = []

    def traces(self) -> Traces:
        """Return the traces so far.

        Raises InfrastructureError if a journal is broken.
        """
        for line in self._samples.poll():
            if line.get("kind") == "executors":
                application = str(line.get("app_id"))
                self._first.setdefault(application, line)
                self._newest[application] = line
        self._supervised += self._supervisor.poll()
        samples = [*self._first.values(), *self._newest.values()]
        for application, executor, path in self._executor_logs():
            reader = self._executors.setdefault(path, ExecutorLogReader(f"{application}/{executor}"))
            for text in self._new_lines(path):
                reader.read(text)
        for path in sorted(self._attempt.engine_logs.glob("driver-*.log")):
            self._drivers.append(parse_driver_log(self._new_lines(path), path.name))
        drivers = DriverEvents(
            tuple(line for one in self._drivers for line in one.lost_tasks),
            tuple(line for one in self._drivers for line in one.disconnects),
        )
        executors = merge_events([reader.events for reader in self._executors.values()])
        return Traces(
            method="batch",
            commits=tuple(self._commits()),
            events=(*events_of_samples(samples), *events_of_executor_logs(executors), *events_of_driver_logs(drivers)),
            process_runs=process_runs_of(self._supervised),
            epochs=epochs_of(self._supervised),
        )

    def _commits(self) -> list[Commit]:
        if find_hdfs(self._attempt) is not None:
            return []
        with contextlib.suppress(InfrastructureError):  # an epoch that has just started
            return checkpoint.commits_of(self._attempt.checkpoint, self._attempt.lineages, self._topic)
        return []

    def _executor_logs(self) -> Iterator[tuple[str, str, Path]]:
        """Yield application, executor and path of each readable log."""
        if find_shared(self._attempt) is not None:
            for application, executor, name, path in executor_logs(self._attempt):
                if name == "stderr":
                    yield application, executor, path
            return
        for application in self._first:
            for folder in application_folders(application, self._settings):
                for path in folder.glob("*/stderr"):
                    yield application, path.parent.name, path

    def _new_lines(self, path: Path) -> list[str]:
        return self._logs.setdefault(path, LogTail(path)).new_lines()
