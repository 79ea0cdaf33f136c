"""Checks after a power failure: records, databases, tables, and the index of the records."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.leak_check import attempts_of
from faultline.records.index import Index
from faultline.records.store import Store
from faultline.system.errors import InfrastructureError
from faultline.system.hashes import file_hash
from faultline.system.process_ledger import LedgerEntry, is_own, read_ledger, send_signals, victim_of
from faultline.system.process_tags import INSTANCE_MARK, RUN_MARK
from faultline.system.settings import Settings, instance

# Time after which a visible record has been synced by its writer, in s.
SETTLED_S = 2.0
_PARTS = ("", "-wal", "-journal")


@dataclass(frozen=True)
class DurableRecords:
    """Hashes of the synced records by path; `young`: paths of recent records, which may not be synced yet."""

    records: Mapping[str, str]
    young: frozenset[str]

    @classmethod
    def of(cls, settings: Settings) -> DurableRecords:
        """Return the present records."""
        settled, young = {}, set()
        for path in settings.records.glob("*/[!.]*.json"):
            name = str(path.relative_to(settings.records))
            if time.time() - path.stat().st_ctime < SETTLED_S:
                young.add(name)
            else:
                settled[name] = file_hash(path)
        return cls(settled, frozenset(young))

    def damage(self, settings: Settings) -> list[str]:
        """Return a line for each record that is missing, changed or unreadable."""
        lines = []
        for name, digest in sorted(self.records.items()):
            path = settings.records / name
            if not path.exists():
                lines.append(f"record {name}: missing")
            elif file_hash(path) != digest:
                lines.append(f"record {name}: changed")
        return lines + [f"record {problem}" for problem in Store(settings.results).read().problems]


def broken_databases(settings: Settings) -> list[str]:
    """Return a line for each of Airflow's databases with an error; copies are checked."""
    return [
        f"database {path.name}: {fault}"
        for path in sorted(settings.airflow_home.glob("*.db"))
        if (fault := _database_fault(path))
    ]


def broken_tables(settings: Settings) -> list[str]:
    """Return a line for each summary table that cannot be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    lines = []
    for path in sorted((settings.results / "summary").glob("*")):
        if path.suffix == ".parquet":
            try:
                pq.read_table(path)
            except (OSError, pa.ArrowException) as error:
                lines.append(f"table {path.name}: {error}")
        elif path.suffix == ".csv" and not path.stat().st_size:
            lines.append(f"table {path.name}: empty")
    return lines


def refresh_index(settings: Settings) -> None:
    """Refresh the index, as a page view does."""
    with closing(Index(settings.results, settings.home)) as index:
        index.refresh()


def index_differences(settings: Settings) -> list[str]:
    """Return a line for each record that the index lacks, should not have, or has with another status."""
    before = _statuses(settings)
    with closing(Index(settings.results, settings.home)) as index:
        index.refresh()
        found = {entry.attempt: entry.status for entry in index.all()}
    after = _statuses(settings)  # a record may be new
    differing = [name for name in sorted(after) if found.get(name) not in (before.get(name), after[name])]
    lines = [f"index: {name} is {found.get(name)}, its record {after[name]}" for name in differing]
    return lines + [f"index: {name} without a record" for name in sorted(set(found) - set(after))]


def _statuses(settings: Settings) -> dict[str, str]:
    return {record.attempt: record.status for record in Store(settings.results).query()}


def _database_fault(database: Path) -> str | None:
    """Return the error of SQLite's integrity check on a copy, which SQLite may repair as at any start."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / database.name
        for part in _PARTS:
            file = database.with_name(f"{database.name}{part}")
            if file.exists():
                shutil.copyfile(file, f"{copy}{part}")
        try:
            with closing(sqlite3.connect(copy)) as connection:
                rows: Sequence[tuple[str]] = connection.execute("PRAGMA integrity_check").fetchall()
        except sqlite3.Error as error:
            return str(error)
    return None if rows == [("ok",)] else "; ".join(line for (line,) in rows[:3])


# Processes of an installation, listed while its disk is still available


_END_S = 20.0
_LOOK_S = 0.05


@dataclass(frozen=True)
class InstallationProcesses:
    """`mark`: tag of the services; `attempts`: ids of running attempts; `entries`: their ledgers."""

    mark: str
    attempts: frozenset[str]
    entries: tuple[LedgerEntry, ...]

    @classmethod
    def of(cls, settings: Settings) -> InstallationProcesses:
        """Return the processes that the files on the disk name at present."""
        open_ones = [attempt for attempt in attempts_of(settings) if not attempt.over]
        entries = [entry for attempt in open_ones for entry in read_ledger(attempt.ledger)]
        return cls(instance(settings)["instance"], frozenset(one.id for one in open_ones), tuple(entries))

    def alive(self) -> list[psutil.Process]:
        """Return the live processes and their descendants, the oldest first."""
        spared = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
        others = [one for one in psutil.process_iter() if one.pid not in spared and _parent(one) is not None]
        named = [process for entry in self.entries if (process := victim_of(entry)) is not None]
        found = {one.pid: one for one in [*named, *filter(self._is_tagged, others)]}
        while more := {one.pid: one for one in others if _parent(one) in found and one.pid not in found}:
            found |= more
        return sorted(found.values(), key=_created)

    def kill(self, known: Sequence[psutil.Process]) -> int:
        """Send SIGKILL to all processes, to the `known` ones first; return their number.

        Raises InfrastructureError if a process survives.
        """
        killed, alive, deadline = set[int](), list(known), time.monotonic() + _END_S
        while alive:
            killed |= {process.pid for process in alive if send_signals(process, signal.SIGKILL)}
            if time.monotonic() > deadline:
                stubborn = ", ".join(str(process.pid) for process in alive)
                raise InfrastructureError(f"power_cut: processes {stubborn}: alive after SIGKILL; see them with ps")
            time.sleep(_LOOK_S)
            alive = self.alive()  # a killed process may have started another one
        return len(killed)

    def _is_tagged(self, process: psutil.Process) -> bool:
        with contextlib.suppress(psutil.Error, OSError):
            if is_own(process):
                inherited = process.environ()
                return inherited.get(INSTANCE_MARK) == self.mark or inherited.get(RUN_MARK) in self.attempts
        return False


def _parent(process: psutil.Process) -> int | None:
    """Return the parent's pid; None if the process has ended."""
    with contextlib.suppress(psutil.Error):
        if process.status() != psutil.STATUS_ZOMBIE:
            return process.ppid()
    return None


def _created(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.Error):
        return process.create_time()
    return 0.0
