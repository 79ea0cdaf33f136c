"""Notes of runs in Airflow."""

from __future__ import annotations

from faultline.base.errors import FaultlineError
from faultline.base.settings import Settings
from faultline.client.airflow_api import AirflowApi
from faultline.reports.headline import MAX_NOTE


def write_note(settings: Settings, dag_id: str, run_id: str, note: str) -> str | None:
    """Sets the note of a run through Airflow's API. Returns None, or why it could not be set.

    It never raises: a note is not worth a run. In `dag.test()` there is no server, and so no note.
    """
    try:
        AirflowApi(settings).set_note(dag_id, run_id, note[:MAX_NOTE])
    except (FaultlineError, OSError, ValueError, KeyError) as error:
        return f"no note for the run {run_id} of {dag_id}: {error}"
    return None
