"""What dead attempts left behind: processes, topics, ports, folders. The next attempt cleans it up before it begins.

An attempt is an orphan when it was never closed and nobody will close it: its run in Airflow is over, the process
that ran it without a scheduler is gone, or it could not be healed. Only what its own ledger and marks name is touched,
and doing it twice does nothing more.
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

# A folder without plan and ledger that is younger may be one that is just being made.
MIN_AGE_S = 60.0


def close_orphans(
    settings: Settings, at_work: Callable[[str], bool], delete_topics: Callable[[list[str]], None]
) -> list[str]:
    """Closes every orphan and deletes its topics; returns a line for each, also for one that resisted.

    `at_work`: whether Airflow's run of this id is queued or running, and not the caller's own.
    """
    said = _clean_up(settings, lambda attempt: _is_orphan(attempt, at_work), delete_topics)
    _remove_partial_records(settings.records)
    return said


def close_ownerless(settings: Settings, delete_topics: Callable[[list[str]], None]) -> list[str]:
    """The same of those only that ran without a scheduler and whose process is gone, such as after a power cut: nobody
    goes on with them. Not beside a window that is measured."""
    with contextlib.suppress(FaultlineError):  # damaged: it is named below
        if not any(_is_ownerless(attempt) for attempt in unclosed_attempts(settings)):
            return []
    with share_measurement_lock(settings.window_lock):
        return _clean_up(settings, _is_ownerless, delete_topics)


def _clean_up(
    settings: Settings, is_dead: Callable[[Attempt], bool], delete_topics: Callable[[list[str]], None]
) -> list[str]:
    said = []
    for attempt in unclosed_attempts(settings):
        try:
            if not attempt.is_of(settings.home) or not is_dead(attempt):
                continue
            with processes_ended_if_unreadable(attempt):
                run = run_of(attempt, settings)
            outcome = close_attempt(run, delete_topics)
            cleaned = f"{attempt.id}: a dead attempt, cleaned up ({len(outcome['ended'])} processes ended)"
            trouble = f", but not healed: {why}; the next one tries again" if (why := outcome.get("unhealed")) else ""
            said.append(cleaned + trouble)
        except Exception as error:  # whatever a damaged folder leads to, it must not stop the next experiment
            damaged = f"its files are damaged ({type(error).__name__}: {error}); move its folder away"
            why = str(error) if isinstance(error, FaultlineError) else damaged
            said.append(f"{attempt.id}: a dead attempt that could not be cleaned up: {why}")
    return said


def unclosed_attempts(settings: Settings) -> list[Attempt]:
    """Attempts that nobody has closed, the oldest first; a folder that never came to be one is closed here."""
    if not settings.attempts.is_dir():
        return []
    found = []
    for folder in sorted(settings.attempts.iterdir()):
        attempt = Attempt(folder)
        # What another user laid there, such as a link to a folder elsewhere, is not looked into.
        if not attempt.is_own() or attempt.closed.exists():
            continue
        # One from before there were plans has a ledger alone, once anything was started.
        if attempt.plan.exists() or attempt.ledger.exists():
            found.append(attempt)
        elif time.time() - folder.stat().st_mtime > MIN_AGE_S:
            # Its `prepare` died before it wrote the plan: nothing was started.
            with contextlib.suppress(InfrastructureError):  # no room: the next one closes it
                write_json(attempt.closed, {"ended": [], "topics": []})
    return found


def _is_orphan(attempt: Attempt, at_work: Callable[[str], bool]) -> bool:
    if attempt.unhealed.exists():
        return True
    description = attempt.read()
    if description.get("owner"):
        return _is_ownerless(attempt)
    run_id = description.get("run_id")
    return bool(run_id) and not at_work(str(run_id))


def _is_ownerless(attempt: Attempt) -> bool:
    """Whether the process that ran it by itself is gone. What could not be healed is for whoever measures next."""
    owner = attempt.read().get("owner")
    return owner is not None and not attempt.unhealed.exists() and live_process(**owner) is None


def _remove_partial_records(records: Path) -> None:
    """Removes records that were half written when their writer died: `.<attempt>.json.<pid>.tmp`."""
    for part in records.glob("*/.*.json.*.tmp"):
        pid = part.name.split(".")[-2]
        with contextlib.suppress(FileNotFoundError):
            # Its writer may be on another machine that shares the folder; nobody writes as long as this.
            settled = time.time() - part.stat().st_mtime > MIN_AGE_S
            if settled and pid.isdigit() and not psutil.pid_exists(int(pid)):
                part.unlink()
