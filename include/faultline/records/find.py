"""Lookup of a record by file, attempt id, prefix of one, or `last`; reader of saved records and bundles."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from faultline.experiment.attempt import open_attempts
from faultline.records.bundle import SUFFIX, read_bundle
from faultline.records.record import Record
from faultline.records.record_problems import content_problem
from faultline.system.errors import ConfigError
from faultline.system.settings import Settings
from faultline.system.text import nearest_name

LAST = "last"
_EXPECTED = "expected a file of `results --json`, or a bundle"
_RECORDS = TypeAdapter(list[Record])


def find_record(reference: str, settings: Settings) -> tuple[Record, Path]:
    """Return the record that `reference` names, and the results folder that holds its raw files.

    `reference`: path of a record, attempt id, unique prefix of one, or `last`. Raises ConfigError, naming the nearest
    known attempt, if no attempt or more than one matches.
    """
    path = Path(reference)
    if path.suffix == ".json" or path.is_file():
        record = read_record(path)
        # <results>/records/<config_id>/<attempt>.json; raw files of a copy elsewhere can only be in the own results.
        results = path.resolve().parent.parent.parent
        return record, results if (results / "attempts" / record.attempt).is_dir() else settings.results
    known = {path.stem: path for path in settings.records.glob("*/*.json") if not path.name.startswith(".")}
    return read_record(known[_attempt(reference, sorted(known))]), settings.results


def still_running(settings: Settings) -> str:
    """Return a line about a running attempt that is newer than every record, or an empty string if there is none."""
    known = max((path.stem for path in settings.records.glob("*/[!.]*.json")), default="")
    newest = open_attempts(settings.attempts, settings.home)[-1:]
    if not newest or newest[0].over or newest[0].id <= known:
        return ""
    return f"{newest[0].id} is still running; `{LAST}` is the newest that ended"


def read_record(path: Path) -> Record:
    """Return the record in a file. Raises ConfigError naming file and key if it holds none."""
    try:
        return Record.model_validate_json(path.read_bytes())
    except OSError as error:
        why = error.strerror
        raise ConfigError(f"{path}: cannot be read ({why}); expected a record's file or an attempt") from None
    except ValidationError as error:
        raise ConfigError(f"{path}: {content_problem(error, 'expected a record')}") from None


def read_saved(paths: Iterable[Path]) -> list[Record]:
    """Return the records of bundles and of files of `results --json` (`.gz`: compressed), sorted by attempt.

    An attempt in several files is returned once. Raises ConfigError naming file and key if a file is not readable, or
    naming the attempt if two files differ in its record.
    """
    found: dict[str, Record] = {}
    for path in paths:
        try:
            records = _saved(path)
        except (OSError, EOFError, zlib.error) as error:
            why = getattr(error, "strerror", None) or error
            raise ConfigError(f"--from {path}: cannot be read ({why}); {_EXPECTED}") from None
        except ValidationError as error:
            raise ConfigError(f"--from {path}: {content_problem(error, _EXPECTED)}") from None
        for record in records:
            if found.setdefault(record.attempt, record) != record:
                raise ConfigError(
                    f"--from {path}: {record.attempt}: differs from its record in another file; fix: omit one"
                )
    return [found[attempt] for attempt in sorted(found)]


def _saved(path: Path) -> list[Record]:
    if path.name.endswith(SUFFIX):
        return read_bundle(path).records()
    return _RECORDS.validate_json(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())


def _attempt(reference: str, known: list[str]) -> str:
    """Return the known attempt that `reference` stands for."""
    if not known:
        raise ConfigError(f"{reference}: there are no records yet; fix: ./faultline run word_count")
    if reference == LAST:
        return known[-1]
    if reference in known:
        return reference
    found = [attempt for attempt in known if reference and attempt.startswith(reference)]
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError(
            f"{reference}: got a prefix of {len(found)} attempts, the last {found[-1]}; fix: give more characters"
        )
    near = nearest_name(reference, known, cutoff=0.0)
    raise ConfigError(f"{reference}: attempt not found; nearest: {near}, last: {known[-1]}")
