"""Timeline of a scripted run: when each record is emitted, and how many records each commit covers.

It is a pure function of the script, the run, the kills so far and the end of the load. The engine follows it, and the
ground truth is derived from it. All instants are integer nanoseconds after T0. Records are numbered 0, 1, … in the
order of the send schedule; record k lies in partition k mod `partitions`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from faultline.experiment.workloads.known_truth_script import SLOW_EVERY, WOBBLE, Script
from faultline.system.errors import ConfigError
from generators.pacing import SendSchedule

Ints = npt.NDArray[np.int64]
NS = 1_000_000_000
MS = 1_000_000
# Minimum time between the end of the replay and the next instant of the grid.
GUARD_NS = 50 * MS
# In style `record`, the backlog ends in the middle of a second, away from the boundaries of time bins.
MID_SECOND_NS = NS // 2
# Records are always sent for this long after a fault, even if the load ends at its recovery.
MIN_SENDING_S = 30.0


@dataclass(frozen=True)
class RunSpec:
    """Parameters of the run that the timeline depends on."""

    rate: float
    warmup_s: float
    duration_s: float
    checkpoint_interval_s: float
    partitions: int
    fault_at_s: float | None
    # Duration of the send schedule; it exceeds warm-up and window if the window may start later; None: equal.
    schedule_s: float | None = None

    @classmethod
    def from_mapping(cls, config: Mapping[str, Any]) -> Self:
        """Build it from `workload_config.json`.

        Raises ConfigError that names a missing key.
        """
        try:
            return cls(
                rate=float(config["rate"]),
                warmup_s=float(config["warmup_s"]),
                duration_s=float(config["duration_s"]),
                checkpoint_interval_s=float(config["checkpoint_interval_s"]),
                partitions=int(config["partitions"]),
                fault_at_s=None if config["fault_at_s"] is None else float(config["fault_at_s"]),
                schedule_s=None if config.get("schedule_s") is None else float(config["schedule_s"]),
            )
        except KeyError as error:
            raise ConfigError(f"{error.args[0]}: missing in workload_config.json; fix: clear the whole run") from None

    @property
    def end_s(self) -> float:
        """End of the measured window in s after T0, unless the fault scheduler moves it."""
        return self.warmup_s + self.duration_s

    @property
    def fault_at_ns(self) -> int | None:
        """Planned t0 (instant of the fault) in ns after T0."""
        return None if self.fault_at_s is None else _ns(self.fault_at_s)

    @property
    def interval_ns(self) -> int:
        """Interval of the commit grid."""
        return _ns(self.checkpoint_interval_s)


@dataclass(frozen=True)
class ScriptedCommit:
    """Commit with the instants at which it is planned and made, and the total number of records covered so far."""

    planned_ns: int
    commit_ns: int
    record_end: int


@dataclass(frozen=True)
class Outage:
    """Instants of a planted fault, in ns after T0."""

    t0_ns: int
    launch_ns: int
    loaded_ns: int
    replayed_ns: int

    @classmethod
    def of(cls, script: Script, t0_ns: int) -> Self:
        """Return the outage of a kill delivered at `t0_ns`."""
        launch = t0_ns + _ns(script.redeploy_s)
        loaded = launch + _ns(script.load_s)
        return cls(t0_ns, launch, loaded, loaded + _ns(script.replay_s))

    @property
    def length_ns(self) -> int:
        """Time from t0 to the end of the replay."""
        return self.replayed_ns - self.t0_ns


@dataclass(frozen=True)
class Treatment:
    """Number of emissions of a record, and the emitted count; both are 1 unless it is lost, duplicate or wrong."""

    copies: int = 1
    counted: int = 1


DEFAULT_TREATMENT = Treatment()


@dataclass(frozen=True)
class ScriptedTimeline:
    """Timeline of a run.

    `due_ns`, `emit_ns`: shape (records,). `rows`: commits, sorted by time. `treatments`: those that are not the
    default, by record.
    """

    due_ns: Ints
    emit_ns: Ints
    rows: tuple[ScriptedCommit, ...]
    outages: tuple[Outage, ...]
    treatments: Mapping[int, Treatment]

    def covering(self, outage: Outage) -> ScriptedCommit:
        """Return the first commit after an outage: it covers the records that the broker held at t0."""
        return next(row for row in self.rows if row.commit_ns >= outage.replayed_ns)

    def due(self, at_ns: int) -> int:
        """Return the number of records due at or before an instant."""
        return int(np.searchsorted(self.due_ns, at_ns, side="right"))

    def treatment(self, number: int) -> Treatment:
        """Return the treatment of record `number`."""
        return self.treatments.get(number, DEFAULT_TREATMENT)


def build_timeline(
    script: Script, run: RunSpec, kills_ns: Sequence[int], until_ns: int | None = None
) -> ScriptedTimeline:
    """Return the timeline of a run whose engine is killed at these instants after T0.

    Each kill happens after recovery from the previous one. `until_ns`: end of the load, after which records are not
    sent; None: the whole schedule is sent. Neither a kill nor the load end changes emissions and commits before it.
    """
    schedule = SendSchedule.for_duration(run.rate, run.end_s if run.schedule_s is None else run.schedule_s)
    due = schedule.due_array(0, 1, schedule.count)
    treatments = choose_treatments(script, run, due)
    if until_ns is not None:
        due = due[: np.searchsorted(due, until_ns, side="right")]
    outages = tuple(Outage.of(script, at) for at in kills_ns)
    build = _batch_timeline if script.style == "batch" else _record_timeline
    emit, rows = build(script, run, due, outages)
    return ScriptedTimeline(
        due, emit, rows, outages, {number: how for number, how in treatments.items() if number < len(due)}
    )


def choose_treatments(script: Script, run: RunSpec, due_ns: Ints) -> dict[int, Treatment]:
    """Choose the treated records by seed among those due in the measured window, shortly after any fault.

    Records before the fault are excluded, because they would distort the baseline. Raises ConfigError if there are too
    few.
    """
    begin_s = run.warmup_s if run.fault_at_s is None else run.fault_at_s
    end_s = run.end_s if run.fault_at_s is None else min(run.end_s, begin_s + MIN_SENDING_S)
    first, last = np.searchsorted(due_ns, [_ns(begin_s), _ns(end_s)]).tolist()
    if script.mistreated > last - first:
        raise ConfigError(f"truth.lost: got {script.mistreated} treated records; expected at most {last - first}")
    chosen = random.Random(script.seed).sample(range(first, last), script.mistreated)
    kinds = [(script.lost, Treatment(copies=0)), (script.overcounted, Treatment(counted=2))]
    kinds.append((script.reemitted, Treatment(copies=2)))
    treatments = [treatment for number, treatment in kinds for _ in range(number)]
    return dict(zip(chosen, treatments, strict=True))


def _batch_timeline(
    script: Script, run: RunSpec, due: Ints, outages: Sequence[Outage]
) -> tuple[Ints, tuple[ScriptedCommit, ...]]:
    """Style `batch`: records due at a grid instant are emitted and committed one latency later."""
    total, step = len(due), run.interval_ns

    def due_at(at_ns: int) -> int:
        return int(np.searchsorted(due, at_ns, side="right"))

    rows: list[ScriptedCommit] = []
    delays: list[int] = []  # from the commit of each batch to its emission
    pending, batch_end = list(outages), _batch_end(due_at)
    index, number, recovering = 1, 1, False  # index: instant on the grid; number: batch since the last replay
    while pending or not rows or rows[-1].record_end < total:
        at = index * step
        row = ScriptedCommit(at, at + round((script.latency_ms + script.wobble_ms(index)) * MS), batch_end(number, at))
        if pending and row.commit_ns > pending[0].t0_ns:
            outage = pending.pop(0)
            held = due_at(outage.t0_ns)
            rows.append(ScriptedCommit(outage.loaded_ns, outage.replayed_ns, held))
            delays.append(0)
            index, number, recovering = (outage.replayed_ns + GUARD_NS) // step + 1, 1, True
            batch_end = _backlog_end(script, outage, held, due_at)
            continue
        slow = recovering and script.recovers and 1 < number - script.catchup_bins <= 1 + script.slow_bins
        rows.append(row)
        delays.append(round(script.slow_ms * MS) if slow else 0)
        index, number = index + 1, number + 1
    sizes = np.diff([0, *(row.record_end for row in rows)])
    emit = np.repeat(np.array([row.commit_ns + delay for row, delay in zip(rows, delays, strict=True)]), sizes)
    # Empty batches are not planned, except for the replay, which is always committed.
    kept = [row for row, size in zip(rows, sizes.tolist(), strict=True) if size or _is_replay(row, outages)]
    return emit.astype(np.int64), tuple(kept)


def _batch_end(due_at: Callable[[int], int]) -> Callable[[int, int], int]:
    """Return the record-end function of batches that take all records due when they are planned."""
    return lambda number, at_ns: due_at(at_ns)


def _backlog_end(script: Script, outage: Outage, held: int, due_at: Callable[[int], int]) -> Callable[[int, int], int]:
    """Return a function that gives the record end of the n-th batch (from 1) after the replay."""

    def record_end(number: int, at_ns: int) -> int:
        if not script.recovers:
            return due_at(at_ns - outage.length_ns)
        backlog = due_at(at_ns) - held
        share = min(number, script.catchup_bins + 1)
        return held + backlog * share // (script.catchup_bins + 1)

    return record_end


def _is_replay(row: ScriptedCommit, outages: Sequence[Outage]) -> bool:
    return any(row.commit_ns == outage.replayed_ns for outage in outages)


def _record_timeline(
    script: Script, run: RunSpec, due: Ints, outages: Sequence[Outage]
) -> tuple[Ints, tuple[ScriptedCommit, ...]]:
    """Style `record`: each record is emitted one latency after its production; commits take emitted records."""
    wobble = np.array(WOBBLE)[(due // NS) % len(WOBBLE)] * script.spread_ms
    emit: Ints = due + np.round((script.latency_ms + wobble) * MS).astype(np.int64)
    for outage in outages:
        emit = _delay_emissions(script, due, emit, outage)
    reached = np.maximum.accumulate(emit)
    rows: list[ScriptedCommit] = []
    at, pending = run.interval_ns, list(outages)
    while pending or not rows or rows[-1].record_end < len(due):
        was_killed = bool(pending) and pending[0].t0_ns < at
        if was_killed:  # no commit before the replay has ended
            at = ((pending.pop(0).replayed_ns + GUARD_NS) // run.interval_ns + 1) * run.interval_ns
        record_end = int(np.searchsorted(reached, at, side="right"))
        if was_killed or record_end > (rows[-1].record_end if rows else 0):
            rows.append(ScriptedCommit(at, at, record_end))
        at += run.interval_ns
    return emit, tuple(rows)


def _delay_emissions(script: Script, due: Ints, normal: Ints, outage: Outage) -> Ints:
    """Return the emission times of style `record`, delayed by an outage."""
    emit = normal.copy()
    pending = normal > outage.t0_ns
    later = due > outage.t0_ns
    emit[pending & ~later] = outage.replayed_ns
    if not script.recovers:
        emit[later] = normal[later] + outage.length_ns
        return emit
    recovered_ns, healthy_ns = lag_recovery(script, outage)
    backlog = np.nonzero(later & (normal < recovered_ns))[0]
    # Emitting half of the backlog at the end keeps the lag above its threshold until then.
    half = len(backlog) // 2
    steps = (recovered_ns - outage.replayed_ns) * np.arange(1, half + 1) // (half + 1)
    emit[backlog[:half]] = outage.replayed_ns + steps
    emit[backlog[half:]] = recovered_ns
    slow_ns = round(script.slow_ms * MS)
    slow = later & (normal >= healthy_ns) & (normal + slow_ns < healthy_ns + script.slow_bins * NS - GUARD_NS)
    slow[np.arange(len(due)) % SLOW_EVERY != 0] = False
    emit[slow] += slow_ns
    return emit


def lag_recovery(script: Script, outage: Outage) -> tuple[int, int]:
    """Return, for style `record`, when the backlog is processed, and the end of that second."""
    second = outage.replayed_ns // NS
    if script.catchup_bins == 0:
        return outage.replayed_ns, (second + 1) * NS
    return (second + script.catchup_bins) * NS + MID_SECOND_NS, (second + script.catchup_bins + 1) * NS


def _ns(seconds: float) -> int:
    return round(seconds * NS)
