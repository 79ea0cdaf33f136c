"""The last steps of an experiment: judge it, store the record, and close the attempt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from faultline.attempt import Attempt, write_json
from faultline.errors import ConfigError, FaultlineError, InfrastructureError, InvalidMeasurement
from faultline.harvesting import remove_working_data
from faultline.journal import Journal, read_journal
from faultline.judge import failed_record, judge
from faultline.processes import end_ledger, end_processes, processes_with_token
from faultline.raw import AttemptFile, read_attempt
from faultline.record import Record
from faultline.settings import Settings
from faultline.store import Store


def note_failure(folder: Path, step: str, error: BaseException) -> None:
    """Keeps why a step failed, for the record that `close` writes."""
    folder.mkdir(parents=True, exist_ok=True)
    with Journal(folder / "failures.jsonl") as journal:
        journal.write("failed", step=step, kind=type(error).__name__, message=str(error))


def judge_attempt(attempt: Attempt, settings: Settings) -> Record:
    """Judges the raw files and stores the record; an attempt that has its record keeps it."""
    store = Store(settings.results)
    existing = stored_record(attempt, settings)
    if existing is not None:
        return existing
    record = judge(attempt.folder)
    store.write(record)
    return record


def require_valid(record: Record) -> None:
    """Raises InvalidMeasurement with the reasons unless the record is valid."""
    if record.status != "valid":
        raise InvalidMeasurement(f"{record.attempt}: {record.status}: {'; '.join(record.reasons)}")


def stored_record(attempt: Attempt, settings: Settings) -> Record | None:
    """The record that the store holds of this attempt, if any."""
    for path in settings.records.glob(f"*/{attempt.id}.json"):
        return Record.model_validate_json(path.read_bytes())
    return None


def error_of(record: Record) -> FaultlineError | None:
    """What a finished cell's newest record means for its sweep; None when it is valid."""
    text = "; ".join(record.reasons) or record.status
    if record.status == "valid":
        return None
    if record.status == "invalid":
        return InvalidMeasurement(text)
    return ConfigError(text) if text.startswith("ConfigError") else InfrastructureError(text)


def close(attempt: Attempt, settings: Settings) -> dict[str, Any]:
    """Ends the attempt's processes, writes the record that is still missing, and removes working data.

    Idempotent. Returns {"ended": pids, "topics": topics that may be deleted}. Topics are kept when
    the harvest did not read them, so that nothing measured is lost.
    """
    ended = end_ledger(attempt.ledger)
    ended += end_processes(processes_with_token(attempt.id))
    if stored_record(attempt, settings) is None:
        Store(settings.results).write(missing_record(attempt))
    harvested = (attempt.harvest / "counts.parquet").exists()
    description = attempt.read()
    topics = list(description["topics"].values()) if harvested or not attempt.gate.exists() else []
    if topics:
        remove_working_data(attempt, settings)
    write_json(attempt.folder / "closed.json", {"ended": ended, "topics": topics})
    return {"ended": ended, "topics": topics}


def missing_record(attempt: Attempt) -> Record:
    """The record of an attempt that no judge got to see: `cancelled` or `failed`, with the noted reasons."""
    failures = read_journal(attempt.folder / "failures.jsonl")
    reasons = [f"{line['kind']}: {line['step']}: {line['message']}" for line in failures]
    status: Literal["failed", "cancelled"] = "failed"
    if any(str(line["message"]).startswith("cancelled") for line in failures):
        status = "cancelled"
    if not reasons:
        reasons = ["InfrastructureError: the run ended before it was judged, and left no message"]
    return failed_record(read_attempt(attempt.folder), status, reasons, attempt.folder)


def refused_record(description: dict[str, Any], error: FaultlineError) -> Record:
    """The record of an experiment that `prepare` refused before it had an attempt's folder."""
    reason = f"{type(error).__name__}: prepare: {error}"
    status: Literal["failed", "cancelled"] = "cancelled" if str(error).startswith("cancelled") else "failed"
    return failed_record(AttemptFile.model_validate(description), status, [reason])


def is_closed(attempt: Attempt) -> bool:
    """Whether the attempt's teardown has run; its steps cannot be repeated then."""
    return (attempt.folder / "closed.json").exists()


def refuse_closed(attempt: Attempt) -> None:
    """Raises ConfigError for a step that was cleared alone on a closed attempt."""
    if is_closed(attempt):
        raise ConfigError(f"{attempt.id}: this attempt is closed; clear the whole run, which measures anew")


def record_json(record: Record) -> str:
    return json.dumps(record.as_dict(), indent=2)
