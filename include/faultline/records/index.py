"""Index of the records, so that a page need not parse thousands of files per request.

The files remain authoritative. `refresh` scans the folders, compares path, modification time and size with the index,
and parses new and changed files. The index is a SQLite file in the state folder, one per results folder; it is rebuilt
if it is missing, damaged or of another layout. If it cannot be written, or another process locks it for longer than
`TIMEOUT_S`, the index is kept in memory and the file is left unchanged.
"""

from __future__ import annotations

import hashlib
import math
import os
import sqlite3
import threading
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from faultline.records.index_entry import IndexEntry, entry_content
from faultline.records.record import SCHEMA_PATH, Record
from faultline.records.record_problems import content_problem, place_problem

# Seconds; another process may be writing the entries that it has just parsed.
TIMEOUT_S = 20.0
# Primary result codes of SQLite for a file that is intact, but cannot be used now.
_UNAVAILABLE = {
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_PROTOCOL,
}  # fmt: skip
# Largest integer of SQLite and Parquet, far above any figure of an experiment.
_LARGEST = 2**63 - 1
# Version of the checks beyond the schema: to change it makes every file be read again.
_CHECKS = b"6"
_LAYOUT = """
CREATE TABLE entries (
  path TEXT PRIMARY KEY, mtime_ns INTEGER NOT NULL, size INTEGER NOT NULL, problem TEXT,
  attempt TEXT, matrix TEXT, sweep_id TEXT, status TEXT, measured_at TEXT
);
-- Separate table, so that counting entries does not read their contents.
CREATE TABLE contents (path TEXT PRIMARY KEY, config TEXT NOT NULL, content TEXT NOT NULL);
CREATE INDEX by_attempt ON entries (attempt);
CREATE INDEX by_sweep ON entries (sweep_id);
CREATE INDEX by_matrix ON entries (matrix);
"""
_COUNTED = """
SELECT {key}, MAX(matrix), COUNT(*), SUM(status = 'valid'), SUM(status = 'unmet'), SUM(status = 'invalid'),
  SUM(status = 'failed'), SUM(status = 'cancelled'), MIN(measured_at), MAX(measured_at)
FROM entries WHERE problem IS NULL {where} GROUP BY {key} ORDER BY MAX(measured_at) DESC, {key} DESC LIMIT ? OFFSET ?
"""


@dataclass(frozen=True)
class StatusCounts:
    """Records of a sweep or matrix by status; `name` is None for records without one."""

    name: str | None
    matrix: str | None
    total: int
    valid: int
    unmet: int
    invalid: int
    failed: int
    cancelled: int
    first: str
    last: str


class Index:
    """Index of the records under `root`/records; thread-safe.

    `home`: state folder for the index file; None keeps the index in memory.
    """

    def __init__(self, root: Path, home: Path | None = None) -> None:
        self.root = root
        self.directory = root / "records"
        self.file = None if home is None else home / "index" / f"{_digest(root)}.sqlite3"
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None

    def refresh(self) -> None:
        """Index files that changed since the last call; an unreadable file is listed in `problems`."""
        files = _scan(self.directory)
        with self._lock:
            try:
                self._update(files)
            except (sqlite3.Error, OSError) as error:
                self._recover(error, files)

    def close(self) -> None:
        """Close the index file; the next query opens it again."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def sweeps(self, limit: int, offset: int = 0) -> list[StatusCounts]:
        """Return the sweeps, newest first, each with its number of records by status."""
        return self._tallies("sweep_id", "", limit, offset)

    def count_sweeps(self) -> int:
        """Return the total number of rows of `sweeps`."""
        rows = self._rows("SELECT COUNT(DISTINCT COALESCE(sweep_id, '')) FROM entries WHERE problem IS NULL")
        return int(rows[0][0])

    def matrices(self) -> list[StatusCounts]:
        """Return the matrices, the most recently measured first."""
        return self._tallies("matrix", "AND matrix IS NOT NULL", -1, 0)

    def sweeps_of(self, matrix: str | None, limit: int) -> list[str]:
        """Return ids of the newest sweeps of a matrix."""
        query = (
            "SELECT sweep_id FROM entries WHERE problem IS NULL AND sweep_id IS NOT NULL AND matrix IS ? "
            "GROUP BY sweep_id ORDER BY MAX(measured_at) DESC LIMIT ?"
        )
        return [str(name) for (name,) in self._rows(query, matrix, limit)]

    def of_sweep(self, sweep_id: str | None) -> list[IndexEntry]:
        """Return the entries of a sweep, sorted by attempt; `sweep_id` None selects entries without a sweep."""
        return self._entries("sweep_id IS ?", sweep_id)

    def of_matrix(self, matrix: str) -> list[IndexEntry]:
        """Return entries of a matrix in order of attempt."""
        return self._entries("matrix = ?", matrix)

    def of_configurations(self, config_ids: Iterable[str]) -> list[IndexEntry]:
        """Return the entries of these configurations from all sweeps, sorted by attempt."""
        # Each configuration has its own folder; the range ends at `0`, the character that follows `/`.
        found = [self._entries("path >= ? AND path < ?", f"{id_}/", f"{id_}0") for id_ in dict.fromkeys(config_ids)]
        return sorted((entry for entries in found for entry in entries), key=lambda entry: (entry.attempt, entry.path))

    def all(self) -> list[IndexEntry]:
        """Return every entry in order of attempt."""
        return self._entries("1")

    def of_attempt(self, attempt: str) -> IndexEntry | None:
        """Return the entry of an attempt, or None if there is none."""
        found = self._entries("attempt = ?", attempt)
        return found[0] if found else None

    def newest_without_figures(self, limit: int) -> list[IndexEntry]:
        """Return the newest entries that are neither valid nor unmet, newest first."""
        return self._entries(
            "attempt IN (SELECT attempt FROM entries WHERE problem IS NULL AND status NOT IN ('valid', 'unmet') "
            "ORDER BY attempt DESC LIMIT ?)",
            limit,
        )[::-1]

    def has_sweep(self, sweep_id: str) -> bool:
        """Return whether a record belongs to this sweep."""
        return bool(self._rows("SELECT 1 FROM entries WHERE problem IS NULL AND sweep_id = ? LIMIT 1", sweep_id))

    def problems(self) -> list[tuple[str, str]]:
        """Return the unreadable files: path below the folder of records, and reason."""
        rows = self._rows("SELECT path, problem FROM entries WHERE problem IS NOT NULL ORDER BY path")
        return [(str(path), str(problem)) for path, problem in rows]

    def problem_of(self, attempt: str) -> str | None:
        """Return why the record of an attempt cannot be read; None if it can, or if there is none."""
        return next((problem for path, problem in self.problems() if Path(path).stem == attempt), None)

    def _tallies(self, key: str, where: str, limit: int, offset: int) -> list[StatusCounts]:
        return [StatusCounts(*row) for row in self._rows(_COUNTED.format(key=key, where=where), limit, offset)]

    def _entries(self, where: str, *values: object) -> list[IndexEntry]:
        query = (
            "SELECT path, config, content FROM entries JOIN contents USING (path) "
            f"WHERE problem IS NULL AND {where} ORDER BY attempt, path"
        )
        try:
            return _parsed(self._rows(query, *values))
        except (ValueError, KeyError, TypeError) as error:
            # SQLite does not detect damage within a text.
            with self._lock:
                self._recover(error, _scan(self.directory))
            return _parsed(self._rows(query, *values))

    def _rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with self._lock:
            if self._connection is None:
                self.refresh()
            try:
                return self._execute(query, values)
            except sqlite3.DatabaseError as error:
                # `refresh` does not read every page of the file, so it may miss damage.
                self._recover(error, _scan(self.directory))
                return self._execute(query, values)

    def _execute(self, query: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        assert self._connection is not None
        return self._connection.execute(query, tuple(values)).fetchall()

    def _update(self, files: Mapping[str, _File]) -> None:
        if self._connection is None:
            self._connection = self._open()
        known = {
            path: (mtime_ns, size)
            for path, mtime_ns, size in self._connection.execute("SELECT path, mtime_ns, size FROM entries")
        }
        changed = [path for path, file in files.items() if known.get(path) != (file.mtime_ns, file.size)]
        removed = [path for path in known if path not in files]
        if not changed and not removed:
            return
        rows = [_row(self.directory, path, files[path]) for path in changed]
        with self._connection:
            for table in ("entries", "contents"):
                self._connection.executemany(
                    f"DELETE FROM {table} WHERE path = ?", [(path,) for path in [*removed, *changed]]
                )
            self._connection.executemany(
                f"INSERT OR REPLACE INTO entries VALUES ({', '.join('?' * 9)})", [row for row, _ in rows]
            )
            self._connection.executemany(
                "INSERT OR REPLACE INTO contents VALUES (?, ?, ?)",
                [(row[0], *content) for row, content in rows if content is not None],
            )

    def _open(self) -> sqlite3.Connection:
        if self.file is None:
            return _connect(":memory:")
        self.file.parent.mkdir(parents=True, exist_ok=True)
        return _connect(str(self.file))

    def _recover(self, error: Exception, files: Mapping[str, _File]) -> None:
        """Rebuild the index after an error: replace a damaged file, otherwise continue in memory."""
        self.close()
        if self.file is not None and _is_damage(error):
            try:
                for part in (self.file, self.file.with_name(f"{self.file.name}-journal")):
                    part.unlink(missing_ok=True)
                self._update(files)
                return
            except (sqlite3.Error, OSError):
                self.close()
        self._connection = _connect(":memory:")
        self._update(files)


class _File(NamedTuple):
    """Record file: its name below the folder of records, modification time in ns, and size in bytes."""

    name: str
    mtime_ns: int
    size: int


def _is_damage(error: Exception) -> bool:
    """Return True if the file is damaged, False if it cannot be used for another reason, such as a full disk."""
    if isinstance(error, OSError):
        return False
    code = getattr(error, "sqlite_errorcode", None)
    if not isinstance(error, sqlite3.Error):
        return True
    return code is not None and (code == sqlite3.SQLITE_IOERR_SHORT_READ or code & 0xFF not in _UNAVAILABLE)


def _digest(root: Path) -> str:
    return hashlib.sha256(str(root.absolute()).encode()).hexdigest()[:12]


def _parsed(rows: Iterable[tuple[Any, ...]]) -> list[IndexEntry]:
    """Return the entries from rows of path, configuration and content."""
    # Many records share a configuration, so each is parsed once.
    configs: dict[str, Mapping[str, Any]] = {}
    found = []
    for path, config, content in rows:
        if config not in configs:
            configs[config] = from_json(config)
        found.append(IndexEntry.from_content(path, configs[config], from_json(content)))
    return found


def _connect(name: str) -> sqlite3.Connection:
    connection = sqlite3.connect(name, timeout=TIMEOUT_S, check_same_thread=False)
    try:
        # Without this, a file can mix new and old pages after a power loss: it looks intact, but lacks records.
        connection.execute("PRAGMA synchronous = FULL")
        if connection.execute("PRAGMA user_version").fetchone()[0] != _version():
            with closing(connection.cursor()) as cursor:
                cursor.executescript(
                    f"BEGIN IMMEDIATE; DROP TABLE IF EXISTS entries; DROP TABLE IF EXISTS contents; {_LAYOUT}"
                    f"PRAGMA user_version = {_version()}; COMMIT;"
                )
    except BaseException:
        connection.close()
        raise
    return connection


def _version() -> int:
    """Return a checksum of layout, checks and schema, so that an outdated index is rebuilt."""
    return zlib.crc32(_LAYOUT.encode() + _CHECKS + SCHEMA_PATH.read_bytes()) & 0x7FFFFFFF


def _scan(directory: Path) -> dict[str, _File]:
    """Return each record file by its path under `directory`; bytes outside UTF-8 are escaped."""
    found: dict[str, _File] = {}
    for folder in _listed(directory):
        if not folder.is_dir():
            continue
        for file in _listed(Path(folder.path)):
            if not file.name.endswith(".json") or file.name.startswith("."):
                continue
            name, mtime_ns, size = f"{folder.name}/{file.name}", 0, 0
            try:
                state = file.stat()
                mtime_ns, size = min(state.st_mtime_ns, _LARGEST), state.st_size
            except FileNotFoundError:
                continue
            except OSError:
                pass  # the attempt to read it gives the reason
            found[name.encode("utf-8", "backslashreplace").decode()] = _File(name, mtime_ns, size)
    return found


def _listed(directory: Path) -> Sequence[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except OSError:
        return ()


def _row(directory: Path, path: str, file: _File) -> tuple[tuple[Any, ...], tuple[str, str] | None]:
    """Return a file's row of `entries`, and its texts for `contents`, which are None if it is unreadable."""
    try:
        if file.name != path:
            raise ValueError("file: its path is not UTF-8")
        record = Record.model_validate_json(_read(f"{directory}/{file.name}"))
        folder, _, name = path.rpartition("/")
        if problem := place_problem(record, folder, name.removesuffix(".json")):
            raise ValueError(problem)
        _require_usable(record.model_dump(by_alias=True))
        content = (to_json(record.config).decode(), to_json(entry_content(record)).decode())
    except ValidationError as error:
        problem = content_problem(error)
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
    except (ValueError, OverflowError, RecursionError) as error:
        problem = str(error)
    else:
        known = (record.attempt, record.matrix or None, record.sweep_id or None, record.status, record.measured_at)
        return (path, file.mtime_ns, file.size, None, *known), content
    return (path, file.mtime_ns, file.size, problem, *[None] * 5), None


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _require_usable(values: Mapping[Any, Any], before: str = "") -> None:
    """Raise ValueError naming the first number that is not finite or whose size exceeds `_LARGEST`."""
    for name, value in values.items():
        if value is None or isinstance(value, str):
            continue
        if isinstance(value, dict):
            _require_usable(value, f"{before}{name}.")
        elif isinstance(value, list):
            _require_usable(dict(enumerate(value)), f"{before}{name}.")
        elif not -_LARGEST <= value <= _LARGEST:  # also True for NaN
            wrong = "larger than 2^63" if isinstance(value, int) or math.isfinite(value) else f"{value}, not finite"
            raise ValueError(f"{before}{name}: the number is {wrong}")
