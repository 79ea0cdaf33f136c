"""Whether a user's program keeps its progress where it was told to: its jobs show it long before its commits have been
waited for in vain."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

from faultline.base.errors import InfrastructureError
from faultline.engines.spark.rest import fetch_list

# How Spark describes each job of a micro-batch.
OF_A_BATCH = re.compile(r"\bbatch = \d+")
# Seconds between two looks; and for how long batches may be done with nothing in the checkpoint, as of a query that is
# started before the one that counts.
LOOK_S, PATIENCE_S = 5.0, 20.0


class OwnCheckpoint:
    """The checkpoint that a program was given, beside what its driver says of its jobs. `now`: seconds of any clock."""

    def __init__(self, checkpoint: Path, driver_ui: str, now: Callable[[], float] = time.monotonic) -> None:
        self._checkpoint, self._ui, self._now = checkpoint, driver_ui, now
        self._next_s = now() + LOOK_S
        self._since_s: float | None = None

    def look(self) -> None:
        """Raises InfrastructureError once batches were done for a while, and nothing stands in the checkpoint."""
        if self._now() < self._next_s:
            return
        self._next_s = self._now() + LOOK_S
        if self._checkpoint.is_dir() and any(self._checkpoint.iterdir()):
            self._next_s = float("inf")
        elif self._has_done_a_batch():
            self._since_s = self._now() if self._since_s is None else self._since_s
            if self._now() - self._since_s >= PATIENCE_S:
                raise InfrastructureError(
                    "program: it works through batches, and nothing stands in the checkpoint that it was given; have "
                    "its query use {checkpoint} (or FAULTLINE_CHECKPOINT) as its checkpointLocation"
                )

    def _has_done_a_batch(self) -> bool:
        applications = f"{self._ui}/api/v1/applications"
        return any(
            OF_A_BATCH.search(str(job.get("description") or ""))
            for application in fetch_list(applications)
            for job in fetch_list(f"{applications}/{application['id']}/jobs?status=succeeded")
        )
