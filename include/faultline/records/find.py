"""Lookup of records by file, attempt, beginning of its id, or the last one; and saved arrays."""

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
_OTHER = "give a file of `results --json`"
_RECORDS = TypeAdapter(list[Record])


def find_record(reference: str, settings: Settings) -> tuple[Record, Path]:
    """Return the record that `reference` names, and the results folder that its raw files lie in.

    `reference`: path of a record, attempt id, unique beginning of one, or `last`. Raises ConfigError, naming the
    nearest known attempt, when there is none or more than one.
    """
    path = Path(reference)
    if path.suffix == ".json" or path.is_file():
        record = read_record(path)
        # <results>/records/<config_id>/<attempt>.json; a copy elsewhere has its raw files in the store, if anywhere.
        results = path.resolve().parent.parent.parent
        return record, results if (results / "attempts" / record.attempt).is_dir() else settings.results
    known = {path.stem: path for path in settings.records.glob("*/*.json") if not path.name.startswith(".")}
    return read_record(known[_attempt(reference, sorted(known))]), settings.results


def still_running(settings: Settings) -> str:
    """Return a line about an attempt that is newer than every record and still runs, or an empty text."""
    known = max((path.stem for path in settings.records.glob("*/[!.]*.json")), default="")
    newest = open_attempts(settings.attempts, settings.home)[-1:]
    if not newest or newest[0].over or newest[0].id <= known:
        return ""
    return f"{newest[0].id} is still running; `{LAST}` is the newest that ended"


def read_record(path: Path) -> Record:
    """Return the record in a file. Raises ConfigError, naming file and key, when it holds none."""
    try:
        return Record.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); give a record's file or an attempt") from None
    except ValidationError as error:
        raise ConfigError(f"{path}: {content_problem(error, 'this is not a record that can be read')}") from None


def read_saved(paths: Iterable[Path]) -> list[Record]:
    """Return the records of bundles and of files written by `results --json` (`.gz`: compressed), in order of attempt.

    An attempt in several of them is taken once. Raises ConfigError naming file, place and key.
    """
    found: dict[str, Record] = {}
    for path in paths:
        try:
            records = _saved(path)
        except (OSError, EOFError, zlib.error) as error:
            why = getattr(error, "strerror", None) or error
            raise ConfigError(f"--from {path}: cannot be read ({why}); {_OTHER}") from None
        except ValidationError as error:
            raise ConfigError(f"--from {path}: {content_problem(error, _OTHER)}") from None
        for record in records:
            if found.setdefault(record.attempt, record) != record:
                raise ConfigError(f"--from {path}: {record.attempt}: another file has another record; leave one out")
    return [found[attempt] for attempt in sorted(found)]


def _saved(path: Path) -> list[Record]:
    if path.name.endswith(SUFFIX):
        return read_bundle(path).records()
    return _RECORDS.validate_json(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())


def _attempt(reference: str, known: list[str]) -> str:
    """Return the known attempt that is meant."""
    if not known:
        raise ConfigError(f"{reference}: there are no records yet; run one with ./faultline run word_count")
    if reference == LAST:
        return known[-1]
    if reference in known:
        return reference
    found = [attempt for attempt in known if reference and attempt.startswith(reference)]
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError(f"{reference}: {len(found)} attempts begin so, the last is {found[-1]}; give more of the id")
    near = nearest_name(reference, known, cutoff=0.0)
    raise ConfigError(f"{reference}: no such attempt; the nearest is {near}, the last {known[-1]}")
