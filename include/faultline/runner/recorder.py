"""The recorder: samples /proc by role, Kafka's offsets, and what the engine tells, once a second.

It has the machine for as long as it lives, so that one machine measures one experiment at a time, whoever starts it.
Its death makes the record invalid.

    python -m faultline.runner.recorder --attempt-dir DIR --machine NAME --turn FILE --wait S faultline-run=ATTEMPT
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from faultline.base.attempt import Attempt, write_json
from faultline.base.documents import read_document
from faultline.base.errors import InfrastructureError
from faultline.base.journal import Journal
from faultline.base.kafka_offsets import KafkaEndOffsets
from faultline.base.machine_lock import LEAST_WAIT_S, Claim, hold_machine
from faultline.base.processes import is_own, read_ledger
from faultline.base.roles import SERVICES
from faultline.cluster.restart_hold import LONGEST_HOLD_S
from faultline.engines.registry import engine_at
from faultline.engines.running import Sampler

PERIOD_S = 1.0
# Between fork and exec a process shows its parent's command line and memory; a younger one is left for the next look.
SETTLED_S = 0.5
OFFSETS_TIMEOUT_S = 1.0

Key = tuple[int, float]


class RoleTable:
    """Which processes play which role; command lines are read once per process."""

    def __init__(
        self, attempt: Attempt, kafka_token: str | None, sampler: Sampler, services: int | None = None
    ) -> None:
        """`services`: pid of the process whose children all services are; None where each runs by itself."""
        self._services = services
        self._attempt = attempt
        self._sampler = sampler
        self._heirs = {"supervisor": "driver", **sampler.heirs}
        self._kafka_token = kafka_token
        self._own: dict[Key, str | None] = {}

    def assign(self) -> dict[Key, tuple[psutil.Process, str]]:
        """(pid, creation time) -> (process, role), of the processes that matter to this attempt."""
        children: dict[int, list[psutil.Process]] = {}
        own: dict[Key, tuple[psutil.Process, str]] = {}
        ledger = {(entry.pid, round(entry.create_time, 2)): entry.role for entry in read_ledger(self._attempt.ledger)}
        now = time.time()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                key = (process.pid, process.create_time())
                if now - key[1] < SETTLED_S:
                    continue
                children.setdefault(process.ppid(), []).append(process)
                role = self._known_role(process, key, age_s=now - key[1])
                # Whatever the ledger names belongs to the experiment, and does not count as others'.
                role = role or ledger.get((key[0], round(key[1], 2)))
                if role:
                    own[key] = (process, role)
        found = dict(own)
        for process, role in own.values():
            self._descend(process, self._heirs.get(role, role), children, found)
        if self._services is not None:
            with contextlib.suppress(psutil.Error):
                keeper = psutil.Process(self._services)
                found.setdefault((keeper.pid, keeper.create_time()), (keeper, SERVICES))
                self._descend(keeper, SERVICES, children, found)
        return found

    def _known_role(self, process: psutil.Process, key: Key, age_s: float) -> str | None:
        """The role by the command line, which is read once; of a young process again, since a service that a fault
        holds down shows its own only when the hold is over."""
        if key in self._own:
            return self._own[key]
        role = self._role(process)
        if role is not None or age_s > LONGEST_HOLD_S:
            self._own[key] = role
        return role

    def _role(self, process: psutil.Process) -> str | None:
        command = process.cmdline()
        role = self._sampler.role_of(command)
        if role is None and self._kafka_token and self._kafka_token in command:
            role = "kafka"
        # Another user's that looks like one of ours is others' load.
        return role if role and is_own(process) else None

    def _descend(
        self,
        parent: psutil.Process,
        role: str,
        children: dict[int, list[psutil.Process]],
        found: dict[Key, tuple[psutil.Process, str]],
    ) -> None:
        for child in children.get(parent.pid, []):
            with contextlib.suppress(psutil.Error):
                key = (child.pid, child.create_time())
                if key not in found and key[1] >= parent.create_time() - 0.02:
                    found[key] = (child, role)
                    self._descend(child, role, children, found)


class Recorder:
    """One sample of everything at a time; each line carries the instant it was taken."""

    def __init__(self, attempt: Attempt, journal: Journal) -> None:
        description = attempt.read()
        self._attempt = attempt
        self._journal = journal
        self._engine = engine_at(attempt).sampler(attempt)
        self._roles = RoleTable(
            attempt,
            description.get("kafka", {}).get("config"),
            self._engine,
            description.get("services", {}).get("keeper"),
        )
        self._input = KafkaEndOffsets(description["kafka"]["bootstrap"], description["topics"]["input"])
        self._seen: dict[Key, dict[str, Any]] = {}

    def sample(self) -> None:
        self._machine()
        self._processes()
        self._offsets()
        for line in self._engine.sample():
            self._journal.append(line)

    def _machine(self) -> None:
        """What all processes of this machine have used, and what its host kept from it, since it started."""
        times = psutil.cpu_times()
        # On Linux; elsewhere systems count fewer kinds.
        kinds = ("user", "nice", "system", "irq", "softirq")
        busy = sum(getattr(times, kind, 0.0) for kind in kinds)
        self._journal.append({"kind": "machine", "busy_s": busy, "stolen_s": getattr(times, "steal", None)})

    def _processes(self) -> None:
        present = self._roles.assign()
        for key, (process, role) in present.items():
            with contextlib.suppress(psutil.Error), process.oneshot():
                times = process.cpu_times()
                line = {
                    "kind": "proc",
                    "role": role,
                    "pid": key[0],
                    "create_time": key[1],
                    "cpu_s": times.user + times.system,
                    "rss_bytes": process.memory_info().rss,
                    "final": False,
                }
                self._seen[key] = line
                self._journal.append(line)
        # A pid's last counters are kept when it dies: its work was done all the same.
        for key in [key for key in self._seen if key not in present]:
            self._journal.append({**self._seen.pop(key), "final": True})

    def _offsets(self) -> None:
        with contextlib.suppress(InfrastructureError):
            self._journal.append({"kind": "offsets", "topic": "input", "end": self._input.read(OFFSETS_TIMEOUT_S)})


def run(attempt: Attempt, stop: threading.Event, *, after: str | None = None) -> None:
    """Samples until `stop`; says when a sample came late, since a gap weakens what is read from it.

    `after`: the attempt that had the machine before, as `take_turn` tells it.
    """
    with Journal(attempt.recorder_journal) as journal:
        recorder = Recorder(attempt, journal)
        journal.append({"kind": "start", "after": after})
        due = time.monotonic()
        while not stop.is_set():
            recorder.sample()
            due += PERIOD_S
            late = time.monotonic() - due
            if late > 0:
                journal.append({"kind": "overrun", "late_s": round(late, 3)})
                due += PERIOD_S * int(late / PERIOD_S + 1)
            stop.wait(max(0.0, due - time.monotonic()))
        recorder.sample()
        journal.append({"kind": "stop"}, sync=True)


def take_turn(turn: Path, attempt: Attempt, waited_for: Claim | None) -> str | None:
    """Notes in `turn` that the machine is the attempt's now; returns which one had it before, None for the first one.

    That is its id, or its folder where that lies elsewhere: of another installation only what was waited for is known.
    """
    before = None
    with contextlib.suppress(OSError, KeyError, InfrastructureError):
        before = Path(str(read_document(turn)["attempt"]))
    if waited_for is not None:
        before = waited_for.folder
    write_json(turn, {"attempt": str(attempt.folder)})
    if before is None:
        return None
    return before.name if before.parent == attempt.folder.parent else str(before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attempt-dir", type=Path, required=True)
    parser.add_argument("--machine", required=True)
    parser.add_argument("--turn", type=Path, required=True)
    parser.add_argument("--wait", type=float, default=LEAST_WAIT_S, help="seconds to wait for the machine's turn")
    options, _ = parser.parse_known_args()
    attempt = Attempt(options.attempt_dir)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    waited_for = hold_machine(options.machine, wait_s=options.wait, over=stop.is_set)
    run(attempt, stop, after=take_turn(options.turn, attempt, waited_for))


if __name__ == "__main__":
    main()
