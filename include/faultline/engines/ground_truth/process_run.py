"""One incarnation of the engine (one start of its process): it follows a timeline over a transport and writes traces.

Before T0 (start of the warm-up) it commits the preload on a fixed grid. From T0 on it performs the actions of the
timeline: emit records, plan and commit batches, and after a kill launch tasks and load state. A record is emitted only
after its arrival, and a batch is committed only after its output is acknowledged. A late generator therefore delays the
engine but does not change its results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from faultline.engines.ground_truth.scripted_run import MS, Ints, ScriptedTimeline
from faultline.engines.ground_truth.traces import Ends, RestoredState
from faultline.system.errors import InfrastructureError
from generators.pacing import Clock

# Longest sleep between two polls of the topic and the stop file.
TICK_NS = 10 * MS
# The same while an overdue record has not arrived.
LATE_TICK_NS = MS
# Commit interval before T0.
PRELOAD_TICK_NS = 200 * MS
# Actions that are more than this behind the timeline are logged, because they affect the results.
LOG_DELAY_NS = 20 * MS


@dataclass(frozen=True)
class Arrival:
    """Record from the input topic."""

    partition: int
    offset: int
    timestamp_ms: int
    primer: bool


class Transport(Protocol):
    """Input and output topic."""

    def poll(self) -> Iterable[Arrival]:
        """Return records that arrived since the last call, in order within each partition; do not wait."""

    def emit(self, key: bytes, value: bytes) -> None:
        """Send one output record, stamped with the current time."""

    def flush(self) -> None:
        """Wait until every output is acknowledged.

        Raises InfrastructureError if that fails.
        """

    def emitted(self) -> Mapping[bytes, int]:
        """Return the number of records by key in the output topic."""


class TraceWriter(Protocol):
    """Writer of the engine's traces. Offsets are exclusive ends by partition."""

    def plan(self, batch: int, ends: Ends, base: Ends | None) -> None:
        """Write that a batch is planned.

        `base`: where the schedule starts in each partition; None before T0.
        """

    def commit(self, batch: int, starts: Ends, ends: Ends) -> None:
        """Write that a batch is committed."""

    def launch(self, batch: int) -> None:
        """Write that the tasks of a batch start."""

    def load(self, batch: int, partition: int) -> None:
        """Write that a task has read the state of its partition."""

    def log(self, message: str) -> None:
        """Write a line to the log."""


# Returns the timeline for a load end in ns after T0; None: the end of the schedule.
TimelineBuilder = Callable[[int | None], ScriptedTimeline]


class Incarnation:
    """Incarnation of the engine. `partitions`: their number; `stop`: returns whether to end."""

    def __init__(
        self,
        partitions: int,
        transport: Transport,
        traces: TraceWriter,
        clock: Clock,
        stop: Callable[[], bool],
        restored: RestoredState,
    ) -> None:
        self._partitions = range(partitions)
        self._transport = transport
        self._traces = traces
        self._clock = clock
        self._stop = stop
        self._batch = restored.batch + 1
        self._ends: Ends = {partition: (restored.ends or {}).get(partition, 0) for partition in self._partitions}
        self._arrived: Ends = dict(self._ends)
        self._base: Ends | None = None if restored.base is None else dict(restored.base)

    def await_start(self, read_start: Callable[[], int | None]) -> int | None:
        """Process the preload until `read_start` returns T0; return None if stopped before."""
        if self._base is None and read_start() is not None:
            self._base = dict(self._ends)  # killed between the preload and the first commit after T0
        due_ns = self._clock.now_ns()
        while (t0_ns := read_start()) is None:
            if self._stop():
                return None
            self._poll_input()
            if self._clock.now_ns() >= due_ns:
                self._commit_preload()
                due_ns = self._clock.now_ns() + PRELOAD_TICK_NS
            self._clock.sleep_ns(TICK_NS)
        if self._base is None:
            self._poll_input()
            self._commit_preload()
            self._base = dict(self._ends)
        return t0_ns

    def follow(
        self,
        timeline: TimelineBuilder,
        t0_ns: int,
        load_end: Callable[[], int | None],
        *,
        stateless: bool,
        restarted: bool,
    ) -> None:
        """Follow the timeline from T0 until asked to stop.

        `load_end`: when the load ends (monotonic), once known; records due later are not awaited. `stateless`: no state
        is ever loaded. `restarted`: an earlier incarnation may have emitted outputs.
        """
        assert self._base is not None
        _TimelineRunner(self, timeline, t0_ns, load_end, stateless=stateless, restarted=restarted).run()

    def _poll_input(self) -> None:
        for arrival in self._transport.poll():
            if arrival.primer and self._base is not None and arrival.offset >= self._base[arrival.partition]:
                raise InfrastructureError(
                    f"preload: record {arrival.partition}:{arrival.offset} arrived after T0; expected its commit before"
                )
            self._arrived[arrival.partition] = arrival.offset + 1

    def _commit_preload(self) -> None:
        """Commit one batch of all arrived records, if there are any."""
        ends = dict(self._arrived)
        if ends == self._ends:
            return
        self._traces.plan(self._batch, ends, None)
        self._traces.launch(self._batch)
        for partition in self._partitions:
            for offset in range(self._ends[partition], ends[partition]):
                self._transport.emit(_key(partition, offset), b"1")
        self._transport.flush()
        self._traces.commit(self._batch, self._ends, ends)
        self._ends = ends
        self._batch += 1


class _TimelineRunner:
    """Engine after T0: it emits records and performs actions in order."""

    def __init__(
        self,
        engine: Incarnation,
        build: TimelineBuilder,
        t0_ns: int,
        load_end: Callable[[], int | None],
        *,
        stateless: bool,
        restarted: bool,
    ) -> None:
        self._engine = engine
        self._transport, self._traces, self._clock = engine._transport, engine._traces, engine._clock
        self._build, self._load_end, self._ended = build, load_end, False
        self._timeline = build(None)
        self._t0_ns = t0_ns
        self._stateless = stateless
        assert engine._base is not None
        self._base: Ends = engine._base
        self._done = sum(engine._ends[partition] - self._base[partition] for partition in engine._partitions)
        self._emitted_before: Mapping[bytes, int] = self._transport.emitted() if restarted else {}
        self._emit_ns, self._order = self._emissions()
        self._next = 0
        self._planned: list[tuple[int, Ends]] = []
        self._actions = self._pending_actions()
        self._performed = 0

    def run(self) -> None:
        self._traces.log(
            f"follows its timeline from record {self._done} on: {len(self._actions)} actions, "
            f"{len(self._order)} records to emit, {len(self._emitted_before)} keys emitted before"
        )
        while not self._engine._stop():
            self._engine._poll_input()
            self._check_load_end()
            now_ns = self._now_ns()
            self._emit_due(now_ns)
            while self._actions and self._actions[0][0] <= now_ns and self._is_ready(self._actions[0]):
                at_ns, _, action = self._actions.pop(0)
                self._performed += 1
                action()
                late_ns = self._now_ns() - at_ns
                if late_ns > LOG_DELAY_NS:
                    self._traces.log(f"{action.__name__} of {at_ns / 1e9:.3f} s came {late_ns / 1e6:.0f} ms late")
            self._clock.sleep_ns(self._idle_ns())
        self._transport.flush()

    def _check_load_end(self) -> None:
        """Once the load end is known, drop the actions after it; all earlier ones stay unchanged."""
        end_ns = None if self._ended else self._load_end()
        if end_ns is not None:
            self._ended = True
            self._timeline = self._build(end_ns - self._t0_ns)
            self._emit_ns, self._order = self._emissions()
            self._actions = self._pending_actions()[self._performed :]

    def _now_ns(self) -> int:
        return self._clock.now_ns() - self._t0_ns

    def _emissions(self) -> tuple[Ints, list[int]]:
        """Return when each record is emitted, and the records not yet emitted, in that order.

        Records that were due before the kill but not emitted are emitted with the replay.
        """
        emit = self._timeline.emit_ns
        if self._timeline.outages:
            outage = self._timeline.outages[-1]
            emit = np.where(emit <= outage.t0_ns, outage.replayed_ns, emit)
        rest = np.arange(self._done, len(emit))
        order = rest[np.argsort(emit[rest], kind="stable")]
        return emit, [int(number) for number in order]

    def _pending_actions(self) -> list[tuple[int, int, Callable[[], None]]]:
        """Return (instant, number of records that must be emitted before, action), sorted by instant."""
        actions: list[tuple[int, int, Callable[[], None]]] = []
        outage = self._timeline.outages[-1] if self._timeline.outages else None
        if outage is not None:
            actions.append((outage.launch_ns, 0, self._launch))
            if not self._stateless:
                # Partitions are loaded at even intervals; the last load ends the reload.
                step = (outage.loaded_ns - outage.launch_ns) // len(self._engine._partitions)
                for partition in self._engine._partitions:
                    left = len(self._engine._partitions) - 1 - partition
                    actions.append((outage.loaded_ns - left * step, 0, self._load_action(partition)))
        for row in self._timeline.rows:
            if outage is not None and row.commit_ns <= outage.t0_ns:
                continue
            if row.record_end < self._done:
                continue
            replay = outage is not None and row is self._timeline.covering(outage)
            actions.append((row.planned_ns, 0, self._plan_action(row.record_end, replay=replay)))
            actions.append((row.commit_ns, row.record_end, self._commit))
        return sorted(actions, key=lambda action: action[0])  # stable, so a batch is planned before it is committed

    def _launch(self) -> None:
        self._traces.launch(self._engine._batch)

    def _load_action(self, partition: int) -> Callable[[], None]:
        def load() -> None:
            self._traces.load(self._engine._batch, partition)

        return load

    def _plan_action(self, record_end: int, *, replay: bool) -> Callable[[], None]:
        def plan() -> None:
            batch, ends = self._engine._batch, self._ends(record_end)
            self._traces.plan(batch, ends, self._base)
            self._planned.append((batch, ends))
            self._engine._batch += 1
            if not replay:  # the tasks of a replay are already launched
                self._traces.launch(batch)

        return plan

    def _commit(self) -> None:
        batch, ends = self._planned.pop(0)
        self._transport.flush()
        self._traces.commit(batch, self._engine._ends, ends)
        self._engine._ends = ends

    def _ends(self, record_end: int) -> Ends:
        """Return the end offsets of the first `record_end` records: record k lies in partition k mod n."""
        n = len(self._engine._partitions)
        return {
            partition: self._base[partition] + max(0, -(-(record_end - partition) // n)) for partition in self._base
        }

    def _is_ready(self, action: tuple[int, int, Callable[[], None]]) -> bool:
        """Return whether an action's records have arrived and all earlier emissions are done."""
        at_ns, record_end, _ = action
        if not record_end:
            return True
        is_emitted = self._next == len(self._order) or int(self._emit_ns[self._order[self._next]]) > at_ns
        ends = self._ends(record_end)
        return is_emitted and all(self._engine._arrived[partition] >= end for partition, end in ends.items())

    def _emit_due(self, now_ns: int) -> None:
        while self._next < len(self._order):
            number = self._order[self._next]
            if int(self._emit_ns[number]) > now_ns or not self._has_arrived(number):
                return
            self._next += 1
            self._emit(number)

    def _emit(self, number: int) -> None:
        treatment = self._timeline.treatment(number)
        key = _key(*self._location(number))
        for _ in range(treatment.copies - self._emitted_before.get(key, 0)):
            self._transport.emit(key, str(treatment.counted).encode())

    def _location(self, number: int) -> tuple[int, int]:
        partition = number % len(self._engine._partitions)
        return partition, self._base[partition] + number // len(self._engine._partitions)

    def _has_arrived(self, number: int) -> bool:
        partition, offset = self._location(number)
        return self._engine._arrived[partition] > offset

    def _idle_ns(self) -> int:
        """Return the time until the next action; a short tick if it waits for a record."""
        dues = [self._actions[0][0]] if self._actions else []
        if self._next < len(self._order):
            dues.append(int(self._emit_ns[self._order[self._next]]))
        idle_ns = min(dues) - self._now_ns() if dues else TICK_NS
        return LATE_TICK_NS if idle_ns <= 0 else min(idle_ns, TICK_NS)


def _key(partition: int, offset: int) -> bytes:
    return f"{partition}:{offset}".encode()
