"""One attempt: its id, its folder, and the file that says what is being measured."""

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
    """Return UTC time and six random hex digits, such as 20261121T061500Z-3fa9c1.

    Ids tell which attempt came first, so this one is later than all that have a folder in `attempts`, also when the
    clock was set back meanwhile: then its time is that of the last one, and a second.
    """
    now = f"{datetime.now(UTC):{_TIME}}"
    names = os.listdir(attempts) if attempts.is_dir() else []
    last = max((found[1] for name in names if (found := _ID.fullmatch(name))), default="")
    if last > now:
        with contextlib.suppress(ValueError, OverflowError):  # no time that there is
            now = f"{datetime.strptime(last, _TIME) + timedelta(seconds=1):{_TIME}}"
    return f"{now}-{secrets.token_hex(3)}"


@dataclass(frozen=True)
class Attempt:
    """The folder of one attempt. Paths of its raw files; formats stand in docs/reference/files.md."""

    folder: Path

    @property
    def id(self) -> str:
        return self.folder.name

    @property
    def plan(self) -> Path:
        """What the attempt is to do, as `prepare` resolved it; attempts from before there were plans have none."""
        return self.folder / "plan.json"

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger.jsonl"

    @property
    def gate(self) -> Path:
        return self.folder / "gate.json"

    @property
    def load_end(self) -> Path:
        """When the load ends before its schedule does; written while the run lasts, beside the gate."""
        return self.folder / "load_end.json"

    @property
    def generator_journal(self) -> Path:
        return self.folder / "generator.jsonl"

    @property
    def recorder_journal(self) -> Path:
        return self.folder / "recorder.jsonl"

    @property
    def host_journals(self) -> Path:
        """What other hosts wrote down of themselves, a file each."""
        return self.folder / "hosts"

    @property
    def supervisor_journal(self) -> Path:
        return self.folder / "supervisor.jsonl"

    @property
    def conductor_journal(self) -> Path:
        return self.folder / "conductor.jsonl"

    @property
    def listener_journal(self) -> Path:
        return self.folder / "listener.jsonl"

    @property
    def traces(self) -> Path:
        """What an engine leaves that writes its traces down itself."""
        return self.folder / "traces.jsonl"

    @property
    def checkpoint(self) -> Path:
        """Checkpoint of the query; removed by the teardown, after the harvest has read it.

        In commit mode `none` a link to the present lineage's, which lies on the RAM disk.
        """
        return self.folder / "checkpoint"

    @property
    def scratch(self) -> Path:
        """Temporary files of the workload's JVMs, such as unpacked libraries, which a killed one leaves behind."""
        return self.folder / "scratch"

    @property
    def sink(self) -> Path:
        """Where a job of the user's may keep files until the run is harvested."""
        return self.scratch / "sink"

    @property
    def lineages(self) -> Path:
        """What is left of the lineages that were given up: their offset and commit logs, a folder each."""
        return self.folder / "lineages"

    @property
    def services_journal(self) -> Path:
        """The services that were started during the attempt."""
        return self.folder / "services.jsonl"

    @property
    def stop_file(self) -> Path:
        """Its appearance asks the workload to end."""
        return self.folder / "stop"

    @property
    def closed(self) -> Path:
        """Written last, by the teardown: the attempt's steps cannot be repeated then."""
        return self.folder / "closed.json"

    @property
    def unhealed(self) -> Path:
        """Written by the teardown in place of `closed`, where it could not undo what a fault left: {"why"}.

        All else is done then; the next `prepare` tries again.
        """
        return self.folder / "unhealed.json"

    @property
    def over(self) -> Path | None:
        """Of `closed` and `unhealed` the one that is there; None while there is work to be done on the attempt."""
        return next((file for file in (self.closed, self.unhealed) if file.exists()), None)

    @property
    def job(self) -> Path:
        """What of the user's was under test, as it was then."""
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
        """Return `attempt.json`. Raises InfrastructureError when `prepare` did not get to write it, or it is
        damaged."""
        try:
            value = json.loads((self.folder / "attempt.json").read_text())
        except (OSError, ValueError):
            value = None
        if not isinstance(value, dict):
            raise InfrastructureError(f"{self.folder.name}: has no whole attempt.json; clear the whole run")
        return value

    def begun_at_ns(self) -> int:
        """Return the instant at which the recorder acquired the machine lock, or that of `prepare` if it never did."""
        for line in read_journal(self.recorder_journal):
            if line.get("kind") == "start":
                return int(line["wall_ns"])
        return int(self.read()["prepared_wall_ns"])

    def is_of(self, home: Path) -> bool:
        """Return whether the installation at `home` made it, and may close it. Raises InfrastructureError as `read`.

        Others, perhaps of other machines, may keep their results in the same folder. One that does not say whose it is
        is nobody's; so is one that another user made, and a link to a folder elsewhere.
        """
        if not self.is_own():
            return False
        description = self.read()
        host = (description.get("environment") or {}).get("host")
        said = (description.get("attempt"), description.get("home"), host)
        return said == (self.id, str(home), socket.gethostname())

    def is_own(self) -> bool:
        """Return whether its folder is one, and this user's."""
        with contextlib.suppress(OSError):
            found = self.folder.lstat()
            return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
        return False


def open_attempts(attempts: Path, home: Path) -> list[Attempt]:
    """Return the attempts of the installation at `home` without a finished teardown; damaged ones are excluded."""
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
    """Return one of these in a line."""
    return f"attempt {attempt} is not healed: {why}; the next experiment tries again"
