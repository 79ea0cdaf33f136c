"""Partial traces of a running attempt on Flink, read incrementally from its raw files."""

from __future__ import annotations

from pathlib import Path

from faultline.engines.flink import traces as own
from faultline.engines.flink.job_log import JobLog, parse_job_log
from faultline.engines.flink.sampler import CHECKPOINT
from faultline.engines.log_tail import LogTail
from faultline.engines.protocol import Traces
from faultline.engines.supervisor_journal import process_runs_of
from faultline.experiment.attempt import Attempt
from faultline.system.journal import JournalReader, Line


class LogTails:
    """Incremental reader of the logs in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._logs: dict[Path, tuple[LogTail, JobLog]] = {}

    def read(self, pattern: str) -> list[JobLog]:
        """Return the logs whose names match, by name; only new lines are parsed."""
        found = []
        for path in sorted(self._folder.glob(pattern)):
            tail, log = self._logs.setdefault(path, (LogTail(path), JobLog()))
            # The logger writes a message and its exception at once, so a call gets both.
            found.append(parse_job_log(tail.new_lines(), path.name, log))
        return found


class LiveTraces:
    """Incremental reader of one attempt's traces; `traces` parses only what was written since the last call.

    It omits garbage collection, sizes and exits, which are not needed during a run.
    """

    def __init__(self, attempt: Attempt) -> None:
        self._logs = LogTails(attempt.engine_logs)
        self._samples = JournalReader(attempt.recorder_journal)
        self._supervisor = JournalReader(attempt.supervisor_journal)
        self._checkpoints: list[Line] = []
        self._supervised: list[Line] = []

    def traces(self) -> Traces:
        """Return the traces so far.

        Raises InfrastructureError if a journal is broken.
        """
        self._checkpoints += [line for line in self._samples.poll() if line.get("kind") == CHECKPOINT]
        self._supervised += self._supervisor.poll()
        managers, workers = self._logs.read(own.JOB_MANAGER_LOGS), self._logs.read(own.TASK_MANAGER_LOGS)
        return Traces(
            method=own.METHOD,
            per_record=True,
            commits=tuple(own.commits_of(managers, self._checkpoints)),
            events=tuple(own.events_of(managers, workers)),
            process_runs=process_runs_of(self._supervised),
        )
