"""Becomes a command on a host, once that is there.

python -m faultline.installation.hosts.enter NAME COMMAND...
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from faultline.installation.hosts.group import put_in_group
from faultline.installation.hosts.keeper import THERE
from faultline.installation.hosts.layout import folder_of, found
from faultline.system.errors import FaultlineError
from faultline.system.files import read_document
from faultline.system.processes import live_process
from faultline.system.settings import Settings, load_settings
from faultline.system.waiting import wait_until

START_S = 60.0


def first_process(settings: Settings, name: str) -> int | None:
    """The pid, on this machine, of the host's first process; None while the host is not there."""
    try:
        there = read_document(folder_of(settings, name) / THERE)
    except FaultlineError:
        return None
    process = live_process(there["pid"], 0.0, there["start_ticks"], there["boot"])
    return None if process is None else process.pid


def entering(pid: int, command: Sequence[str]) -> list[str]:
    """The command that runs another one on the host whose first process this is, in the present folder."""
    spaces = ["--net", "--pid", "--mount", "--uts"]
    return [str(found("nsenter")), "--target", str(pid), *spaces, f"--wd={Path.cwd()}", "--", *command]


def through(name: str, command: Sequence[str]) -> list[str]:
    """What is run here so that the command runs there."""
    return [sys.executable, "-P", "-m", "faultline.installation.hosts.enter", name, *command]


def main() -> None:
    name, *command = sys.argv[1:]
    settings = load_settings()
    pid = wait_until(lambda: first_process(settings, name), timeout_s=START_S, every_s=0.1, what=f"{name}: the host")
    host = next(one for one in settings.placement.hosts if one.name == name)
    put_in_group(settings.placement, host, os.getpid())
    words = entering(pid, command)
    os.execv(words[0], words)


if __name__ == "__main__":
    try:
        main()
    except FaultlineError as error:
        sys.exit(str(error))
