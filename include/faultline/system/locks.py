"""Locks of the machine and of files.

**Machine lock**: one experiment at a time on one machine, across installations and users.

It uses no file, because any user who can open a file can lock it indefinitely. Instead, a recorder (the process that
samples an experiment) that holds the lock states this in its process name (`/proc/PID/comm`). Every user can read that
name, no other user can change it, it ends with the process, and the system identifies its owner. A process with that
name that is not a recorder is reported and ignored. Another user can imitate a recorder's command line; the total wait
for other users is therefore limited to minutes, and the error then names them.

A waiting recorder renames itself `faultline-wants` and scans the processes. It takes the lock if no other process
claims it. If two wait, the later one backs off.

**File lock**: exclusive or shared; the system releases it when its holder dies. During a measured window no other work
of the installation runs: the fault scheduler holds the measurement lock exclusively from before the start barrier opens
to the end of its schedule. Work that takes seconds of a core and is not part of an experiment, such as tables over all
results, shares the lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import select
import shlex
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from fault.procfs import start_ticks
from faultline.system.errors import InfrastructureError
from faultline.system.text import progress

# The program that takes the machine lock.
RECORDER = "faultline.lifecycle.recorder"
# Process names of a lock holder and of a waiting recorder. The kernel keeps 15 bytes.
HOLDS, WANTS = "faultline-holds", "faultline-wants"
# Two concurrent claims need a moment to settle.
MIN_WAIT_S = 1.0
BACKOFF_S = 0.02
# Interval of the checks for cancellation; the end of the holder is noticed at once.
RECHECK_S = 0.25
# Total time to wait for other users: for a lock holder, and for a process that claims to wait but does not take the
# lock (a recorder takes it within milliseconds).
OTHER_USERS_HOLD_S = 15 * 60.0
OTHER_USERS_WANT_S = 5.0
_SHOWN_CHARACTERS = 100
_PROC = Path("/proc")


@dataclass(frozen=True)
class LockClaim:
    """Process that holds the machine lock or waits for it.

    `started`: clock ticks since boot; `own`: whether it belongs to this user.
    """

    pid: int
    started: int
    user: str
    command: tuple[str, ...]
    holds: bool
    own: bool = True

    def is_of(self, machine: str) -> bool:
        """Return whether it records an experiment on the machine with this name."""
        return self.is_recorder and self._option("--machine") == machine

    @property
    def is_recorder(self) -> bool:
        return ("-m", RECORDER) in zip(self.command, self.command[1:], strict=False)

    @property
    def folder(self) -> Path:
        """Folder of the recorded attempt, `<results>/attempts/<attempt>`."""
        return Path(self._option("--attempt-dir"))

    @property
    def attempt(self) -> str:
        return _printable(self.folder.name)

    @property
    def text(self) -> str:
        """Description: attempt, user, pid and results folder."""
        return f"{self.attempt} of {self.user} (pid {self.pid}, {_printable(str(self.folder.parent.parent))})"

    @property
    def order(self) -> tuple[int, int]:
        """Position among waiting processes: the first to start comes first."""
        return self.started, self.pid

    def _option(self, name: str) -> str:
        pairs = dict(zip(self.command, self.command[1:], strict=False))
        return pairs.get(name, "")


@dataclass(frozen=True)
class MachineLock:
    """Lock of the machine with a name. `targets.target_lock.TargetLock` has the same `take` and `holder`."""

    name: str

    def take(self, *, wait_s: float = MIN_WAIT_S, is_cancelled: Callable[[], bool] = bool) -> LockClaim | None:
        """Take the lock until this process, a recorder, ends; return this user's previous holder.

        Waits up to `wait_s` seconds, of which at most OTHER_USERS_HOLD_S for other users. Returns without the lock if
        `is_cancelled()` becomes true. Raises InfrastructureError naming the holder after that time.
        """
        process_name = _process_name(os.getpid())
        try:
            before = self._await_turn(time.monotonic() + wait_s, is_cancelled, process_name)
        except BaseException:
            _set_process_name(process_name)
            raise
        _set_process_name(HOLDS)
        return before

    def holder(self) -> LockClaim | None:
        """Return the experiment that holds the lock, of any installation and user; None if free."""
        return _holder(one for one in _claims() if one.is_of(self.name))

    def _await_turn(self, deadline: float, is_cancelled: Callable[[], bool], process_name: str) -> LockClaim | None:
        """Wait until this process claims the lock and no other process does."""
        before, has_reported = None, False
        hold_s, want_s = OTHER_USERS_HOLD_S, OTHER_USERS_WANT_S
        while True:
            _set_process_name(WANTS)
            own, others = self._own_and_other_claims()
            blocking = [one for one in others if one.own or one.holds or want_s > 0]
            if not blocking and (not others or self._has_no_new_holder()):
                for one in others:
                    progress(f"machine lock: ignoring {one.text}, which waits without taking it")
                return before
            ahead = [one for one in blocking if one.holds or one.order < own.order]
            if ahead:
                _set_process_name(process_name)
            holder = _holder(ahead)
            # Another user's command line is not trusted to locate a record.
            before = holder if holder is not None and holder.own else before
            for line in () if has_reported else false_lock_holders():
                progress(f"machine lock: ignoring {line}")
            has_reported, began = True, time.monotonic()
            until = deadline if holder is None or holder.own else min(deadline, began + hold_s)
            if blocking and (is_cancelled() or began >= until):
                raise InfrastructureError(_refusal(holder or blocking[0]))
            _await_change(holder, until, is_cancelled)
            waited_s = time.monotonic() - began
            if holder is not None:
                hold_s -= 0.0 if holder.own else waited_s
            elif not all(one.own for one in blocking):
                want_s -= waited_s

    def _own_and_other_claims(self) -> tuple[LockClaim, list[LockClaim]]:
        claims = [one for one in _claims() if one.is_of(self.name)]
        own = next((one for one in claims if one.pid == os.getpid()), None)
        if own is None:
            raise InfrastructureError("machine: /proc does not show this process; fix: mount /proc without hidepid")
        return own, [one for one in claims if one.pid != own.pid]

    def _has_no_new_holder(self) -> bool:
        """Return whether none of the waiting processes takes the free lock; a real recorder does so at once."""
        time.sleep(RECHECK_S)
        return self.holder() is None


def false_lock_holders() -> list[str]:
    """Return descriptions of processes that imitate a lock holder. They are ignored."""
    return [
        f"false lock holder: pid {one.pid} of {one.user}: {_printable(shlex.join(one.command)) or 'no command'}"
        for one in _claims()
        if not one.is_recorder
    ]


def _refusal(one: LockClaim) -> str:
    if one.own:
        state = "held by" if one.holds else "also requested by"
        rest = "wait for it, or stop it" if one.holds else "measure again"
    else:
        state = "claimed by" if one.holds else "also requested by"
        rest = f"measure again after it ends; only {one.user} or root can stop it"
    return f"machine: {state} {one.text}; fix: {rest}"


def _holder(claims: Iterable[LockClaim]) -> LockClaim | None:
    """Return the lock holder; a holder of this user takes precedence over one of another user."""
    return min((one for one in claims if one.holds), key=lambda one: not one.own, default=None)


def _await_change(holder: LockClaim | None, deadline: float, is_cancelled: Callable[[], bool]) -> None:
    """Wait for a change of the holder, up to the deadline."""
    if holder is None:
        time.sleep(BACKOFF_S)
        return
    while _claim(holder.pid) == holder and not is_cancelled() and (left_s := deadline - time.monotonic()) > 0:
        _await_end(holder.pid, min(RECHECK_S, left_s))


def _await_end(pid: int, limit_s: float) -> None:
    """Wait for the end of a process, up to `limit_s` seconds."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except OSError:  # pidfds are not allowed in this container
        time.sleep(min(BACKOFF_S, limit_s))
        return
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.poll(limit_s * 1000)
    finally:
        os.close(descriptor)


def _claims() -> Iterator[LockClaim]:
    """Yield all processes that claim the lock."""
    for name in os.listdir(_PROC):
        if name.isdecimal() and (claim := _claim(int(name))) is not None:
            yield claim


def _claim(pid: int) -> LockClaim | None:
    """Return a process's claim; None if it has none or has ended."""
    with contextlib.suppress(OSError, psutil.Error):
        called = _process_name(pid)
        if called in (HOLDS, WANTS):
            process = psutil.Process(pid)
            command = tuple(process.cmdline())
            # A zombie keeps its name but has no command line.
            own = process.uids().real == os.getuid()
            return (
                LockClaim(pid, start_ticks(pid), process.username(), command, called == HOLDS, own) if command else None
            )
    return None


def _process_name(pid: int) -> str:
    return (_PROC / str(pid) / "comm").read_text(errors="replace").rstrip("\n")


def _set_process_name(name: str) -> None:
    """Set this process's name, which every user can read."""
    (_PROC / "self" / "comm").write_text(name)


def _printable(text: str) -> str:
    """Return the beginning of foreign text on one line, safe for a terminal."""
    return "".join(one if one.isprintable() else "?" for one in text[:_SHOWN_CHARACTERS])


# ---- Files ----

POLL_S = 0.1
# Longest wait for other work of the installation: tables over many results take minutes.
MAX_WORK_S = 900.0


@dataclass(frozen=True)
class FileLock:
    """Lock on a file, which is created if missing."""

    path: Path

    @contextlib.contextmanager
    def acquire(self, *, shared: bool = False, limit_s: float = math.inf) -> Iterator[LockHold]:
        """Hold the lock inside the block; after `limit_s` seconds run the block without it."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            hold, began, waited_s = LockHold(descriptor), time.monotonic(), 0.0
            while not (got := hold.take(shared=shared)) and waited_s < limit_s:
                time.sleep(POLL_S)
                waited_s = time.monotonic() - began
            hold.waited_s = waited_s if got else None
            yield hold
        finally:
            os.close(descriptor)


@dataclass
class LockHold:
    """Open lock file. `waited_s`: seconds waited for the lock; None if it was not acquired."""

    descriptor: int
    waited_s: float | None = None

    def take(self, *, shared: bool = False) -> bool:
        """Take the lock, or change its mode; return False if another process holds it."""
        try:
            fcntl.flock(self.descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError:
            return False
        return True


@contextlib.contextmanager
def hold_measurement_lock(path: Path, *, limit_s: float = MAX_WORK_S) -> Iterator[float]:
    """Hold the measurement lock exclusively; yield the seconds waited.

    Raises InfrastructureError after `limit_s` seconds.
    """
    with FileLock(path).acquire(limit_s=limit_s) as hold:
        if hold.waited_s is None:
            raise InfrastructureError(
                f"window: held by another job for more than {limit_s:g} s; fix: measure again after it ends"
            )
        yield hold.waited_s


@contextlib.contextmanager
def share_measurement_lock(path: Path, *, limit_s: float = MAX_WORK_S) -> Iterator[float | None]:
    """Wait for the end of a measured window, and prevent the next one during the block.

    Yields the seconds waited, or None after `limit_s`: the work then runs nevertheless.
    """
    with FileLock(path).acquire(shared=True, limit_s=limit_s) as hold:
        yield hold.waited_s


def is_measured(path: Path) -> bool:
    """Return whether a window is measured now; False if the lock's folder is missing."""
    if not path.parent.exists():
        return False
    with FileLock(path).acquire(shared=True, limit_s=0.0) as hold:
        return hold.waited_s is None
