"""Scripted run without an engine: the inputs of the judge (which checks a finished attempt), in memory.

Outputs, commits and kills get small random delays, as in a real run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt
import pandas as pd

from faultline.engines.ground_truth.engine import ENGINE
from faultline.engines.ground_truth.scripted_run import MS, NS, Ints, RunSpec, ScriptedTimeline, build_timeline
from faultline.engines.ground_truth.traces import METHODS, launched, loaded
from faultline.engines.protocol import Commit, EngineEvent, ProcessRun, Traces
from faultline.experiment.common_parameters import RECOVERED_WITHIN
from faultline.experiment.workloads.known_truth_script import Script
from faultline.records.judge.end import limits_of
from faultline.records.judge.signals import TopicSchedule, bins_between, bins_of_batches, bins_of_seconds
from faultline.records.judge.steady import Limits
from faultline.records.judge.timeline import FaultEvidence
from faultline.records.judge.tuples import Tuples, fold, fold_produced, is_sparse
from faultline.system.measured_window import Window

T0_WALL_NS = 1_795_241_700_250_000_000
LATEST_MS = 5
PRIMER = 4  # records in each partition before T0
# Maximum delay until the supervisor detects the end of a process.
_DETECTION_NS = 50 * MS
# Time from the query of the end offsets to the kill.
_QUERY_NS = 200 * MS


@dataclass(frozen=True)
class Simulated:
    """One simulated run. Instants are wall-clock ns; `emit_ms` has shape (records,), -1 for lost records."""

    script: Script
    run: RunSpec
    course: ScriptedTimeline
    window: Window
    traces: Traces
    due_ms: Ints
    emit_ms: Ints
    kills_ns: tuple[int, ...]

    @property
    def t0_ns(self) -> int | None:
        """Instant of the first kill."""
        return self.kills_ns[0] if self.kills_ns else None

    @property
    def method(self) -> str:
        """Latency method of the harvest."""
        return self.traces.method

    @property
    def resolution_s(self) -> float:
        """Length of a time bin in seconds."""
        return 1.0 if self.method == "rank" else self.run.checkpoint_interval_s

    @cached_property
    def bins(self) -> pd.DataFrame:
        """The time bins that the judge derives from this run."""
        if self.method == "rank":
            return bins_of_seconds(self.folded, self.window)
        return bins_of_batches(self.traces.commits, TopicSchedule(self.records()), self.folded, self.window)

    def reference(self, name: str) -> npt.NDArray[np.float64]:
        """Return a column of the bins between the start of the measured window and the first fault."""
        until_ns = self.window.end_ns if self.t0_ns is None else self.t0_ns
        return bins_between(self.bins, self.window.start_ns, until_ns)[name].to_numpy(dtype=np.float64)

    def end_offsets(self, number: int = 0) -> dict[str, int]:
        """Return the end offsets that the fault scheduler read before the kill with this index."""
        return _ends(self.course.due(self.kills_ns[number] - _QUERY_NS - T0_WALL_NS), self.run.partitions)

    def evidence(self) -> FaultEvidence:
        """Return the evidence of the first fault, which the run must have."""
        assert self.t0_ns is not None
        waiting = self.emit_ms[(self.due_ms <= self.t0_ns // MS) & (self.emit_ms >= 0)]
        return FaultEvidence(
            engine=ENGINE,
            traces=self.traces,
            t0_ns=self.t0_ns,
            victim="driver",
            victims=[{"pid": 1, "role": "driver"}],
            end_offsets=self.end_offsets(),
            bins=self.bins,
            production=self.folded.production,
            limits=self.limits,
            emissions_ms=self.folded.emissions_ms,
            emits_at_once=self.method == "rank",
            emitted_ns=max(self.t0_ns, int(waiting.max()) * MS),
            window=self.window,
            until_ns=self.kills_ns[1] if len(self.kills_ns) > 1 else None,
        )

    @cached_property
    def folded(self) -> Tuples:
        """Tuples, aggregated as the judge does it."""
        found = fold([self.tuples()], self.window)
        if not is_sparse(found.production, self.window):
            return found
        return replace(found, production=fold_produced([self.tuples()], self.window, MS))

    @property
    def limits(self) -> Limits | None:
        """Recovery thresholds of this run."""
        return limits_of(
            self.folded.production,
            self.bins,
            start_ns=self.window.start_ns,
            until_ns=self.window.end_ns if self.t0_ns is None else self.t0_ns,
            checkpoint_interval_s=self.run.checkpoint_interval_s,
            within=RECOVERED_WITHIN,
        )

    def tuples(self) -> pd.DataFrame:
        """Return the harvest's table of tuples, one row per scheduled record."""
        found = self.emit_ms >= 0
        return pd.DataFrame(
            {
                "lineage": 0,
                "batch": self._batch_of(),
                "produced_ms": self.due_ms,
                "emitted_ms": pd.arrays.IntegerArray(np.where(found, self.emit_ms, 0), ~found),
                "primer": False,
                "n": 1,
            }
        )

    def records(self) -> pd.DataFrame:
        """Return the harvest's table of input records."""
        n = len(self.due_ms)
        numbers = np.arange(n)
        schedule = {
            "partition": numbers % self.run.partitions,
            "offset": PRIMER + numbers // self.run.partitions,
            "timestamp_ms": self.due_ms,
            "primer": False,
        }
        primer = [(p, o, T0_WALL_NS // MS - 9000, True) for p in range(self.run.partitions) for o in range(PRIMER)]
        return pd.concat([pd.DataFrame(primer, columns=list(schedule)), pd.DataFrame(schedule)], ignore_index=True)

    def counts(self) -> dict[str, Ints | list[str]]:
        """Return columns of the harvest's table of counts, including the preload."""
        # The preload comes first in each partition, so it has the lowest record numbers.
        primer = PRIMER * self.run.partitions
        n = primer + len(self.due_ms)
        final, outputs = np.ones(n, dtype=np.int64), np.ones(n, dtype=np.int64)
        for number, treatment in self.course.treatments.items():
            outputs[primer + number] = treatment.copies
            final[primer + number] = treatment.counted if treatment.copies else 0
        return {
            "key": _keys(self.run.partitions, -(-n // _KEYS_AT_ONCE) * _KEYS_AT_ONCE)[:n],
            "expected": np.ones(n, dtype=np.int64),
            "final": final,
            "outputs": outputs,
            "reemitted": np.maximum(outputs - 1, 0),
            "unreadable": np.zeros(n, dtype=np.int64),
        }

    def _batch_of(self) -> Ints:
        uptos = [row.record_end for row in self.course.rows]
        return 1 + np.searchsorted(uptos, np.arange(len(self.due_ms)), side="right").astype(np.int64)


_KEYS_AT_ONCE = 4096


def simulate(script: Script, run: RunSpec, seed: int, later_s: Sequence[float] = ()) -> Simulated:
    """Return one run of a script; `seed` determines all delays (at most LATEST_MS milliseconds).

    `later_s`: times of further kills, in seconds after T0, the start of the load.
    """
    random = np.random.default_rng(seed)
    late = iter(random.integers(0, LATEST_MS * MS, size=64 * (1 + len(later_s))).tolist())
    planned = [] if run.fault_at_ns is None else [run.fault_at_ns, *(round(at * NS) for at in later_s)]
    kills = [at + next(late) for at in planned]
    course = build_timeline(script, run, kills)
    due_ms = (T0_WALL_NS + course.due_ns) // MS
    jitter = random.integers(0, LATEST_MS * MS, size=len(course.due_ns))
    emit_ms = (T0_WALL_NS + course.emit_ns + jitter) // MS
    for number, treatment in course.treatments.items():
        if not treatment.copies:
            emit_ms[number] = -1
    commits = [Commit(0, 0, T0_WALL_NS - 2 * NS, T0_WALL_NS - NS, _ends(0, run.partitions))]
    delays = random.integers(0, LATEST_MS * MS, size=len(course.rows)).tolist()
    for number, (row, delay) in enumerate(zip(course.rows, delays, strict=True), start=1):
        begun, committed = T0_WALL_NS + row.planned_ns, T0_WALL_NS + row.commit_ns + delay
        commits.append(Commit(0, number, begun, committed, _ends(row.record_end, run.partitions)))
    lives = [ProcessRun(0, T0_WALL_NS - 5 * NS, None)]
    for number, killed in enumerate(kills, start=1):
        detected = T0_WALL_NS + killed + int(random.integers(0, _DETECTION_NS))
        lives = [*lives[:-1], replace(lives[-1], ended_ns=detected), ProcessRun(number, detected + NS, None)]
    method = METHODS[script.style]
    return Simulated(
        script,
        run,
        course,
        Window.of(T0_WALL_NS, run.warmup_s, run.duration_s, run.checkpoint_interval_s),
        Traces(method, tuple(commits), commits[-1].ends, tuple(_events(script, run, course, late)), tuple(lives)),
        due_ms,
        emit_ms,
        tuple(T0_WALL_NS + killed for killed in kills),
    )


def _events(script: Script, run: RunSpec, course: ScriptedTimeline, late: Iterator[int]) -> Iterator[EngineEvent]:
    """Yield tasks and loads of all process runs in the format of the engine's traces."""
    for batch, row in enumerate(course.rows, start=1):
        earlier = [outage for outage in course.outages if row.commit_ns > outage.t0_ns]
        process_run = len(earlier)
        began_ns, loaded_ns = row.planned_ns, None
        outage = earlier[-1] if earlier else None
        if outage is not None and row is course.covering(outage):
            loaded_ns = None if script.nothing_to_load else outage.loaded_ns + next(late)
            began_ns = outage.launch_ns + next(late)
        for partition in range(run.partitions):
            yield launched(process_run, batch, partition, T0_WALL_NS + began_ns)
            if loaded_ns is not None:
                yield loaded(process_run, batch, partition, T0_WALL_NS + loaded_ns)


def _ends(upto: int, partitions: int) -> dict[str, int]:
    return {str(p): PRIMER + max(0, -(-(upto - p) // partitions)) for p in range(partitions)}


@lru_cache
def _keys(partitions: int, n: int) -> list[str]:
    return [f"{k % partitions}:{k // partitions}" for k in range(n)]
