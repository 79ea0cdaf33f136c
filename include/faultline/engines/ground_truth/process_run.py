"""One life of the engine: follows a course on the clock, over a transport, and leaves the traces of its work.

Before the gate it takes whatever has arrived (the primer) on a grid of its own. From T0 on it does what
the course says, at the instants of the course: emit records, plan and commit batches, and after a kill
launch its task and load its state. A record is never emitted before it has arrived, and nothing is
committed before it is emitted and acknowledged, so a late generator makes the engine late, not wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from faultline.engines.ground_truth.scripted_run import MS, Ints, ScriptedTimeline
from faultline.engines.ground_truth.traces import Ends, RestoredState
from faultline.system.errors import InfrastructureError

# How long the engine sleeps at most before it looks at the topic and the stop file again.
TICK_NS = 10 * MS
# The same while it waits for a record that should have arrived.
LATE_TICK_NS = MS
# The grid before the gate.
PRIMER_TICK_NS = 200 * MS
# Acts later than this are worth a word: they show in the figures.
LOG_DELAY_NS = 20 * MS


@dataclass(frozen=True)
class Arrival:
    """One record that came from the input topic."""

    partition: int
    offset: int
    timestamp_ms: int
    primer: bool


class Transport(Protocol):
    """The input and the output topic."""

    def poll(self) -> Iterable[Arrival]:
        """What has arrived since the last call, in order within each partition; does not wait."""

    def emit(self, key: bytes, value: bytes) -> None:
        """Sends one output record, stamped with the present."""

    def flush(self) -> None:
        """Returns when every output is acknowledged. Raises InfrastructureError when one cannot be."""

    def emitted(self) -> Mapping[bytes, int]:
        """How often each key lies in the output topic."""


class TraceWriter(Protocol):
    """What the engine leaves behind. Offsets are ends (exclusive) by partition."""

    def plan(self, batch: int, ends: Ends, base: Ends | None) -> None:
        """A batch is planned; `base`: where the schedule begins in each partition, once that is known."""

    def commit(self, batch: int, starts: Ends, ends: Ends) -> None:
        """A batch is done."""

    def launch(self, batch: int) -> None:
        """The tasks of a batch begin."""

    def load(self, batch: int, partition: int) -> None:
        """A task has read the state of its partition."""

    def say(self, message: str) -> None:
        """A line for whoever reads the log."""


class RunClock(Protocol):
    """Monotonic time."""

    def now_ns(self) -> int:
        """The present."""

    def sleep_ns(self, duration_ns: int) -> None:
        """Returns after that time, or a little later."""


# The course, given the end of the load in ns after T0; None while the schedule says it.
TimelineBuilder = Callable[[int | None], ScriptedTimeline]


class Incarnation:
    """One life of the engine. `partitions` are numbered from 0; `stop` asks it to end."""

    def __init__(
        self,
        partitions: int,
        transport: Transport,
        traces: TraceWriter,
        clock: RunClock,
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

    def await_gate(self, opened: Callable[[], int | None]) -> int | None:
        """Works through the primer until `opened` gives T0 (on the clock); None when asked to stop before."""
        if self._base is None and opened() is not None:
            self._base = dict(self._ends)  # killed between the primer and the first commit after the gate
        due_ns = self._clock.now_ns()
        while (t0_ns := opened()) is None:
            if self._stop():
                return None
            self._look()
            if self._clock.now_ns() >= due_ns:
                self._take_primer()
                due_ns = self._clock.now_ns() + PRIMER_TICK_NS
            self._clock.sleep_ns(TICK_NS)
        if self._base is None:
            self._look()
            self._take_primer()
            self._base = dict(self._ends)
        return t0_ns

    def follow(
        self,
        course: TimelineBuilder,
        t0_ns: int,
        load_end: Callable[[], int | None],
        *,
        stateless: bool,
        restarted: bool,
    ) -> None:
        """Keeps the course from T0 (on the clock) on, until asked to stop.

        `load_end`: when the load ends (on the clock), once that is known; nothing is awaited that is due later.
        `stateless`: nothing is ever loaded. `restarted`: outputs may already be there from before.
        """
        assert self._base is not None
        _Follower(self, course, t0_ns, load_end, stateless=stateless, restarted=restarted).run()

    def _look(self) -> None:
        for arrival in self._transport.poll():
            if arrival.primer and self._base is not None and arrival.offset >= self._base[arrival.partition]:
                raise InfrastructureError(
                    f"primer: {arrival.partition}:{arrival.offset} came after the gate; the step submit_workload "
                    "must wait for its commit"
                )
            self._arrived[arrival.partition] = arrival.offset + 1

    def _take_primer(self) -> None:
        """One batch of all that has arrived, if anything has."""
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


class _Follower:
    """The engine after the gate: emissions in their order, acts in theirs."""

    def __init__(
        self,
        engine: Incarnation,
        laid: TimelineBuilder,
        t0_ns: int,
        load_end: Callable[[], int | None],
        *,
        stateless: bool,
        restarted: bool,
    ) -> None:
        self._engine = engine
        self._transport, self._traces, self._clock = engine._transport, engine._traces, engine._clock
        self._laid, self._load_end, self._ended = laid, load_end, False
        self._course = laid(None)
        self._t0_ns = t0_ns
        self._stateless = stateless
        assert engine._base is not None
        self._base: Ends = engine._base
        self._done = sum(engine._ends[partition] - self._base[partition] for partition in engine._partitions)
        self._seen: Mapping[bytes, int] = self._transport.emitted() if restarted else {}
        self._emit_ns, self._order = self._emissions()
        self._next = 0
        self._planned: list[tuple[int, Ends]] = []
        self._acts = self._timetable()
        self._acted = 0

    def run(self) -> None:
        self._traces.say(
            f"follows its course from record {self._done} on: {len(self._acts)} acts, "
            f"{len(self._order)} records to emit, {len(self._seen)} keys emitted before"
        )
        while not self._engine._stop():
            self._engine._look()
            self._look_for_end()
            now_ns = self._now_ns()
            self._emit_due(now_ns)
            while self._acts and self._acts[0][0] <= now_ns and self._ready(self._acts[0]):
                at_ns, _, act = self._acts.pop(0)
                self._acted += 1
                act()
                late_ns = self._now_ns() - at_ns
                if late_ns > LOG_DELAY_NS:
                    self._traces.say(f"{act.__name__} of {at_ns / 1e9:.3f} s came {late_ns / 1e6:.0f} ms late")
            self._clock.sleep_ns(self._spare_ns())
        self._transport.flush()

    def _look_for_end(self) -> None:
        """Once the end of the load is known, what comes after it is left out; all before stays as it was."""
        end_ns = None if self._ended else self._load_end()
        if end_ns is not None:
            self._ended = True
            self._course = self._laid(end_ns - self._t0_ns)
            self._emit_ns, self._order = self._emissions()
            self._acts = self._timetable()[self._acted :]

    def _now_ns(self) -> int:
        return self._clock.now_ns() - self._t0_ns

    def _emissions(self) -> tuple[Ints, list[int]]:
        """When each record goes out, and the records that have not, in that order.

        What was due before the kill and did not get out goes out with the replay.
        """
        emit = self._course.emit_ns
        if self._course.outages:
            outage = self._course.outages[-1]
            emit = np.where(emit <= outage.t0_ns, outage.replayed_ns, emit)
        rest = np.arange(self._done, len(emit))
        order = rest[np.argsort(emit[rest], kind="stable")]
        return emit, [int(number) for number in order]

    def _timetable(self) -> list[tuple[int, int, Callable[[], None]]]:
        """(instant, records that must have been emitted by then, act), in order of time."""
        acts: list[tuple[int, int, Callable[[], None]]] = []
        outage = self._course.outages[-1] if self._course.outages else None
        if outage is not None:
            acts.append((outage.launch_ns, 0, self._launch))
            if not self._stateless:
                # The partitions are loaded one after another, evenly; the last one is what counts.
                step = (outage.loaded_ns - outage.launch_ns) // len(self._engine._partitions)
                for partition in self._engine._partitions:
                    left = len(self._engine._partitions) - 1 - partition
                    acts.append((outage.loaded_ns - left * step, 0, self._loader(partition)))
        for row in self._course.rows:
            if outage is not None and row.commit_ns <= outage.t0_ns:
                continue
            if row.upto < self._done:
                continue
            replay = outage is not None and row.commit_ns == outage.replayed_ns
            acts.append((row.planned_ns, 0, self._planner(row.upto, replay=replay)))
            acts.append((row.commit_ns, row.upto, self._commit))
        return sorted(acts, key=lambda act: act[0])  # stable, so a batch is planned before it is committed

    def _launch(self) -> None:
        self._traces.launch(self._engine._batch)

    def _loader(self, partition: int) -> Callable[[], None]:
        def load() -> None:
            self._traces.load(self._engine._batch, partition)

        return load

    def _planner(self, upto: int, *, replay: bool) -> Callable[[], None]:
        def plan() -> None:
            batch, ends = self._engine._batch, self._ends(upto)
            self._traces.plan(batch, ends, self._base)
            self._planned.append((batch, ends))
            self._engine._batch += 1
            if not replay:  # else its tasks were launched before
                self._traces.launch(batch)

        return plan

    def _commit(self) -> None:
        batch, ends = self._planned.pop(0)
        self._transport.flush()
        self._traces.commit(batch, self._engine._ends, ends)
        self._engine._ends = ends

    def _ends(self, upto: int) -> Ends:
        """End offsets of the first `upto` records of the schedule: record k lies in partition k mod n."""
        n = len(self._engine._partitions)
        return {partition: self._base[partition] + max(0, -(-(upto - partition) // n)) for partition in self._base}

    def _ready(self, act: tuple[int, int, Callable[[], None]]) -> bool:
        """Whether an act's records have arrived, and those that go out before it have gone out."""
        at_ns, upto, _ = act
        if not upto:
            return True
        gone = self._next == len(self._order) or int(self._emit_ns[self._order[self._next]]) > at_ns
        ends = self._ends(upto)
        return gone and all(self._engine._arrived[partition] >= end for partition, end in ends.items())

    def _emit_due(self, now_ns: int) -> None:
        while self._next < len(self._order):
            number = self._order[self._next]
            if int(self._emit_ns[number]) > now_ns or not self._has_arrived(number):
                return
            self._next += 1
            self._emit(number)

    def _emit(self, number: int) -> None:
        treatment = self._course.treatment(number)
        key = _key(*self._place(number))
        for _ in range(treatment.copies - self._seen.get(key, 0)):
            self._transport.emit(key, str(treatment.counted).encode())

    def _place(self, number: int) -> tuple[int, int]:
        partition = number % len(self._engine._partitions)
        return partition, self._base[partition] + number // len(self._engine._partitions)

    def _has_arrived(self, number: int) -> bool:
        partition, offset = self._place(number)
        return self._engine._arrived[partition] > offset

    def _spare_ns(self) -> int:
        """How long nothing is to be done; a tick when what is to be done has to wait for a record."""
        dues = [self._acts[0][0]] if self._acts else []
        if self._next < len(self._order):
            dues.append(int(self._emit_ns[self._order[self._next]]))
        spare_ns = min(dues) - self._now_ns() if dues else TICK_NS
        return LATE_TICK_NS if spare_ns <= 0 else min(spare_ns, TICK_NS)


def _key(partition: int, offset: int) -> bytes:
    return f"{partition}:{offset}".encode()
