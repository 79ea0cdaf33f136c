"""The step `judge`: the record of an attempt, stored, and what it means for whoever asked for it."""

from __future__ import annotations

from pydantic import ValidationError

from faultline.experiment.attempt import Attempt
from faultline.records.judge.judge import judge
from faultline.records.record import Record
from faultline.records.store import Store
from faultline.system.errors import ConfigError, FaultlineError, InfrastructureError, InvalidMeasurement
from faultline.system.files import sync_files
from faultline.system.settings import Settings


def judge_attempt(attempt: Attempt, settings: Settings) -> Record:
    """Judges the raw files and stores the record; an attempt that has its record keeps it."""
    store = Store(settings.results)
    existing = stored_record(attempt, settings)
    if existing is not None and existing.status != "failed":
        return existing
    record = judge(attempt.folder)
    # There is no record of which the disk lacks what it was made of.
    for folder in (attempt.harvest, attempt.spark_logs, attempt.folder):
        sync_files(folder)
    store.write(record)
    return record


def require_valid(record: Record) -> None:
    """Raises InvalidMeasurement with the reasons unless the record's figures count."""
    if not record.sound:
        raise InvalidMeasurement(f"{record.attempt}: {record.status}: {'; '.join(record.reasons)}")


def error_of(record: Record) -> FaultlineError | None:
    """What a finished cell's newest record means for its sweep; None when it is valid."""
    text = "; ".join(record.reasons) or record.status
    if record.sound:
        return None
    if record.status == "unsound":
        return InvalidMeasurement(text)
    return ConfigError(text) if text.startswith("ConfigError") else InfrastructureError(text)


def stored_record(attempt: Attempt, settings: Settings) -> Record | None:
    """The record that the store holds of this attempt, if any. Raises InfrastructureError for a damaged one."""
    for path in settings.records.glob(f"*/{attempt.id}.json"):
        try:
            return Record.model_validate_json(path.read_bytes())
        except ValidationError:
            raise InfrastructureError(f"{path}: is no whole record; move it away, then clear the task judge") from None
    return None
