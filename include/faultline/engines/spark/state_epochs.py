"""State lineages of commit mode `none`: a throw-away checkpoint that no failure is allowed to reuse.

Spark itself would retry from whatever checkpoint it has. A job without checkpoints loses its state
with an executor or the driver, so the workload supervisor ends a lineage on such a loss: the query stops, its
checkpoint is deleted, and a new lineage begins at the latest offsets. The program is told through a
small file, and answers through another (see `Lineages` in spark_jobs/workload_runner.py).
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from faultline.engines.spark import checkpoint
from faultline.engines.spark.rest import fetch_list
from faultline.engines.spark.shared_storage import make_ephemeral_checkpoint
from faultline.experiment.attempt import Attempt, write_json
from faultline.system.journal import Journal


class StateEpochManager:
    """Keeps one attempt's lineages; all files are made here, so that a restart finds them."""

    def __init__(self, attempt: Attempt, driver_ui: str) -> None:
        self._attempt = attempt
        self._driver_ui = driver_ui
        self._lost: set[tuple[str, str]] = set()
        self._stopping = False
        self.lineage = 0
        self._throwaway = make_ephemeral_checkpoint(attempt)
        self._point()

    def watch(self, journal: Journal) -> None:
        """One look: ends the lineage when an executor was lost, begins the next when the query has stopped."""
        lost = self._lost_executors()
        if self._stopping:
            # What is noticed while the query stops was lost to this lineage as well.
            self._lost |= lost
            with contextlib.suppress(OSError, ValueError):
                if int(control_files(self._attempt)["stopped"].read_text()) == self.lineage:
                    self._begin_next(journal, "an executor was lost")
            return
        if lost - self._lost:
            self._stopping = True
            self._tell(stop=True)
        self._lost |= lost

    def on_driver_exit(self, journal: Journal) -> None:
        """Nothing outlives the driver: the restarted one begins a new lineage."""
        self._begin_next(journal, "the driver was lost")

    def _begin_next(self, journal: Journal, reason: str) -> None:
        checkpoint.archive_epoch(self._folder(), self._attempt.lineages / str(self.lineage))
        self.lineage += 1
        self._stopping = False
        self._lost |= self._lost_executors()
        self._point()
        journal.write("lineage", lineage=self.lineage, reason=reason, sync=True)

    def _folder(self) -> Path:
        return self._throwaway / f"lineage-{self.lineage}"

    def _point(self) -> None:
        link = self._attempt.checkpoint
        fresh = link.with_name("checkpoint.next")
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(self._folder())
        fresh.rename(link)
        self._tell(stop=False)

    def _tell(self, *, stop: bool) -> None:
        write_json(control_files(self._attempt)["control"], {"lineage": self.lineage, "stop": stop})

    def _lost_executors(self) -> set[tuple[str, str]]:
        applications = fetch_list(f"{self._driver_ui}/api/v1/applications")
        if not applications:
            return set()
        name = str(applications[0]["id"])
        executors = fetch_list(f"{self._driver_ui}/api/v1/applications/{name}/allexecutors")
        return {(name, str(executor["id"])) for executor in executors if not executor.get("isActive", True)}


def control_files(attempt: Attempt) -> dict[str, Path]:
    """The two files through which supervisor and program speak."""
    return {"control": attempt.folder / "lineage.json", "stopped": attempt.folder / "lineage.stopped"}
