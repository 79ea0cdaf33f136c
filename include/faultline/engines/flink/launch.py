"""Replace this process by one incarnation of a Flink JVM.

    python -m faultline.engines.flink.launch FILE faultline-run=ATTEMPT

`FILE` is JSON: `command`, and for a JobManager `checkpoints`, the folder of its job. A restarted JobManager restores
the newest retained checkpoint, and a restarted TaskManager registers under a new resource id, as a resource manager
would arrange.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from faultline.engines.flink.checkpoints import newest_in

RESTORE = "--fromSavepoint"
RESOURCE_ID = "-Dtaskmanager.resource-id="


def incarnation_command(specification: dict[str, Any], pid: int) -> list[str]:
    """Return the command of the next incarnation; `pid` makes a TaskManager's resource id unique."""
    command: list[str] = list(specification["command"])
    if "checkpoints" not in specification:
        return [*command, f"{RESOURCE_ID}{specification['name']}-{pid}"]
    newest = newest_in(Path(specification["checkpoints"]))
    if newest is None:
        return command
    # Arguments after the script's address belong to the script.
    at = command.index("--scriptUri")
    return [*command[:at], RESTORE, newest.folder.as_uri(), *command[at:]]


def main(arguments: Sequence[str]) -> None:
    command = incarnation_command(json.loads(Path(arguments[0]).read_text()), os.getpid())
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
