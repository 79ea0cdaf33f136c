"""Startup check of a user program: deviations from its configuration, found before a timeout."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from faultline.engines.spark.checkpoint import initial_offsets
from faultline.engines.spark.collect import APPLICATION
from faultline.engines.spark.conf_rules import reserved_settings
from faultline.engines.spark.rest import fetch_list
from faultline.experiment.attempt import Attempt, write_json
from faultline.system.errors import InfrastructureError
from faultline.system.files import read_document
from faultline.system.socket_owner import fetch

# Spark's description of a micro-batch job.
BATCH_DESCRIPTION = re.compile(r"\bbatch = \d+")
# Interval between checks, and time for which a deviation is tolerated, such as an earlier query without the checkpoint.
CHECK_INTERVAL_S, GRACE_S = 5.0, 20.0
MASTER = "spark.master"


class ProgramCheck:
    """Startup check of a user program.

    `attempt`: the running attempt. `topic`: its input. `now`: clock in seconds.
    """

    def __init__(
        self, attempt: Attempt, driver_ui: str, topic: str | None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._attempt, self._topic, self._now = attempt, topic, now
        self._applications = f"{driver_ui}/api/v1/applications"
        self._next_s = now() + CHECK_INTERVAL_S
        self._since_s: float | None = None
        self._settings_known = False

    def check(self) -> None:
        """Raise InfrastructureError with the required change of the program, once it is certain."""
        if self._now() < self._next_s:
            return
        self._next_s = self._now() + CHECK_INTERVAL_S
        self._check_settings()
        checkpoint = self._attempt.checkpoint
        if any((checkpoint / "offsets").glob("[0-9]*")):
            if self._has_begun() and self._settings_known:
                self._next_s = float("inf")
        elif inner := _queries_in(checkpoint):
            many = len(inner) > 1
            self._raise_after_grace(
                f"program: got checkpoints in sub-folders ({', '.join(inner)}); expected one query that uses the "
                "checkpoint itself; fix: "
                + ("split the queries into separate programs" if many else "use {checkpoint} unchanged")
            )
        elif self._has_done_a_batch():
            self._raise_after_grace(
                "program: batches completed without the given checkpoint; fix: use {checkpoint} (or "
                "FAULTLINE_CHECKPOINT) as checkpointLocation"
            )

    def _raise_after_grace(self, message: str) -> None:
        self._since_s = self._now() if self._since_s is None else self._since_s
        if self._now() - self._since_s >= GRACE_S:
            raise InfrastructureError(message)

    def _check_settings(self) -> None:
        """Compare the application's settings with the requested ones, once its REST API answers."""
        if self._settings_known:
            return
        for application in fetch_list(self._applications):
            answer = fetch(f"{self._applications}/{application['id']}/environment", timeout_s=1.0)
            if isinstance(answer, dict) and answer.get("sparkProperties"):
                running = {str(name): str(value) for name, value in answer["sparkProperties"]}
                write_json(self._attempt.folder / APPLICATION, running)
                self._settings_known = True
                if (mismatch := setting_mismatch(requested_settings(self._attempt), running)) is not None:
                    raise InfrastructureError(f"program: {mismatch}")

    def _has_begun(self) -> bool:
        """Return whether the query reads its input from the beginning."""
        start = initial_offsets(self._attempt.checkpoint, self._topic)
        if start is None:
            self._raise_after_grace(
                f"program: no source reads the input topic {self._topic}; fix: subscribe to {{input}} (or "
                "FAULTLINE_INPUT)"
            )
            return False
        if any(start.values()):
            raise InfrastructureError(
                f'program: got start offset {max(start.values()):,}; expected 0; fix: set startingOffsets to "earliest"'
            )
        return True

    def _has_done_a_batch(self) -> bool:
        return any(
            BATCH_DESCRIPTION.search(str(job.get("description") or ""))
            for application in fetch_list(self._applications)
            for job in fetch_list(f"{self._applications}/{application['id']}/jobs?status=succeeded")
        )


def requested_settings(attempt: Attempt) -> dict[str, str]:
    """Return the settings on the command line of an attempt's workload."""
    words = [str(word) for word in read_document(attempt.folder / "workload.json")["processes"][0]["command"]]
    # Arguments after the program are its own.
    command = [*itertools.takewhile(lambda word: not word.startswith(str(attempt.job)), words)]
    requested = dict(
        value.split("=", 1) for option, value in zip(command, command[1:], strict=False) if option == "--conf"
    )
    if "--master" in command:
        requested[MASTER] = command[command.index("--master") + 1]
    return requested


def setting_mismatch(requested: Mapping[str, str], running: Mapping[str, str]) -> str | None:
    """Return the first reserved setting that differs from the request, with the fix; None if all match."""
    for name, remedy in reserved_settings().items():
        value = running.get(name)
        # Spark redacts values that may contain secrets.
        if value is not None and name in requested and value != requested[name] and "(redacted)" not in value:
            return f"got {name}={value} from its code; expected {requested[name]}; fix: do not set it, {remedy}"
    return None


def _queries_in(checkpoint: Path) -> Sequence[str]:
    """Return the sub-folders of a checkpoint that are checkpoints themselves."""
    return sorted(path.parent.name for path in checkpoint.glob("*/offsets") if path.is_dir())
