"""Storing of records: by the step `judge` of an experiment, or when attempts are rejudged from their raw files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from faultline.experiment.attempt import Attempt
from faultline.records.judge.judge import judge, judge_readonly
from faultline.records.record import Record
from faultline.records.record_problems import content_problem
from faultline.records.store import Store
from faultline.system.errors import ConfigError, FaultlineError, InfrastructureError, InvalidMeasurement
from faultline.system.files import sync_files
from faultline.system.settings import Settings
from faultline.system.text import one_line

# Folder of replaced records, by configuration, attempt and schema.
SUPERSEDED = "superseded"


def judge_attempt(attempt: Attempt, settings: Settings) -> Record:
    """Judge the raw files, store the record and return it; an existing record that is not `failed` is kept."""
    store = Store(settings.results)
    existing = stored_record(attempt, settings)
    if existing is not None and existing.status != "failed":
        return existing
    record = judge(attempt.folder)
    # After a power loss, no record may exist without its raw files.
    for folder in (attempt.harvest, attempt.engine_logs, attempt.folder):
        sync_files(folder)
    store.write(record)
    return record


def require_valid(record: Record) -> None:
    """Raise InvalidMeasurement with the record's reasons unless the record is usable."""
    if not record.is_usable:
        raise InvalidMeasurement(f"{record.attempt}: {record.status}: {'; '.join(record.reasons)}")


def error_of(record: Record) -> FaultlineError | None:
    """Return the error that a cell's newest record stands for, or None if the record is usable."""
    text = "; ".join(record.reasons) or record.status
    if record.is_usable:
        return None
    if record.status == "invalid":
        return InvalidMeasurement(text)
    return ConfigError(text) if text.startswith("ConfigError") else InfrastructureError(text)


def stored_record(attempt: Attempt, settings: Settings) -> Record | None:
    """Return the stored record of this attempt, or None. Raises InfrastructureError for a damaged record."""
    for path in settings.records.glob(f"*/{attempt.id}.json"):
        try:
            return Record.model_validate_json(path.read_bytes())
        except ValidationError as error:
            problem = content_problem(error, "fix: move the file away, then clear the task `judge`")
            raise InfrastructureError(f"{path}: {problem}") from None
    return None


# Rejudging: with the current rules, or with other values of `recovered_within`.


@dataclass(frozen=True)
class RejudgedAttempt:
    """Rejudged attempt. `before`: its stored record. `found`: its records by the current rules, by `recovered_within`.

    `problem`: why it could not be judged; `found` is then empty.
    """

    before: Record
    found: dict[float, Record]
    problem: str = ""


def rejudge(records: Sequence[Record], settings: Settings, within: Sequence[float]) -> list[RejudgedAttempt]:
    """Judge the attempts of `records` with each `recovered_within` of `within`, without writing files."""
    return [_rejudge_one(record, settings.attempts / record.attempt, within) for record in records]


def store_rejudged(attempt: RejudgedAttempt, settings: Settings) -> Path | None:
    """Replace the stored record by one judged with the current rules, and move the old record to `superseded`.

    Returns the new path of the old record, or None if nothing changed. The new record uses the configuration's own
    `recovered_within`. The derived files next to the raw files are rewritten.
    """
    store = Store(settings.results)
    record = judge(settings.attempts / attempt.before.attempt)
    path = store.path(attempt.before)
    # A record that differs only in the names of an older schema is kept.
    if record == attempt.before:
        return None
    schema = json.loads(path.read_bytes())["schema"]
    moved = settings.results / SUPERSEDED / path.parent.name / f"{path.stem}.schema-{schema}.json"
    number = 1
    while moved.exists():
        number += 1
        moved = moved.with_name(f"{path.stem}.schema-{schema}.{number}.json")
    store.replace(record, moved)
    return moved


def _rejudge_one(record: Record, folder: Path, within: Sequence[float]) -> RejudgedAttempt:
    if record.status in ("failed", "cancelled"):
        return RejudgedAttempt(record, {}, f"{record.status}: it was not measured to its end")
    if not folder.is_dir():
        return RejudgedAttempt(record, {}, "its raw files are gone")
    try:
        return RejudgedAttempt(record, {share: judge_readonly(folder, within=share).record for share in within})
    except InfrastructureError as error:
        return RejudgedAttempt(record, {}, one_line(str(error)))
