"""Starts a background service in a session of its own, which its scheduler then weighs apart from those that are
measured.

    python -P -m faultline.installation.own_session COMMAND...

The command takes this process's place. supervisord makes each program the leader of a group of processes, which may not
found a session: it first joins its parent's group. The session gives it a group of its own number again, by which
supervisord ends it with all that it started.
"""

from __future__ import annotations

import contextlib
import os
import sys


def main() -> None:
    command = sys.argv[1:]
    # In a container it leads a session already, or its parent is out of reach.
    with contextlib.suppress(OSError):
        if os.getsid(0) != os.getpid():
            os.setpgid(0, os.getpgid(os.getppid()))
            os.setsid()
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
