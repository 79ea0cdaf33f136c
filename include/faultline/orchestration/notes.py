"""Notes of runs in Faultline's own Airflow."""

from __future__ import annotations

from typing import Any

from faultline.orchestration.airflow_api import AirflowApi
from faultline.reports.notes import MAX_NOTE, STOPPED
from faultline.system.errors import FaultlineError
from faultline.system.settings import Settings


def note_stopped(settings: Settings, dag_id: str, run_id: str) -> None:
    """Says in the note of a sweep that somebody stopped it, unless that stands there already."""
    try:
        api = AirflowApi(settings)
        if not str(api.run(dag_id, run_id).get("note") or "").startswith(STOPPED):
            api.set_note(dag_id, run_id, f"{STOPPED} by hand; the same form goes on from there.")
    except (FaultlineError, OSError, ValueError, KeyError) as error:
        print(f"no note for the run {run_id} of {dag_id}: {error}")


def note_run(settings: Settings, context: Any, note: str) -> None:
    """Sets the note of the run that a task belongs to; why it could not be set goes into the task's log."""
    if problem := write_note(settings, context["dag"].dag_id, context["run_id"], note):
        print(problem)


def write_note(settings: Settings, dag_id: str, run_id: str, note: str) -> str | None:
    """Sets the note of a run through Airflow's API. Returns None, or why it could not be set.

    It never raises: a note is not worth a run.
    """
    try:
        AirflowApi(settings).set_note(dag_id, run_id, note[:MAX_NOTE])
    except (FaultlineError, OSError, ValueError, KeyError) as error:
        return f"no note for the run {run_id} of {dag_id}: {error}"
    return None
