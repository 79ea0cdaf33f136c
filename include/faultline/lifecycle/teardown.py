"""Last step of an experiment in any case: end its processes and close the attempt.

Only light modules are imported at the top, since tasks must end within seconds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from faultline.engines.registry import engine_of_plan
from faultline.experiment.attempt import Attempt, write_json
from faultline.experiment.run import Run
from faultline.installation.kafka import delete_own_topics
from faultline.lifecycle.collect import remove_recordings, remove_working_data
from faultline.system.background import restore
from faultline.system.errors import Cancelled, ConfigError, FaultlineError, InfrastructureError, InvalidMeasurement
from faultline.system.files import sync_files
from faultline.system.journal import Journal, read_journal
from faultline.system.process_ledger import boot_id, end_ledger, end_processes, processes_with_mark, read_ledger
from faultline.system.process_tags import RUN_MARK
from faultline.system.settings import Settings, instance
from faultline.system.target_registry import endpoints_at

if TYPE_CHECKING:
    from faultline.records.record import Record


def note_failure(folder: Path, step: str, error: BaseException) -> None:
    """Journal why a step failed, for the record that `close_attempt` writes; print it if the disk is full."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with Journal(folder / "failures.jsonl") as journal:
            journal.write("failed", step=step, kind=type(error).__name__, message=str(error))
    except (OSError, InfrastructureError) as problem:
        # Raising would hide the failure, and later steps may free space.
        print(f"{step}: noting the failure failed: {problem}")


def refuse_closed(attempt: Attempt) -> None:
    """Raise ConfigError for a step that was cleared alone on a closed attempt."""
    if attempt.over:
        raise ConfigError(f"{attempt.id}: attempt is closed; fix: clear the whole run")


def has_rebooted(attempt: Attempt) -> bool:
    """Return whether the machine rebooted since a process of the attempt started.

    Raw files and topics may then be incomplete.
    """
    present = boot_id()
    return any(entry.boot not in ("", present) for entry in read_ledger(attempt.ledger))


class UnfinishedError(InfrastructureError):
    """Attempt interrupted by a reboot; it cannot be measured any more."""


def refuse_unfinished(attempt: Attempt) -> None:
    """Raise UnfinishedError for an open attempt whose machine rebooted: its data is incomplete."""
    if not attempt.over and has_rebooted(attempt):
        raise UnfinishedError(
            f"{attempt.id}: machine rebooted before the judging, unsynced data is lost; fix: clear the whole run"
        )


def refuse_restarted(run: Run) -> None:
    """Raise InfrastructureError for an attempt whose services were restarted, which ended its processes."""
    began = run.plan.places.background
    if began is not None and began != instance(run.settings).get("instance"):
        raise InfrastructureError(f"{run.attempt.id}: services restarted during the attempt; fix: clear the whole run")


def close_attempt(run: Run, delete_topics: Callable[[list[str]], None]) -> dict[str, Any]:
    """End the attempt's processes, remove working data and topics, and write a missing record.

    Idempotent: the attempt is closed once all of that is done. Returns {"ended": pids, "topics": deleted}. If an undo
    failed, the attempt stays open and "unhealed" has the reason.

    Topics are kept on request, and if the run ended but was not harvested, unless the machine rebooted. On a full disk
    the removal makes room for the record, which needs raw files only.
    """
    attempt, settings, unhealed = run.attempt, run.settings, None
    try:
        ended = end_ledger(attempt.ledger)
    finally:
        # Even if a process does not end: a paused service would stay paused for all users.
        unhealed = undo_leftovers(run)
    ended += end_processes(processes_with_mark(RUN_MARK, attempt.id))
    restore(instance(settings).get("instance"), settings.window_lock)
    try:
        topics = _remove_data(run, delete_topics)
    finally:  # even if the broker is unreachable
        if not has_record(attempt, settings):
            from faultline.records.store import Store

            Store(settings.results).write(missing_record(attempt))
    outcome = {"ended": ended, "topics": topics}
    if unhealed is not None:
        write_json(attempt.unhealed, {"why": unhealed})
        return {**outcome, "unhealed": unhealed}
    write_json(attempt.closed, outcome)
    attempt.unhealed.unlink(missing_ok=True)
    return outcome


@contextlib.contextmanager
def processes_ended_if_unreadable(attempt: Attempt) -> Iterator[None]:
    """End the attempt's processes if reading its plan inside fails.

    Otherwise a recorder would hold the machine, and a stopped victim would stay stopped.
    """
    try:
        yield
    except Exception:
        try:
            end_ledger(attempt.ledger)
        finally:
            end_processes(processes_with_mark(RUN_MARK, attempt.id))
        raise


def _remove_data(run: Run, delete_topics: Callable[[list[str]], None]) -> list[str]:
    """Remove data that is not needed any more; return the deleted topics."""
    attempt, order = run.attempt, run.plan.order
    harvested = (attempt.harvest / "counts.parquet").exists()
    ran_through = (attempt.folder / "end.json").exists() and not has_rebooted(attempt)
    # Sync the harvest to disk before its sources are deleted.
    for folder in (attempt.harvest, attempt.folder):
        sync_files(folder)
    if ran_through and not harvested:
        engine_of_plan(run.plan).keep_logs(run)
        return []
    topics = [] if order.keep_topics else [topic.name for topic in run.plan.topics.values()]
    # The target's address may have changed since.
    target_settings = run.settings.for_target(endpoints_at(run.settings, str(order.config["target"])))
    delete = (
        delete_topics if target_settings.target is None else lambda names: delete_own_topics(target_settings, names)
    )
    try:
        remove_working_data(run)
        for problem in remove_recordings(run):
            print(problem)
    finally:
        # The broker is independent of a storage that may be unreachable.
        delete(topics)
    return topics


def undo_leftovers(run: Run) -> str | None:
    """Replay the undos that a dead fault scheduler left; return and note the error if one fails."""
    attempt = run.attempt
    if not attempt.conductor_journal.exists():
        return None
    from faultline.lifecycle.ending.undo_replay import replay_undos

    try:
        replay_undos(attempt)
    except FaultlineError as error:
        note_failure(attempt.folder, "heal", error)
        return str(error)
    return None


def missing_record(attempt: Attempt) -> Record:
    """Return the record of an attempt that was never judged, with the noted reasons.

    Its status is `cancelled`, `invalid` if a step found the measurement impossible, or `failed`.
    """
    from faultline.records.judge.evidence import read_attempt
    from faultline.records.judge.judge import failed_record

    failures = read_journal(attempt.folder / "failures.jsonl")
    # The status already reports the cancellation.
    reasons = [
        line["message"] if line["kind"] == Cancelled.__name__ else f"{line['kind']}: {line['step']}: {line['message']}"
        for line in failures
    ]
    kinds = [line["kind"] for line in failures]
    status: Literal["failed", "cancelled", "invalid"] = "failed"
    if Cancelled.__name__ in kinds:
        status = "cancelled"
    elif kinds and kinds[0] == InvalidMeasurement.__name__:
        status, reasons = "invalid", [failures[0]["message"]]
    if not reasons and attempt.read().get("owner"):
        # Without a scheduler the attempt is not retried.
        status, reasons = "cancelled", ["its process died, such as in a power cut; fix: run it again"]
    if not reasons:
        reasons = ["InfrastructureError: run ended before the judging, without a message"]
    return failed_record(read_attempt(attempt.folder), status, reasons, attempt.folder)


def refused_record(description: dict[str, Any], error: FaultlineError) -> Record:
    """Return the record of an experiment that `prepare` refused before it had a folder."""
    from faultline.records.judge.evidence import AttemptFile
    from faultline.records.judge.judge import failed_record

    reason = str(error) if isinstance(error, Cancelled) else f"{type(error).__name__}: prepare: {error}"
    status: Literal["failed", "cancelled"] = "cancelled" if isinstance(error, Cancelled) else "failed"
    return failed_record(AttemptFile.model_validate(description), status, [reason])


def has_record(attempt: Attempt, settings: Settings) -> bool:
    """Return whether the store has a record of this attempt."""
    return any(settings.records.glob(f"*/{attempt.id}.json"))
