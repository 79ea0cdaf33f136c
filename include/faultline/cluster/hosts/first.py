"""The first process of a host: it buries whoever nobody waits for, and when it ends, all of the host ends.

python -m faultline.cluster.hosts.first NAME
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time

_LOOK_S = 1.0


def main() -> None:
    socket.sethostname(sys.argv[1])
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
