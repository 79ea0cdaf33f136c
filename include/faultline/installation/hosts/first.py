"""The first process of a host: it buries whoever nobody waits for, and when it ends, all of the host ends.

    python -m faultline.installation.hosts.first NAME FOLDER

Names are looked up in FOLDER alone: without an answer a broker would wait for a name server that no host reaches.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

NAMES = ("hosts", "resolv.conf")
_LOOK_S = 1.0


def main() -> None:
    name, folder = sys.argv[1:]
    socket.sethostname(name)
    for file in NAMES:
        # In this host's own view of the file system.
        subprocess.run(["mount", "--bind", str(Path(folder) / file), f"/etc/{file}"], check=True)
    # The first process of a space of process ids gets only signals that it handles.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))
    while True:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, 0)
            continue
        time.sleep(_LOOK_S)


if __name__ == "__main__":
    main()
