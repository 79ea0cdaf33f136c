"""Starts a service, after the hold that a fault laid on it has passed.

supervisord restarts what died at once. A fault wants the restart `restart_delay_s` later, so before
the act the conductor writes a hold: the instant until which the service stays down. It ends by its
own clock, whoever dies meanwhile, so a hold needs no healing.

    python -m faultline.installation.restart_hold FILE

FILE is JSON: {"service", "command", "hold", "journal"}. The command takes this process's place.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from faultline.system.errors import InfrastructureError
from faultline.system.journal import Journal

# No service is held longer than this, whatever a hold says: the largest `restart_delay_s`, and a little.
LONGEST_HOLD_S = 65.0
# The monotonic clock begins anew with each boot, and a hold from before says nothing.
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_POLL_S = 0.02


def lay_hold(path: Path, until_mono_ns: int) -> None:
    """Keeps the service of `path` down until this instant of the host's monotonic clock."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps({"until_mono_ns": until_mono_ns, "boot": _boot()}), encoding="utf-8")
    temporary.rename(path)


def wait_out(path: Path, *, longest_s: float = LONGEST_HOLD_S) -> float:
    """Returns once no hold is left on the service, with the seconds that it took."""
    began = time.monotonic_ns()
    while (until := _until(path)) is not None and time.monotonic_ns() < until:
        if time.monotonic_ns() - began > longest_s * 1e9:
            break
        time.sleep(_POLL_S)
    return (time.monotonic_ns() - began) / 1e9


def _until(path: Path) -> int | None:
    try:
        hold = json.loads(path.read_text(encoding="utf-8"))
        return int(hold["until_mono_ns"]) if hold["boot"] == _boot() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _boot() -> str:
    try:
        return _BOOT_ID.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def main() -> None:
    specification: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    waited_s = wait_out(Path(specification["hold"]))
    # On a full disk the line is lost. A service that did not start for it would be given up after some tries, for good.
    with contextlib.suppress(InfrastructureError), Journal(Path(specification["journal"])) as journal:
        journal.write("started", service=specification["service"], pid=os.getpid(), waited_s=round(waited_s, 3))
    command: list[str] = specification["command"]
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
