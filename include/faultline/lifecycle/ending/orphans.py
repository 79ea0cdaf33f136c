"""Cleanup of orphaned attempts: their processes, topics, ports and folders.

An attempt is an orphan if it was never closed and its owner is gone. The owner is its Airflow run, or the process that
ran it without a scheduler. An attempt with a failed undo also counts. Only what its own ledger and process tags name is
touched. Idempotent.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from faultline.experiment.attempt import Attempt, write_json
from faultline.experiment.run import run_of
from faultline.lifecycle.teardown import close_attempt, processes_ended_if_unreadable
from faultline.system.errors import FaultlineError, InfrastructureError
from faultline.system.locks import share_measurement_lock
from faultline.system.process_ledger import live_process
from faultline.system.settings import Settings

# A younger folder without plan and ledger may be under construction.
MIN_AGE_S = 60.0


def close_orphans(
    settings: Settings, is_active: Callable[[str], bool], delete_topics: Callable[[list[str]], None]
) -> list[str]:
    """Close every orphan and delete its topics; return a line for each, including failures.

    `is_active`: whether the Airflow run with this id is queued or running, and not the caller's own.
    """
    lines = _clean_up(settings, lambda attempt: _is_orphan(attempt, is_active), delete_topics)
    _remove_partial_records(settings.records)
    return lines


def close_ownerless(settings: Settings, delete_topics: Callable[[list[str]], None]) -> list[str]:
    """Close orphans that ran without a scheduler and whose process is gone, such as after a power cut.

    Waits for the end of a measured window.
    """
    with contextlib.suppress(FaultlineError):  # damaged attempts are reported below
        if not any(_is_ownerless(attempt) for attempt in unclosed_attempts(settings)):
            return []
    with share_measurement_lock(settings.window_lock):
        return _clean_up(settings, _is_ownerless, delete_topics)


def _clean_up(
    settings: Settings, is_dead: Callable[[Attempt], bool], delete_topics: Callable[[list[str]], None]
) -> list[str]:
    lines = []
    for attempt in unclosed_attempts(settings):
        try:
            if not attempt.is_of(settings.home) or not is_dead(attempt):
                continue
            with processes_ended_if_unreadable(attempt):
                run = run_of(attempt, settings)
            outcome = close_attempt(run, delete_topics)
            cleaned = f"{attempt.id}: orphaned attempt closed ({len(outcome['ended'])} processes ended)"
            trouble = (
                f"; undo failed: {why} (retried by the next experiment)" if (why := outcome.get("unhealed")) else ""
            )
            lines.append(cleaned + trouble)
        except Exception as error:  # a damaged folder must not stop the next experiment
            damaged = f"damaged files ({type(error).__name__}: {error}); fix: move its folder away"
            why = str(error) if isinstance(error, FaultlineError) else damaged
            lines.append(f"{attempt.id}: closing the orphaned attempt failed: {why}")
    return lines


def unclosed_attempts(settings: Settings) -> list[Attempt]:
    """Return open attempts, oldest first; close folders that never became attempts."""
    if not settings.attempts.is_dir():
        return []
    found = []
    for folder in sorted(settings.attempts.iterdir()):
        attempt = Attempt(folder)
        # Entries of other users, such as links elsewhere, are not followed.
        if not attempt.is_own() or attempt.closed.exists():
            continue
        # Attempts of versions before plans have only a ledger.
        if attempt.plan.exists() or attempt.ledger.exists():
            found.append(attempt)
        elif time.time() - folder.stat().st_mtime > MIN_AGE_S:
            # Its `prepare` died before writing the plan: no process was started.
            with contextlib.suppress(InfrastructureError):  # on a full disk the next experiment closes it
                write_json(attempt.closed, {"ended": [], "topics": []})
    return found


def _is_orphan(attempt: Attempt, is_active: Callable[[str], bool]) -> bool:
    if attempt.unhealed.exists():
        return True
    description = attempt.read()
    if description.get("owner"):
        return _is_ownerless(attempt)
    run_id = description.get("run_id")
    return bool(run_id) and not is_active(str(run_id))


def _is_ownerless(attempt: Attempt) -> bool:
    """Return whether the process that ran the attempt is gone.

    Attempts with a failed undo are left to the next experiment.
    """
    owner = attempt.read().get("owner")
    return owner is not None and not attempt.unhealed.exists() and live_process(**owner) is None


def _remove_partial_records(records: Path) -> None:
    """Remove temporary record files of dead writers: `.<attempt>.json.<pid>.tmp`."""
    for part in records.glob("*/.*.json.*.tmp"):
        pid = part.name.split(".")[-2]
        with contextlib.suppress(FileNotFoundError):
            # Its writer may run on another machine that shares the folder.
            is_old = time.time() - part.stat().st_mtime > MIN_AGE_S
            if is_old and pid.isdigit() and not psutil.pid_exists(int(pid)):
                part.unlink()
