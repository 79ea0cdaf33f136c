"""Locks of the machine, and of files: the measured window's, the services' and their users'.

**The machine**: one experiment at a time on one machine, whichever installation and user starts it.

No file is locked, since whoever may open one may hold it, for as long as he likes. A recorder that has the machine
says so in its own name (`/proc/PID/comm`): everybody can read that, no other user can write it, it ends with its
process, and the system tells whose it is. Who says so and is no recorder is named, and not waited for. Another user
can say anything, by a command line that looks like a recorder's: he is waited for minutes, in all, and then named.

Whoever wants the machine says that first and then looks around. It has the machine when nobody else says anything; one
of two that see each other draws back. So of two, the one that spoke later has seen the other.

**A file**: held alone, or shared; the system frees it when its holder dies. While a window is measured, nothing of ours
works beside it, and it does not open beside such work: the conductor holds the window's lock alone from before the gate
to the end of its schedule. Whatever takes seconds of a core and is no part of an experiment, such as the tables over
all results, shares it with its like.
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

# The program that holds the machine.
RECORDER = "faultline.lifecycle.recorder"
# What it calls itself while it has the machine, and while it looks whether it can have it. The kernel keeps 15 bytes.
HOLDS, WANTS = "faultline-holds", "faultline-wants"
# Two that want it at once take a moment to see who goes first.
MIN_WAIT_S = 1.0
BACKOFF_S = 0.02
# Between two looks at whether the waiting is still wanted. The end of who is waited for is noticed at once.
RECHECK_S = 0.25
# How long other users are waited for in all: who has the machine, and who wants it and does not take it, for which a
# recorder needs milliseconds.
OTHER_USERS_HOLD_S = 15 * 60.0
OTHER_USERS_WANT_S = 5.0
_SHOWN_CHARACTERS = 100
_PROC = Path("/proc")


@dataclass(frozen=True)
class LockClaim:
    """A process that says that it has the machine, or wants it. `started`: clock ticks since the machine's start;
    `own`: whether it is this user's."""

    pid: int
    started: int
    user: str
    command: tuple[str, ...]
    holds: bool
    own: bool = True

    def is_of(self, machine: str) -> bool:
        """Whether it is the recorder of an experiment on the machine that goes by this name."""
        return self.is_recorder and self._option("--machine") == machine

    @property
    def is_recorder(self) -> bool:
        return ("-m", RECORDER) in zip(self.command, self.command[1:], strict=False)

    @property
    def folder(self) -> Path:
        """Of the attempt that it records, `<results>/attempts/<attempt>`."""
        return Path(self._option("--attempt-dir"))

    @property
    def attempt(self) -> str:
        return _printable(self.folder.name)

    @property
    def text(self) -> str:
        """What it records, and whose it is."""
        return f"{self.attempt} of {self.user} (pid {self.pid}, {_printable(str(self.folder.parent.parent))})"

    @property
    def order(self) -> tuple[int, int]:
        """Its place among those that wait: who came first."""
        return self.started, self.pid

    def _option(self, name: str) -> str:
        pairs = dict(zip(self.command, self.command[1:], strict=False))
        return pairs.get(name, "")


@dataclass(frozen=True)
class MachineLock:
    """The machine that goes by a name. `TargetLock` of `installation.targets.turn` has the same `take` and `holder`."""

    name: str

    def take(self, *, wait_s: float = MIN_WAIT_S, is_cancelled: Callable[[], bool] = bool) -> LockClaim | None:
        """Takes the machine for this process's life, which must be a recorder's; returns which of this user's recorders
        had it while it waited.

        Waits `wait_s` seconds for its turn, of which OTHER_USERS_HOLD_S for other users, or until `is_cancelled`
        returns True. Raises InfrastructureError naming the holder when another experiment runs for longer.
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
        """The experiment that has the machine, of whichever installation and user; None when it is free."""
        return _holder(one for one in _claims() if one.is_of(self.name))

    def _await_turn(self, deadline: float, is_cancelled: Callable[[], bool], process_name: str) -> LockClaim | None:
        """Returns when this process has said that it wants the machine, and nobody else says anything."""
        before, has_reported = None, False
        hold_s, want_s = OTHER_USERS_HOLD_S, OTHER_USERS_WANT_S
        while True:
            _set_process_name(WANTS)
            own, others = self._own_and_other_claims()
            blocking = [one for one in others if one.own or one.holds or want_s > 0]
            if not blocking and (not others or self._has_no_new_holder()):
                for one in others:
                    progress(f"machine: {one.text} wants it and does not take it; it is not waited for")
                return before
            ahead = [one for one in blocking if one.holds or one.order < own.order]
            if ahead:
                _set_process_name(process_name)
            holder = _holder(ahead)
            # What another user wrote is not where to look for what is done.
            before = holder if holder is not None and holder.own else before
            for line in () if has_reported else false_lock_holders():
                progress(f"machine: {line}; it is not waited for")
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
            raise InfrastructureError("machine: /proc does not show this process as an experiment; mount it as usual")
        return own, [one for one in claims if one.pid != own.pid]

    def _has_no_new_holder(self) -> bool:
        """Whether those who want the machine do nothing but say so. One that saw nobody takes it at once."""
        time.sleep(RECHECK_S)
        return self.holder() is None


def false_lock_holders() -> list[str]:
    """Processes that say that they have the machine and are no experiments, in words. Nobody waits for them."""
    return [
        f"pid {one.pid} of {one.user} says that it has the machine, and is no experiment: "
        f"{_printable(shlex.join(one.command)) or 'no command'}"
        for one in _claims()
        if not one.is_recorder
    ]


def _refusal(one: LockClaim) -> str:
    if one.own:
        rest = "is being measured; wait for it, or stop it" if one.holds else "wants it, too; measure again"
    else:
        claim = "says that it is being measured" if one.holds else "wants it, too"
        rest = f"{claim}; only {one.user} or root can end it; measure again when it is over"
    return f"machine: {one.text} {rest}"


def _holder(claims: Iterable[LockClaim]) -> LockClaim | None:
    """Who has the machine: this user's, whatever another says."""
    return min((one for one in claims if one.holds), key=lambda one: not one.own, default=None)


def _await_change(holder: LockClaim | None, deadline: float, is_cancelled: Callable[[], bool]) -> None:
    """Returns when there is something new to look for."""
    if holder is None:
        time.sleep(BACKOFF_S)
        return
    while _claim(holder.pid) == holder and not is_cancelled() and (left_s := deadline - time.monotonic()) > 0:
        _await_end(holder.pid, min(RECHECK_S, left_s))


def _await_end(pid: int, limit_s: float) -> None:
    """Returns when the process has ended, or after so many seconds."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except OSError:  # not allowed in here
        time.sleep(min(BACKOFF_S, limit_s))
        return
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.poll(limit_s * 1000)
    finally:
        os.close(descriptor)


def _claims() -> Iterator[LockClaim]:
    """All processes that say something of the machine."""
    for name in os.listdir(_PROC):
        if name.isdecimal() and (claim := _claim(int(name))) is not None:
            yield claim


def _claim(pid: int) -> LockClaim | None:
    """What a process says of the machine; None when it says nothing, or has ended."""
    with contextlib.suppress(OSError, psutil.Error):
        called = _process_name(pid)
        if called in (HOLDS, WANTS):
            process = psutil.Process(pid)
            command = tuple(process.cmdline())
            # One that nobody has buried yet has kept its name, and has no command any more.
            own = process.uids().real == os.getuid()
            return (
                LockClaim(pid, start_ticks(pid), process.username(), command, called == HOLDS, own) if command else None
            )
    return None


def _process_name(pid: int) -> str:
    return (_PROC / str(pid) / "comm").read_text(errors="replace").rstrip("\n")


def _set_process_name(name: str) -> None:
    """Gives this process a name that all can read."""
    (_PROC / "self" / "comm").write_text(name)


def _printable(text: str) -> str:
    """The beginning of what a stranger wrote, as one line that does nothing to a terminal."""
    return "".join(one if one.isprintable() else "?" for one in text[:_SHOWN_CHARACTERS])


# ---- Files ----

POLL_S = 0.1
# Tables over a great many results take minutes.
MAX_WORK_S = 900.0


@dataclass(frozen=True)
class FileLock:
    """A lock on a file, which is made where it is missing."""

    path: Path

    @contextlib.contextmanager
    def acquire(self, *, shared: bool = False, limit_s: float = math.inf) -> Iterator[LockHold]:
        """The lock, while it lasts; without it after `limit_s` seconds."""
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
    """An open file whose lock was asked for. `waited_s`: how long that took; None where it was not to be had."""

    descriptor: int
    waited_s: float | None = None

    def take(self, *, shared: bool = False) -> bool:
        """Takes the lock, or changes how it is held, if nobody stands in the way; whether it did."""
        try:
            fcntl.flock(self.descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError:
            return False
        return True


@contextlib.contextmanager
def hold_measurement_lock(path: Path, *, limit_s: float = MAX_WORK_S) -> Iterator[float]:
    """Holds the window's lock alone; gives the seconds that it took to get it.

    Raises InfrastructureError when others work for longer than `limit_s`.
    """
    with FileLock(path).acquire(limit_s=limit_s) as hold:
        if hold.waited_s is None:
            raise InfrastructureError(
                f"window: aggregate or another job works here for {limit_s:g} s already; measure again when it is done"
            )
        yield hold.waited_s


@contextlib.contextmanager
def share_measurement_lock(path: Path, *, limit_s: float = MAX_WORK_S) -> Iterator[float | None]:
    """Waits while a window is measured, and keeps the next one shut for as long as the caller works.

    Gives the seconds waited, or None after `limit_s`: then the work is done all the same.
    """
    with FileLock(path).acquire(shared=True, limit_s=limit_s) as hold:
        yield hold.waited_s


def is_measured(path: Path) -> bool:
    """Whether a window is measured now; none is where there is no place for the lock yet."""
    if not path.parent.exists():
        return False
    with FileLock(path).acquire(shared=True, limit_s=0.0) as hold:
        return hold.waited_s is None
