"""What the system lets this process do beside what every process may."""

from __future__ import annotations

import functools
import os
import threading


@functools.cache
def may_raise_priority() -> bool:
    """Whether a thread that was put behind others can be put back.

    Found out by trying: a container may show a capability that the machine does not honour.
    """
    found = []

    def attempt() -> None:
        own = threading.get_native_id()
        usual = os.getpriority(os.PRIO_PROCESS, own)
        try:
            os.setpriority(os.PRIO_PROCESS, own, usual + 1)
            os.setpriority(os.PRIO_PROCESS, own, usual)
        except PermissionError:
            return
        found.append(True)

    # In a thread that ends, as one that could not be put back would stay behind.
    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    return bool(found)
