"""What the system lets this process do beside what every process may."""

from __future__ import annotations

import functools
import resource
from pathlib import Path

# Bit of the capability to raise priorities, in linux/capability.h.
CAP_SYS_NICE = 23
# A limit of 20 − n allows niceness n; 0 is everybody's.
ORDINARY = 20


@functools.cache
def may_raise_priority() -> bool:
    """Whether a thread that was put behind others can be put back."""
    if resource.getrlimit(resource.RLIMIT_NICE)[0] >= ORDINARY:
        return True
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return False
    effective = next((line.split()[1] for line in lines if line.startswith("CapEff:")), "0")
    return bool(int(effective, 16) >> CAP_SYS_NICE & 1)
