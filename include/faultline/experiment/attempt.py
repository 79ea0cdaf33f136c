"""Attempt, one try to measure a cell: its id, its folder and the paths of its files."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import socket
import stat
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from faultline.system.errors import InfrastructureError
from faultline.system.files import write_json as write_json
from faultline.system.journal import read_journal

_ID = re.compile(r"(\d{8}T\d{6}Z)-[0-9a-f]{6}")
_TIME = "%Y%m%dT%H%M%SZ"


def new_attempt_id(attempts: Path) -> str:
    """Return a new id, UTC time and six random hex digits, such as 20261121T061500Z-3fa9c1.

    Ids sort attempts by age. If the clock was set back, so that a folder in `attempts` has a later time, the new id has
    the time one second after the newest folder.
    """
    now = f"{datetime.now(UTC):{_TIME}}"
    names = os.listdir(attempts) if attempts.is_dir() else []
    last = max((found[1] for name in names if (found := _ID.fullmatch(name))), default="")
    if last > now:
        with contextlib.suppress(ValueError, OverflowError):  # not a valid time
            now = f"{datetime.strptime(last, _TIME) + timedelta(seconds=1):{_TIME}}"
    return f"{now}-{secrets.token_hex(3)}"


@dataclass(frozen=True)
class Attempt:
    """Folder of one attempt and the paths of its raw files; see docs/reference/files.md for their formats."""

    folder: Path

    @property
    def id(self) -> str:
        return self.folder.name

    @property
    def plan(self) -> Path:
        """Plan of the attempt, written by `prepare`; the oldest attempts have none."""
        return self.folder / "plan.json"

    @property
    def ledger(self) -> Path:
        """List of the processes that the attempt started."""
        return self.folder / "ledger.jsonl"

    @property
    def gate(self) -> Path:
        """Start barrier: every process waits for this file, which holds T0, the start of the load."""
        return self.folder / "gate.json"

    @property
    def load_end(self) -> Path:
        """End of the load if it is before the end of the schedule; written during the run."""
        return self.folder / "load_end.json"

    @property
    def generator_journal(self) -> Path:
        return self.folder / "generator.jsonl"

    @property
    def recorder_journal(self) -> Path:
        return self.folder / "recorder.jsonl"

    @property
    def host_journals(self) -> Path:
        """Journals of other hosts, one file each."""
        return self.folder / "hosts"

    @property
    def supervisor_journal(self) -> Path:
        return self.folder / "supervisor.jsonl"

    @property
    def conductor_journal(self) -> Path:
        """Journal of the fault scheduler."""
        return self.folder / "conductor.jsonl"

    @property
    def listener_journal(self) -> Path:
        return self.folder / "listener.jsonl"

    @property
    def traces(self) -> Path:
        """Traces of an engine that writes them itself."""
        return self.folder / "traces.jsonl"

    @property
    def checkpoint(self) -> Path:
        """Checkpoint of the query; removed by the teardown, after the harvest has read it.

        In commit mode `none`: a link to the checkpoint of the current state epoch (the state history since the last
        deliberate state loss), on the RAM disk.
        """
        return self.folder / "checkpoint"

    @property
    def scratch(self) -> Path:
        """Temporary files of the workload's JVMs, such as unpacked libraries; a killed JVM does not remove them."""
        return self.folder / "scratch"

    @property
    def sink(self) -> Path:
        """Folder for files of a user job, kept until the harvest."""
        return self.scratch / "sink"

    @property
    def lineages(self) -> Path:
        """Offset and commit logs of earlier state epochs, one folder each."""
        return self.folder / "lineages"

    @property
    def services_journal(self) -> Path:
        """Journal of the services started during the attempt."""
        return self.folder / "services.jsonl"

    @property
    def stop_file(self) -> Path:
        """Marker file that asks the workload to stop."""
        return self.folder / "stop"

    @property
    def closed(self) -> Path:
        """End marker, written last by the teardown; no step can be repeated afterwards."""
        return self.folder / "closed.json"

    @property
    def unhealed(self) -> Path:
        """Marker that replaces `closed` if the teardown could not undo a fault; its key `why` has the reason.

        The rest of the teardown is complete; the next `prepare` retries the undo.
        """
        return self.folder / "unhealed.json"

    @property
    def over(self) -> Path | None:
        """File `closed` or `unhealed`, whichever exists; None while the attempt is open."""
        return next((file for file in (self.closed, self.unhealed) if file.exists()), None)

    @property
    def job(self) -> Path:
        """Copy of the user files under test."""
        return self.folder / "job"

    @property
    def harvest(self) -> Path:
        return self.folder / "harvest"

    @property
    def engine_logs(self) -> Path:
        return self.folder / "spark-logs"

    @property
    def logs(self) -> Path:
        """Standard error of the detached processes."""
        return self.folder / "logs"

    def read(self) -> dict[str, Any]:
        """Return `attempt.json`. Raises InfrastructureError if it is missing or damaged."""
        try:
            value = json.loads((self.folder / "attempt.json").read_text())
        except (OSError, ValueError):
            value = None
        if not isinstance(value, dict):
            raise InfrastructureError(f"{self.folder.name}: attempt.json missing or damaged; fix: clear the whole run")
        return value

    def begun_at_ns(self) -> int:
        """Return the time at which the recorder acquired the machine lock; if it never did, the time of `prepare`."""
        for line in read_journal(self.recorder_journal):
            if line.get("kind") == "start":
                return int(line["wall_ns"])
        return int(self.read()["prepared_wall_ns"])

    def is_of(self, home: Path) -> bool:
        """Return whether the installation at `home` owns the attempt. Raises InfrastructureError like `read`.

        Several installations and machines may share a results folder. The result is False for a link, for a folder of
        another user, and for an attempt without an owner.
        """
        if not self.is_own():
            return False
        description = self.read()
        host = (description.get("environment") or {}).get("host")
        owner = (description.get("attempt"), description.get("home"), host)
        return owner == (self.id, str(home), socket.gethostname())

    def is_own(self) -> bool:
        """Return whether its folder belongs to this user and is not a link."""
        with contextlib.suppress(OSError):
            status = self.folder.lstat()
            return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
        return False


def open_attempts(attempts: Path, home: Path) -> list[Attempt]:
    """Return the attempts of the installation at `home` whose teardown is not finished; omit damaged ones."""
    found = []
    for folder in sorted(attempts.glob("*")):
        attempt = Attempt(folder)
        with contextlib.suppress(InfrastructureError):
            if attempt.is_of(home) and not attempt.closed.exists():
                found.append(attempt)
    return found


def unhealed_attempts(attempts: Path, home: Path) -> dict[str, str]:
    """Return ids and reasons of the open attempts whose faults could not be undone."""
    found = {}
    for attempt in open_attempts(attempts, home):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            found[attempt.id] = str(json.loads(attempt.unhealed.read_text())["why"])
    return found


def unhealed_text(attempt: str, why: str) -> str:
    """Return a line about an attempt whose fault could not be undone."""
    return f"attempt {attempt}: undo failed: {why}; the next experiment retries it"
