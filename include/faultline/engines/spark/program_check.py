"""Deviations of a user's program from its configuration, found while it starts and before the wait for its first
commit times out.
"""

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

# How Spark describes each job of a micro-batch.
BATCH_DESCRIPTION = re.compile(r"\bbatch = \d+")
# Seconds between two looks; and for how long batches may be done with nothing in the checkpoint, as of a query that is
# started before the one that counts.
CHECK_INTERVAL_S, GRACE_S = 5.0, 20.0
MASTER = "spark.master"


class ProgramCheck:
    """A program that knows nothing of Faultline, while it starts.

    `folder`: of the attempt. `checkpoint`: the one that it was given. `topic`: its input. `now`: seconds of any clock.
    """

    def __init__(
        self, attempt: Attempt, driver_ui: str, topic: str | None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._attempt, self._topic, self._now = attempt, topic, now
        self._applications = f"{driver_ui}/api/v1/applications"
        self._next_s = now() + CHECK_INTERVAL_S
        self._since_s: float | None = None
        self._settings_known = False

    def look(self) -> None:
        """Raises InfrastructureError with what is to be changed in the program, once that is sure."""
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
            self._require_soon(
                f"program: it keeps {'several queries' if many else 'its query'} in folders of the checkpoint that it "
                f"was given ({', '.join(inner)}), and one query in the checkpoint itself is measured; "
                + ("measure each in a program of its own" if many else "use {checkpoint} as it is")
            )
        elif self._has_done_a_batch():
            self._require_soon(
                "program: it works through batches, and nothing stands in the checkpoint that it was given; have "
                "its query use {checkpoint} (or FAULTLINE_CHECKPOINT) as its checkpointLocation"
            )

    def _require_soon(self, what: str) -> None:
        self._since_s = self._now() if self._since_s is None else self._since_s
        if self._now() - self._since_s >= GRACE_S:
            raise InfrastructureError(what)

    def _check_settings(self) -> None:
        """Compares the settings of the running application with the requested ones, once its REST answers."""
        if self._settings_known:
            return
        for application in fetch_list(self._applications):
            answer = fetch(f"{self._applications}/{application['id']}/environment", timeout_s=1.0)
            if isinstance(answer, dict) and answer.get("sparkProperties"):
                running = {str(name): str(value) for name, value in answer["sparkProperties"]}
                write_json(self._attempt.folder / APPLICATION, running)
                self._settings_known = True
                if (trouble := setting_mismatch(requested_settings(self._attempt), running)) is not None:
                    raise InfrastructureError(f"program: {trouble}")

    def _has_begun(self) -> bool:
        """Whether it reads its input, all that was sent before the query began."""
        start = initial_offsets(self._attempt.checkpoint, self._topic)
        if start is None:
            self._require_soon(
                f"program: none of its sources reads its input, {self._topic}; have one subscribe to {{input}} (or "
                "FAULTLINE_INPUT)"
            )
            return False
        if any(start.values()):
            raise InfrastructureError(
                f"program: it begins at offset {max(start.values()):,} of its input, and what was sent before it began "
                'belongs to it; set its startingOffsets to "earliest"'
            )
        return True

    def _has_done_a_batch(self) -> bool:
        return any(
            BATCH_DESCRIPTION.search(str(job.get("description") or ""))
            for application in fetch_list(self._applications)
            for job in fetch_list(f"{self._applications}/{application['id']}/jobs?status=succeeded")
        )


def requested_settings(attempt: Attempt) -> dict[str, str]:
    """The settings on the command line of an attempt's workload."""
    whole = [str(word) for word in read_document(attempt.folder / "workload.json")["processes"][0]["command"]]
    # What follows the program is its own.
    command = [*itertools.takewhile(lambda word: not word.startswith(str(attempt.job)), whole)]
    asked = dict(value.split("=", 1) for option, value in zip(command, command[1:], strict=False) if option == "--conf")
    if "--master" in command:
        asked[MASTER] = command[command.index("--master") + 1]
    return asked


def setting_mismatch(asked: Mapping[str, str], running: Mapping[str, str]) -> str | None:
    """The first setting that the measuring relies on and that runs otherwise than asked, with the remedy; or None."""
    for name, remedy in reserved_settings().items():
        value = running.get(name)
        # A value that may hold a secret is shown by stars.
        if value is not None and name in asked and value != asked[name] and "(redacted)" not in value:
            return f"it sets {name} to {value} itself, and runs under {asked[name]}; leave it out, {remedy}"
    return None


def _queries_in(checkpoint: Path) -> Sequence[str]:
    """Folders of a checkpoint that are checkpoints themselves."""
    return sorted(path.parent.name for path in checkpoint.glob("*/offsets") if path.is_dir())
