"""The last step of an experiment, whatever happened before: end its processes and close the attempt.

Only light modules are imported at the top: this runs in tasks that shall end within seconds.
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
        # Where it is told, it hides the failure; and what follows may make room.
        print(f"{step}: its failure could not be noted: {problem}")


def refuse_closed(attempt: Attempt) -> None:
    """Raises ConfigError for a step that was cleared alone on a closed attempt."""
    if attempt.over:
        raise ConfigError(f"{attempt.id}: this attempt is closed; clear the whole run, which measures anew")


def has_rebooted(attempt: Attempt) -> bool:
    """Whether the machine was started anew since a process of the attempt began. Then raw files and topics hold what
    happened to be on the disk."""
    present = boot_id()
    return any(entry.boot not in ("", present) for entry in read_ledger(attempt.ledger))


class UnfinishedError(InfrastructureError):
    """The attempt was cut off when its machine went down; nothing of it can be measured any more."""


def refuse_unfinished(attempt: Attempt) -> None:
    """Raises UnfinishedError for a step of an open attempt whose machine went down: its figures would be those of
    a part of it."""
    if not attempt.over and has_rebooted(attempt):
        raise UnfinishedError(
            f"{attempt.id}: the machine was started anew before it was judged, and what the disk did not have is lost; "
            "clear the whole run"
        )


def refuse_restarted(run: Run) -> None:
    """Raises InfrastructureError for an attempt whose services were started anew since, or ended: its processes ended
    with them."""
    began = run.plan.places.background
    if began is not None and began != instance(run.settings).get("instance"):
        raise InfrastructureError(
            f"{run.attempt.id}: the services were ended since it began; what it measured is lost; clear the whole run"
        )


def close_attempt(run: Run, delete_topics: Callable[[list[str]], None]) -> dict[str, Any]:
    """Ends the attempt's processes, removes working data and topics, writes the record that is still missing.

    Idempotent: an attempt counts as closed once all of that is done. Returns {"ended": pids, "topics": deleted}; with
    "unhealed", the reason, for one that stays open since what a fault did could not be undone.
    Topics are kept when that was asked for, and when the run came to its end and the harvest did not read them, so that
    nothing measured is lost; not when the machine went down meanwhile, and part of them is. On a full disk what is
    removed makes room for what is written; the record is made of raw files, which stay.
    """
    attempt, settings, unhealed = run.attempt, run.settings, None
    try:
        ended = end_ledger(attempt.ledger)
    finally:
        # Also when a process would not end: a paused service would stay so for everybody.
        unhealed = undo_leftovers(run)
    ended += end_processes(processes_with_mark(RUN_MARK, attempt.id))
    restore(instance(settings).get("instance"), settings.window_lock)
    try:
        topics = _remove_data(run, delete_topics)
    finally:  # also when the broker does not answer
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
    """Ends the attempt's processes where its plan, which is read inside, cannot be read: a recorder would keep the
    machine, and a stopped victim would stay so, for as long as nobody mends the file."""
    try:
        yield
    except Exception:
        try:
            end_ledger(attempt.ledger)
        finally:
            end_processes(processes_with_mark(RUN_MARK, attempt.id))
        raise


def _remove_data(run: Run, delete_topics: Callable[[list[str]], None]) -> list[str]:
    """Removes what nobody reads any more; returns the topics that were deleted."""
    attempt, order = run.attempt, run.plan.order
    harvested = (attempt.harvest / "counts.parquet").exists()
    ran_through = (attempt.folder / "end.json").exists() and not has_rebooted(attempt)
    # What was made of checkpoint and topics is on the disk before they go.
    for folder in (attempt.harvest, attempt.folder):
        sync_files(folder)
    if ran_through and not harvested:
        engine_of_plan(run.plan).keep_logs(run)
        return []
    topics = [] if order.keep_topics else [topic.name for topic in run.plan.topics.values()]
    # Where the target is reached today: its address may have changed since.
    there = run.settings.for_target(endpoints_at(run.settings, str(order.config["target"])))
    delete = delete_topics if there.target is None else lambda names: delete_own_topics(there, names)
    try:
        remove_working_data(run)
        for problem in remove_recordings(run):
            print(problem)
    finally:
        # Whatever becomes of the rest: a storage may be away that the broker knows nothing of.
        delete(topics)
    return topics


def undo_leftovers(run: Run) -> str | None:
    """Undoes what a dead conductor left. What cannot be undone is noted, and given; it stops nothing else."""
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
    """The record of an attempt that no judge got to see: `cancelled`, `invalid` when a step found out that nothing can
    be measured, or `failed`; with the noted reasons."""
    from faultline.records.judge.evidence import read_attempt
    from faultline.records.judge.judge import failed_record

    failures = read_journal(attempt.folder / "failures.jsonl")
    # The status says already that it was cancelled.
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
        # Without a scheduler nobody begins it again.
        status, reasons = "cancelled", ["the process that ran it ended, as by a power cut; run it again"]
    if not reasons:
        reasons = ["InfrastructureError: the run ended before it was judged, and left no message"]
    return failed_record(read_attempt(attempt.folder), status, reasons, attempt.folder)


def refused_record(description: dict[str, Any], error: FaultlineError) -> Record:
    """The record of an experiment that `prepare` refused before it had an attempt's folder."""
    from faultline.records.judge.evidence import AttemptFile
    from faultline.records.judge.judge import failed_record

    reason = str(error) if isinstance(error, Cancelled) else f"{type(error).__name__}: prepare: {error}"
    status: Literal["failed", "cancelled"] = "cancelled" if isinstance(error, Cancelled) else "failed"
    return failed_record(AttemptFile.model_validate(description), status, [reason])


def has_record(attempt: Attempt, settings: Settings) -> bool:
    """Whether the store has a record of this attempt."""
    return any(settings.records.glob(f"*/{attempt.id}.json"))
