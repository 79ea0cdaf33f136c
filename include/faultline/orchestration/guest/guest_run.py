"""Whether this process does the work of a run in an Airflow of others."""

from __future__ import annotations

import os

# Set by the conductor in the processes that it starts for the work of tasks.
GUEST_RUN = "FAULTLINE_GUEST_RUN"


def is_guest_run() -> bool:
    """Of such a run Faultline's own Airflow knows nothing, and needs not be up."""
    return bool(os.environ.get(GUEST_RUN))
