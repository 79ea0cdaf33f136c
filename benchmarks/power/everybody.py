"""All processes of an installation, known beforehand, so that they can be killed when its disk is gone."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from benchmarks.leftovers import attempts_of
from faultline.system.errors import InfrastructureError
from faultline.system.marks import INSTANCE_MARK, RUN_MARK
from faultline.system.processes import Entry, is_own, read_ledger, send, victim_of
from faultline.system.settings import Settings, instance

_END_S = 20.0
_LOOK_S = 0.05


@dataclass(frozen=True)
class Everybody:
    """`mark`: of the services; `attempts`: ids of those that are in work; `entries`: what their ledgers name."""

    mark: str
    attempts: frozenset[str]
    entries: tuple[Entry, ...]

    @classmethod
    def of(cls, settings: Settings) -> Everybody:
        """Of the installation, as its disk tells now."""
        open_ones = [attempt for attempt in attempts_of(settings) if not attempt.over]
        entries = [entry for attempt in open_ones for entry in read_ledger(attempt.ledger)]
        return cls(instance(settings)["instance"], frozenset(one.id for one in open_ones), tuple(entries))

    def alive(self) -> list[psutil.Process]:
        """Those that live, the oldest first, with all that they started."""
        spared = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
        others = [one for one in psutil.process_iter() if one.pid not in spared and _parent(one) is not None]
        named = [process for entry in self.entries if (process := victim_of(entry)) is not None]
        found = {one.pid: one for one in [*named, *filter(self._bears, others)]}
        while more := {one.pid: one for one in others if _parent(one) in found and one.pid not in found}:
            found |= more
        return sorted(found.values(), key=_begun)

    def kill(self, known: Sequence[psutil.Process]) -> int:
        """SIGKILL for all at once, those first that are `known`; returns how many there were.

        Raises InfrastructureError for one that stays.
        """
        killed, there, deadline = set[int](), list(known), time.monotonic() + _END_S
        while there:
            killed |= {process.pid for process in there if send(process, signal.SIGKILL)}
            if time.monotonic() > deadline:
                stubborn = ", ".join(str(process.pid) for process in there)
                raise InfrastructureError(f"power_cut: processes {stubborn}: alive after SIGKILL; look at them with ps")
            time.sleep(_LOOK_S)
            there = self.alive()  # what was killed may have begun another one just before
        return len(killed)

    def _bears(self, process: psutil.Process) -> bool:
        with contextlib.suppress(psutil.Error, OSError):
            if is_own(process):
                inherited = process.environ()
                return inherited.get(INSTANCE_MARK) == self.mark or inherited.get(RUN_MARK) in self.attempts
        return False


def _parent(process: psutil.Process) -> int | None:
    """Pid of its parent; None for one that has ended, buried or not."""
    with contextlib.suppress(psutil.Error):
        if process.status() != psutil.STATUS_ZOMBIE:
            return process.ppid()
    return None


def _begun(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.Error):
        return process.create_time()
    return 0.0
