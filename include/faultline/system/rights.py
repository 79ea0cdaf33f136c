"""What the system lets this process do beside what every process may."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Iterator

from faultline.system.errors import ConfigError
from faultline.system.text import say

REFUSE_ROOT = "FAULTLINE_REFUSE_ROOT"
# The group may read results.
SHARED = "FAULTLINE_SHARED_RESULTS"


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


def refuse_root() -> None:
    """Raise ConfigError for root where a setting refuses it."""
    if os.geteuid() == 0 and os.environ.get(REFUSE_ROOT):
        raise ConfigError(f"{REFUSE_ROOT}: got root; expected another user; fix: run it as another user, or unset it")


@functools.cache
def meet_root() -> None:
    """Say in one line, once per process, that it runs as root. Raises ConfigError as `refuse_root`."""
    refuse_root()
    if os.geteuid() == 0:
        say("running as root: services and jobs have all rights on this machine")


def shares_results() -> bool:
    """Whether the group may read results."""
    return bool(os.environ.get(SHARED))


def files_mask() -> int:
    """The umask of whatever an installation makes: others have no right to it, nor has the group unless it was given
    one."""
    return 0o027 if shares_results() else 0o077


def let_nobody_write() -> None:
    """From here on others can change nothing that this process makes, whatever its caller's umask."""
    os.umask(os.umask(0o077) | 0o022)


def be_private() -> None:
    """From here on this process makes files that are nobody else's business."""
    _callers[0] = os.umask(files_mask())


@contextlib.contextmanager
def as_caller() -> Iterator[None]:
    """What is made meanwhile has the rights that the caller's own umask gives: it is for others to read."""
    before = os.umask(_callers[0])
    try:
        yield
    finally:
        os.umask(before)


_callers = [0o022]
