"""State epochs of commit mode `none`: ephemeral checkpoints that are discarded after a failure.

Spark itself would retry from any checkpoint. A job without checkpoints loses its state with an executor or the driver,
so the workload supervisor ends the epoch: the query stops, its checkpoint is deleted, and a new epoch starts at the
latest offsets. A control file requests this from the program, which answers through another file (see `StateEpochs` in
spark_jobs/workload_runner.py).
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
    """State epochs of one attempt; it creates all files, so that a restarted program finds them."""

    def __init__(self, attempt: Attempt, driver_ui: str) -> None:
        self._attempt = attempt
        self._driver_ui = driver_ui
        self._lost: set[tuple[str, str]] = set()
        self._stopping = False
        self.epoch = 0
        self._folder_of_epochs = make_ephemeral_checkpoint(attempt)
        self._link_checkpoint()

    def watch(self, journal: Journal) -> None:
        """End the epoch after an executor loss, and start the next once the query has stopped."""
        lost = self._lost_executors()
        if self._stopping:
            # Losses detected while the query stops belong to this epoch.
            self._lost |= lost
            with contextlib.suppress(OSError, ValueError):
                if int(control_files(self._attempt)["stopped"].read_text()) == self.epoch:
                    self._begin_next(journal, "an executor was lost")
            return
        if lost - self._lost:
            self._stopping = True
            self._write_control(stop=True)
        self._lost |= lost

    def on_driver_exit(self, journal: Journal) -> None:
        """Start a new epoch, because no state survives the driver."""
        self._begin_next(journal, "the driver was lost")

    def _begin_next(self, journal: Journal, reason: str) -> None:
        checkpoint.archive_epoch(self._folder(), self._attempt.lineages / str(self.epoch))
        self.epoch += 1
        self._stopping = False
        self._lost |= self._lost_executors()
        self._link_checkpoint()
        journal.write("lineage", lineage=self.epoch, reason=reason, sync=True)

    def _folder(self) -> Path:
        return self._folder_of_epochs / f"lineage-{self.epoch}"

    def _link_checkpoint(self) -> None:
        link = self._attempt.checkpoint
        new_link = link.with_name("checkpoint.next")
        new_link.unlink(missing_ok=True)
        new_link.symlink_to(self._folder())
        new_link.rename(link)
        self._write_control(stop=False)

    def _write_control(self, *, stop: bool) -> None:
        write_json(control_files(self._attempt)["control"], {"lineage": self.epoch, "stop": stop})

    def _lost_executors(self) -> set[tuple[str, str]]:
        applications = fetch_list(f"{self._driver_ui}/api/v1/applications")
        if not applications:
            return set()
        name = str(applications[0]["id"])
        executors = fetch_list(f"{self._driver_ui}/api/v1/applications/{name}/allexecutors")
        return {(name, str(executor["id"])) for executor in executors if not executor.get("isActive", True)}


def control_files(attempt: Attempt) -> dict[str, Path]:
    """Return the files for communication between supervisor and program."""
    return {"control": attempt.folder / "lineage.json", "stopped": attempt.folder / "lineage.stopped"}
