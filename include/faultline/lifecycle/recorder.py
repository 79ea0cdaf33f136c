"""Recorder: samples /proc by role, Kafka's offsets and the engine once a second.

It holds the machine lock while it runs, so that one machine measures one experiment at a time. If the recorder dies,
the experiment record is invalid. The turn file names the attempt that holds the machine.

    python -m faultline.lifecycle.recorder --attempt-dir DIR --machine NAME --turn FILE --wait S faultline-run=ATTEMPT
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fault.identity import KAFKA
from fault.process_sampler import Key, ProcessTable, RoleRule, machine_usage, pid_namespace_of
from faultline.engines.registry import engine_of_plan
from faultline.engines.runtime import Sampler
from faultline.experiment.attempt import Attempt, write_json
from faultline.experiment.attempt_plan import AttemptPlan
from faultline.experiment.run import Run, run_of
from faultline.installation.start import MAX_DELAY_S
from faultline.system.background import Background, background_methods
from faultline.system.errors import InfrastructureError
from faultline.system.files import read_document
from faultline.system.journal import Instant, Journal
from faultline.system.kafka import KafkaEndOffsets
from faultline.system.locks import MIN_WAIT_S, LockClaim, MachineLock, is_measured
from faultline.system.process_ledger import read_ledger, start_identity
from faultline.system.process_tags import ROLES, SERVICES, instance_option
from faultline.system.settings import load_settings

PERIOD_S = 1.0
# Samples after a window that restore background processes; a new process is seen by the second one.
RESTORE_SAMPLES = 3
OFFSETS_TIMEOUT_S = 1.0


def local_roles(plan: AttemptPlan, sampler: Sampler) -> ProcessTable:
    """Return the process table that maps processes of this host to roles.

    `sampler`: the engine's.
    """
    instance = plan.places.instance
    kafka = [] if instance is None else [RoleRule("kafka", KAFKA.main, instance_option(instance))]
    # Processes on other hosts are counted there.
    has_hosts = bool(plan.endpoints.hosts)
    child_roles = {"supervisor": "driver", **sampler.child_roles}
    return ProcessTable(
        [*sampler.rules, *kafka], child_roles, reread_s=MAX_DELAY_S, own_namespace_only=has_hosts, delay_roles=ROLES
    )


class Recorder:
    """Sampler of one attempt; each journal line carries the instant of its sample, and processes share one."""

    def __init__(self, run: Run, journal: Journal) -> None:
        plan, places = run.plan, run.plan.places
        self._run = run
        self._endpoints = plan.endpoints
        self._journal = journal
        self._engine = engine_of_plan(plan).sampler(run)
        self._roles = local_roles(plan, self._engine)
        self._keeper = None if places.keeper is None else (places.keeper, SERVICES)
        self._input = KafkaEndOffsets(plan.endpoints.kafka, plan.topics["input"].name)
        self._seen: dict[Key, dict[str, Any]] = {}
        self._window = None if places.window_lock is None else Path(places.window_lock)
        self._background = None if places.background is None else Background(places.background, background_methods())
        self._samples_after_window = 0

    def start(self) -> None:
        """Start the recordings of other hosts, and measure the clock of a target's broker.

        Raises InfrastructureError naming an unreachable host, ConfigError if the broker refuses the measurement.
        """
        if self._endpoints.hosts:
            from faultline.lifecycle.hosts import recordings  # importing the SSH library is slow

            rules, child_roles = self._engine.rules, self._engine.child_roles
            longest_s = self._run.plan.window_s + recordings.MARGIN_S
            recordings.start_recordings(
                self._run, rules, child_roles, reread_s=MAX_DELAY_S, longest_s=longest_s, note=self._journal.append
            )
        if self._endpoints.is_external:
            from faultline.lifecycle.hosts import broker_clock  # importing a target's client is slow

            broker_clock.record_clock(self._endpoints, self._journal.append)

    def stop(self) -> None:
        """Stop the recordings of other hosts and measure the clocks again; unreachable hosts stop by themselves."""
        if self._endpoints.hosts:
            from faultline.lifecycle.hosts import recordings

            recordings.stop_recordings(self._run, self._journal.append)
        if self._endpoints.is_external:
            from faultline.lifecycle.hosts import broker_clock

            broker_clock.record_final_clock(self._endpoints, self._journal.append)

    def sample(self) -> None:
        self._machine()
        self._processes()
        self._offsets()
        for line in self._engine.sample():
            self._journal.append(line)

    def _machine(self) -> None:
        self._journal.append({"kind": "machine", **machine_usage()})

    def _processes(self) -> None:
        # Processes in the ledger belong to the experiment and are not background.
        ledger = {(one.pid, one.start_ticks or 0): one.role for one in read_ledger(self._run.attempt.ledger)}
        present = self._roles.sample(ledger, self._keeper)
        lowered = self._lower_background({key for key, usage in present.items() if usage.role in ROLES})
        # One instant and a fixed order let the lines of a round compress to half the size.
        now = Instant.now()
        for key, usage in sorted(present.items(), key=lambda item: (item[1].role, item[1].create_time, item[0])):
            mark = {"lowered": True} if key in lowered else {}
            self._seen[key] = {"kind": "proc", **usage.as_json(), **mark, "final": False}
            self._journal.append(self._seen[key], at=now)
        # Journal the last counters of a process that ended: its CPU time counts.
        for key in [key for key in self._seen if key not in present]:
            self._journal.append({**self._seen.pop(key), "final": True}, at=now)

    def _lower_background(self, measured: set[Key]) -> set[Key]:
        """Lower the priority of background processes during a measured window, and restore it afterwards.

        Returns the lowered processes.
        """
        if self._background is None or self._window is None:
            return set()
        if is_measured(self._window):
            self._samples_after_window = 0
            return self._background.lower(self._roles.stats, measured)
        if self._samples_after_window < RESTORE_SAMPLES:
            self.restore()
        return set()

    def restore(self) -> None:
        """Restore the priority of background processes, including those lowered by a killed recorder."""
        if self._background is not None:
            restored = self._background.restore(self._roles.stats)
            self._samples_after_window += 1
            if restored:
                self._journal.append({"kind": "restored", "pids": restored})

    def _offsets(self) -> None:
        with contextlib.suppress(InfrastructureError):
            self._journal.append({"kind": "offsets", "topic": "input", "end": self._input.read(OFFSETS_TIMEOUT_S)})


def record_attempt(
    run: Run,
    stop: threading.Event,
    *,
    after: str | None = None,
    keep: Callable[[], object] = lambda: None,
) -> None:
    """Sample until `stop` is set; journal late samples, since a gap weakens the figures read from them.

    `after`: the attempt that held the machine before; see `claim_turn`. `keep`: function that raises once the attempt
    has lost its target.
    """
    with Journal(run.attempt.recorder_journal) as journal:
        recorder = Recorder(run, journal)
        recorder.start()
        journal.append(
            {"kind": "start", "after": after, "boot": start_identity(os.getpid())[1], "space": pid_namespace_of("self")}
        )
        due = time.monotonic()
        try:
            while not stop.is_set():
                recorder.sample()
                keep()
                due += PERIOD_S
                late = time.monotonic() - due
                if late > 0:
                    journal.append({"kind": "overrun", "late_s": round(late, 3)})
                    due += PERIOD_S * int(late / PERIOD_S + 1)
                stop.wait(max(0.0, due - time.monotonic()))
            recorder.sample()
        finally:
            recorder.restore()
        recorder.stop()
        journal.append({"kind": "stop"}, sync=True)


@contextlib.contextmanager
def hold_target(run: Run, wait_s: float, over: Callable[[], bool]) -> Iterator[Callable[[], object]]:
    """Hold the attempt's target; yield a function that refreshes the target lock.

    The embedded services need none, because the machine lock covers them.
    """
    endpoints = run.plan.endpoints
    if not endpoints.is_external:
        yield lambda: None
        return
    from faultline.installation.targets.target_lock import hold_target
    from faultline.lifecycle.hosts.broker_clock import broker_of

    with hold_target(broker_of(endpoints), run.attempt.id, wait_s=wait_s, is_cancelled=over) as turn:
        yield turn.refresh


def claim_turn(turn: Path, attempt: Attempt, waited_for: LockClaim | None) -> str | None:
    """Write in the file `turn` that the attempt holds the machine; return the previous attempt, None for the first.

    `waited_for`: the claim that the attempt waited for. Only it can belong to another installation; the attempt's
    folder is then returned, else its id.
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
    parser.add_argument("--wait", type=float, default=MIN_WAIT_S, help="seconds to wait for the machine lock")
    options, _ = parser.parse_known_args()
    attempt = Attempt(options.attempt_dir)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    waited_for = MachineLock(options.machine).take(wait_s=options.wait, is_cancelled=stop.is_set)
    run = run_of(attempt, load_settings())
    with hold_target(run, options.wait, stop.is_set) as keep:
        record_attempt(run, stop, after=claim_turn(options.turn, attempt, waited_for), keep=keep)


if __name__ == "__main__":
    main()
