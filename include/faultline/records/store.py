"""Store of records: one file per attempt, `<root>/records/<config_id>/<attempt>.json`.

A file is written once; only a `failed` record, or a rejudged one, is replaced. Readers list unreadable files instead of
failing.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import jsonschema
from jsonschema.exceptions import best_match
from pydantic import ValidationError

from faultline.experiment.cell import Cell
from faultline.records.record import Record, Status, committed_schema
from faultline.records.record_problems import content_problem, place_problem
from faultline.system.errors import ConfigError, InfrastructureError
from faultline.system.files import make_folder, sync_folder

_FULL = {errno.ENOSPC, errno.EDQUOT}
# Errors of file systems without hard links, such as some network file systems.
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR}


@dataclass(frozen=True)
class StoredRecords:
    """All readable records in order of attempt, and a line for each file that could not be read."""

    records: tuple[Record, ...]
    problems: tuple[str, ...]

    def matching(
        self, matrix: str | None = None, sweeps: Collection[str] = (), status: str | None = None
    ) -> list[Record]:
        """Return the records that match all given arguments; empty `sweeps` match every sweep."""
        return [
            record
            for record in self.records
            if (matrix is None or record.matrix == matrix)
            and (not sweeps or record.sweep_id in sweeps)
            and (status is None or record.status == status)
        ]


class Store:
    """Records under a results folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.directory = root / "records"

    def path(self, record: Record) -> Path:
        """Return the path of this record."""
        return self.directory / record.config_id / f"{record.attempt}.json"

    def write(self, record: Record) -> Path:
        """Store a record atomically and return its path.

        To write an equal record again changes nothing. A `failed` record, which has no figures, is replaced. Raises
        InfrastructureError if the attempt has another record, the record violates the JSON Schema, or the disk is full,
        and ConfigError if the folder is not writable.
        """
        path, text = self.path(record), _checked(record)
        try:
            make_folder(path.parent)
            try:
                _write_atomically(path, text, replace=False)
            except FileExistsError:
                present = _readable(path.read_bytes())
                if present == record:
                    return path
                if present is None or present.status != "failed":
                    raise InfrastructureError(f"{path}: this attempt already has another record; kept") from None
                _write_atomically(path, text, replace=True)
        except OSError as error:
            raise _explained(path, error) from error
        return path

    def replace(self, record: Record, kept: Path) -> None:
        """Replace the record of an attempt, after copying the present one to `kept`.

        A complete record exists at any time. Raises like `write`, and InfrastructureError if `kept` exists.
        """
        path, text = self.path(record), _checked(record)
        try:
            make_folder(kept.parent)
            _write_atomically(kept, path.read_text(encoding="utf-8"), replace=False)
            _write_atomically(path, text, replace=True)
        except FileExistsError:
            raise InfrastructureError(f"{kept}: exists already; record not replaced") from None
        except OSError as error:
            raise _explained(path, error) from error

    def read(self, config_id: str | None = None) -> StoredRecords:
        """Return all records, or those of one configuration; unreadable files are listed in `problems`."""
        records, problems = [], []
        for path in sorted(self.directory.glob(f"{config_id or '*'}/*.json")):
            if path.name.startswith("."):
                continue
            try:
                record = Record.model_validate_json(path.read_bytes())
                if problem := place_problem(record, path.parent.name, path.stem):
                    problems.append(f"{path}: {problem}; fix: move the file out of the folder")
                else:
                    records.append(record)
            except ValidationError as error:
                problems.append(f"{path}: {content_problem(error, 'fix: move the file out of the folder')}")
            except OSError as error:
                problems.append(f"{path}: {error.strerror}; fix: check its permissions")
        return StoredRecords(tuple(sorted(records, key=lambda record: record.attempt)), tuple(problems))

    def newest(self, cell: Cell) -> Record | None:
        """Return the record of the cell's latest attempt, of any status, or None if there is none."""
        return _last(self.of(cell))

    def newest_usable(self, cell: Cell) -> Record | None:
        """Return the latest usable record of the cell, or None if there is none."""
        return _last(record for record in self.of(cell) if record.is_usable)

    def of(self, cell: Cell) -> list[Record]:
        """Return the records of the cell, sorted by attempt."""
        # Only the folder of the cell's configuration need be read.
        return [record for record in self.read(cell.config_id).records if Cell.of(record) == cell]

    def query(self, matrix: str | None = None, sweep: str | None = None, status: Status | None = None) -> list[Record]:
        """Return the records that match all given arguments, sorted by attempt."""
        return self.read().matching(matrix, () if sweep is None else (sweep,), status)


@cache
def validator() -> jsonschema.Draft202012Validator:
    """Return the validator of records; cached, because its creation checks the schema."""
    return jsonschema.Draft202012Validator(committed_schema())


def _checked(record: Record) -> str:
    """Return the record's JSON text. Raises InfrastructureError if it violates the JSON Schema."""
    error = best_match(validator().iter_errors(record.as_dict()))
    if error is not None:
        raise InfrastructureError(f"record {record.attempt}: {error.json_path}: {error.message}")
    return record.as_json()


def _readable(content: bytes) -> Record | None:
    try:
        return Record.model_validate_json(content)
    except ValidationError:
        return None


def _last(records: Iterable[Record]) -> Record | None:
    found = list(records)
    return found[-1] if found else None


def _write_atomically(path: Path, text: str, *, replace: bool) -> None:
    """Write a file so that after a crash it is complete or absent.

    Raises FileExistsError if the file exists and `replace` is False, even if another process has just created it.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            temporary.rename(path)
        else:
            _link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def _link(temporary: Path, path: Path) -> None:
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in _NO_LINKS or path.exists():
            raise
        temporary.rename(path)


def _explained(path: Path, error: OSError) -> ConfigError | InfrastructureError:
    if error.errno in _FULL:
        return InfrastructureError(f"{path}: the disk is full; fix: free some space, then clear the task `judge`")
    if error.errno in _REFUSED:
        return ConfigError(f"{path}: not writable ({error.strerror}); fix: change its permissions or FAULTLINE_RESULTS")
    return InfrastructureError(f"{path}: cannot be written ({error.strerror}); fix: check the disk")
