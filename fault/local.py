"""The injector for processes of this host."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from fault.errors import IdentityMismatch, SignalRefused
from fault.identity import ROLES, LiveProcess, ProcessIdentity, Tokens, require_match, require_same
from fault.injector import Delivery, Presence
from fault.post import Post
from fault.procfs import read_process
from fault.victims import find_victims, read_ancestors


class LocalInjector:
    """Signals local processes; the identity is read again before each signal.

    Where the kernel has pidfds, the handle is taken before the check, so the signal goes to the
    process that was checked or to none, even if its pid is handed out again in between. That also
    lets an armed victim be checked ahead of time: reading the command line of a busy JVM can take tens of
    milliseconds, since it waits for the lock of its memory.
    """

    def __init__(self) -> None:
        self._armed: dict[ProcessIdentity, int] = {}
        self._posts: dict[tuple[int, int | None, float], Post] = {}

    def find(self, victim: str, tokens: Tokens) -> tuple[ProcessIdentity, ...]:
        """The live candidates for a victim word on this host, sorted. Raises VictimRefused."""
        return find_victims(victim, tokens)

    def probe(self, victim: ProcessIdentity) -> Presence:
        """What is under the victim's pid now."""
        live = read_process(victim.pid)
        if live is None:
            return Presence.GONE
        try:
            require_same(victim, live)
        except IdentityMismatch as mismatch:
            # A process whose memory is being torn down has no command line left, but is no stranger.
            if mismatch.part in ("token", "role") and not live.command:
                return Presence.ALIVE
            return Presence.OTHER
        return Presence.STOPPED if live.stopped else Presence.ALIVE

    def arm(self, victim: ProcessIdentity) -> None:
        """Opens the victim's pidfd and checks its identity; the next signal goes through this handle.

        Raises IdentityMismatch. Without pidfds, or when the victim is gone, nothing is armed.
        """
        self._disarm(victim)
        try:
            handle = os.pidfd_open(victim.pid)
        except (AttributeError, OSError):
            return
        try:
            live = read_process(victim.pid)
            if live is not None:
                _check(victim, live, signal.SIGKILL)
        except BaseException:
            os.close(handle)
            raise
        if live is None:
            os.close(handle)
        else:
            self._armed[victim] = handle

    def _disarm(self, victim: ProcessIdentity) -> None:
        """Forgets an armed handle and closes it."""
        handle = self._armed.pop(victim, None)
        if handle is not None:
            os.close(handle)

    def signal(self, victim: ProcessIdentity, signum: int) -> Delivery:
        """Sends `signum` to the victim, once. Raises IdentityMismatch or SignalRefused; then nothing was sent."""
        try:
            if victim in self._armed:
                try:
                    # Readable means ended. A zombie would take the signal, too, and nothing would have been hit.
                    if select.select([self._armed[victim]], [], [], 0)[0]:
                        return Delivery.GONE
                    signal.pidfd_send_signal(self._armed[victim], signum)
                finally:
                    self._disarm(victim)
                return Delivery.SENT
            with process_handle(victim.pid) as handle:
                live = read_process(victim.pid)
                if live is None:
                    return Delivery.GONE
                _check(victim, live, signum)
                send_signal(victim.pid, handle, signum)
        except ProcessLookupError:
            return Delivery.GONE
        except PermissionError as error:
            name = signal.Signals(signum).name
            raise SignalRefused(f"pid: {name} to {victim} is refused: {error.strerror}; run as its owner") from None
        return Delivery.SENT

    def stand_by(self, victim: ProcessIdentity, seconds: float) -> None:
        """Posts a shell, nobody's child, that continues the victim. Raises IdentityMismatch or NobodyStandsBy."""
        if (post := self._posts.pop(_key(victim), None)) is not None:
            if post.stands():
                self._posts[_key(victim)] = post
                return
            post.release()
        if (made := Post.take(victim, seconds)) is not None:
            self._posts[_key(victim)] = made

    def stand_down(self, victim: ProcessIdentity) -> None:
        """Sends him home."""
        if (post := self._posts.pop(_key(victim), None)) is not None:
            post.release()


def _key(victim: ProcessIdentity) -> tuple[int, int | None, float]:
    return victim.pid, victim.start_ticks, victim.create_time


def _check(victim: ProcessIdentity, live: LiveProcess, signum: int) -> None:
    """Raises IdentityMismatch. A role that is marked through another process is traced back to it again."""
    if victim.role.under is None or signum == signal.SIGCONT:
        # SIGCONT heals what was proven to be the run's when it was stopped; its ancestors may have died since.
        require_same(victim, live)
    else:
        require_match(victim, live, tuple(read_ancestors(live, until=ROLES[victim.role.under])))


def send_signal(pid: int, handle: int | None, signum: int) -> None:
    """Sends a signal through the handle of `process_handle`; to the pid where there is none."""
    if handle is None:
        os.kill(pid, signum)
    else:
        signal.pidfd_send_signal(handle, signum)


@contextmanager
def process_handle(pid: int) -> Iterator[int | None]:
    """A pidfd for `pid`, or None on a kernel without. Raises ProcessLookupError when it is gone."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except (AttributeError, OSError):
        yield None
        return
    try:
        yield handle
    finally:
        os.close(handle)
