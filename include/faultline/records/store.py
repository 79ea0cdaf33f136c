"""The store of records: one file per attempt, written once, never changed.

`<root>/records/<config_id>/<attempt>.json`. The files are the truth about what was measured; a reader
never fails because of a single bad one, but names it.
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
# What file systems without hard links say, such as some that are shared over a network.
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
        """Return records narrowed by the arguments that are given; without `sweeps`, of all."""
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
        """Store a record atomically and returns its path.

        Writing the very same record again changes nothing, and a `failed` one, which holds no figure, gives
        way to what a later try of the judge measured. Raises InfrastructureError when the attempt already
        has another record, when the record breaks the JSON Schema, or when the disk is full;
        ConfigError when the folder cannot be written.
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
                    raise InfrastructureError(
                        f"{path}: this attempt already has another record; it is never overwritten"
                    ) from None
                _write_atomically(path, text, replace=True)
        except OSError as error:
            raise _explained(path, error) from error
        return path

    def replace(self, record: Record, kept: Path) -> None:
        """Replace the record of an attempt, after copying the present one to `kept`.

        At every instant one of both is whole. Raises as `write` does, and if `kept` exists.
        """
        path, text = self.path(record), _checked(record)
        try:
            make_folder(kept.parent)
            _write_atomically(kept, path.read_text(encoding="utf-8"), replace=False)
            _write_atomically(path, text, replace=True)
        except FileExistsError:
            raise InfrastructureError(f"{kept}: is there already; nothing was replaced") from None
        except OSError as error:
            raise _explained(path, error) from error

    def read(self, config_id: str | None = None) -> StoredRecords:
        """Read all records, or one configuration's; corrupt files and other schemas are listed, never fatal."""
        records, problems = [], []
        for path in sorted(self.directory.glob(f"{config_id or '*'}/*.json")):
            if path.name.startswith("."):
                continue
            try:
                record = Record.model_validate_json(path.read_bytes())
                if problem := place_problem(record, path.parent.name, path.stem):
                    problems.append(f"{path}: {problem}; move it away")
                else:
                    records.append(record)
            except ValidationError as error:
                problems.append(f"{path}: {content_problem(error, 'move it away or measure again')}")
            except OSError as error:
                problems.append(f"{path}: {error.strerror}; check its permissions")
        return StoredRecords(tuple(sorted(records, key=lambda record: record.attempt)), tuple(problems))

    def newest(self, cell: Cell) -> Record | None:
        """Return the record of the cell's latest attempt, whatever its status."""
        return _last(self.of(cell))

    def newest_usable(self, cell: Cell) -> Record | None:
        """Return the latest record of the cell whose figures count."""
        return _last(record for record in self.of(cell) if record.is_usable)

    def of(self, cell: Cell) -> list[Record]:
        """Return the records of the cell, in order of attempt."""
        # A configuration has a folder of its own, so that the others need not be read.
        return [record for record in self.read(cell.config_id).records if Cell.of(record) == cell]

    def query(self, matrix: str | None = None, sweep: str | None = None, status: Status | None = None) -> list[Record]:
        """Return records in order of attempt, narrowed by the arguments that are given."""
        return self.read().matching(matrix, () if sweep is None else (sweep,), status)


@cache
def validator() -> jsonschema.Draft202012Validator:
    """Return the validator of records, which checks the committed schema itself only once."""
    return jsonschema.Draft202012Validator(committed_schema())


def _checked(record: Record) -> str:
    """Return its text. Raises InfrastructureError when it breaks the JSON Schema."""
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
    """Write a temporary file, sync and move it, and sync the folder: after a crash the file is whole or absent.

    Raises FileExistsError if there is one that may not be replaced, also when another process was faster.
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
        return InfrastructureError(f"{path}: the disk is full; free some space, then clear the task judge")
    if error.errno in _REFUSED:
        return ConfigError(
            f"{path}: not writable ({error.strerror}); fix: its permissions, or another FAULTLINE_RESULTS"
        )
    return InfrastructureError(f"{path}: cannot be written ({error.strerror}); check the disk")
