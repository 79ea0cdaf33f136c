"""Traces of the ground-truth engine: one journal that its incarnations append to and resume from.

`traces.jsonl` in the attempt's folder holds one line per action, with its instant:

| event | fields |
| --- | --- |
| `started` | `incarnation`, `style` of the script |
| `planned` | `batch`, `ends`: offsets by partition, `base`: where the schedule starts, null before T0 |
| `launched` | `batch`: its tasks start |
| `loaded` | `batch`, `partition`: state was read |
| `committed` | `batch`, `starts`, `ends` |
| `ended` | requested end |
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from faultline.engines.protocol import Commit, EngineEvent, Offsets, Traces, offsets_by_partition
from faultline.engines.supervisor_journal import SUPERVISOR_JOURNAL as SUPERVISED
from faultline.engines.supervisor_journal import process_runs_of
from faultline.engines.work import Batch
from faultline.system.files import require_file
from faultline.system.journal import Journal, Line, events, read_finished, read_journal

# As `Attempt.traces` names it.
TRACES_FILE = "traces.jsonl"
Ends = dict[int, int]
MS = 1_000_000
METHODS = {"batch": "batch", "record": "rank"}


@dataclass(frozen=True)
class RestoredState:
    """Progress of earlier incarnations: last committed batch (-1: none), its end offsets, and their base."""

    batch: int = -1
    ends: Mapping[int, int] | None = None
    base: Mapping[int, int] | None = None


class TraceJournal:
    """Trace writer of one incarnation; see `faultline.engines.ground_truth.process_run.TraceWriter`."""

    def __init__(self, path: Path, *, incarnation: int, style: str) -> None:
        self._journal = Journal(path)
        self._journal.write("started", incarnation=incarnation, style=style)

    def plan(self, batch: int, ends: Ends, base: Ends | None) -> None:
        self._journal.write("planned", batch=batch, ends=_by_name(ends), base=None if base is None else _by_name(base))

    def launch(self, batch: int) -> None:
        self._journal.write("launched", batch=batch)

    def load(self, batch: int, partition: int) -> None:
        self._journal.write("loaded", batch=batch, partition=partition)

    def commit(self, batch: int, starts: Ends, ends: Ends) -> None:
        self._journal.write("committed", batch=batch, starts=_by_name(starts), ends=_by_name(ends))

    def log(self, message: str) -> None:
        """Write one line to standard error, which the supervisor stores as the driver's log."""
        instant = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]
        print(f"{instant}Z INFO [main] KnownTruth: {message}", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Write that the engine ends as requested."""
        self._journal.write("ended")
        self._journal.close()


def restore(path: Path) -> RestoredState:
    """Return where the last committed batch of earlier incarnations ended; nothing for the first incarnation."""
    lines = read_journal(path)
    commits = commits_of(lines)
    if not commits:
        return RestoredState()
    newest = commits[-1]
    plan = _plans(lines)[newest.number]
    base = None if plan["base"] is None else _by_number(plan["base"])
    return RestoredState(newest.number, _by_number(newest.ends), base)


def read_traces(folder: Path) -> Traces:
    """Read the attempt in `folder`.

    Raises InfrastructureError that names a missing or broken file.
    """
    require_file(folder / TRACES_FILE)
    lines = read_finished(folder / TRACES_FILE)
    style = next((str(line["style"]) for line in events(lines, "started")), "batch")
    commits = commits_of(lines)
    committed = [(commit.number, commit.planned_ns or 0, commit.committed_ns) for commit in commits]
    reached = commits[-1].ends if commits else {}
    return Traces(
        method=METHODS[style],
        commits=tuple(commits),
        reached=reached,
        events=tuple(events_in(lines)),
        process_runs=process_runs_of(read_finished(folder / SUPERVISED)),
        batches=tuple(Batch(number, at_ns, (at_ns - planned_ns) / MS, None) for number, planned_ns, at_ns in committed),
        # Each record has its own key, and no state is on disk.
        state_rows=sum(reached.values()) if commits else None,
        state_bytes=0,
        per_record=style == "record",
    )


def commits_of(lines: Iterable[Line]) -> list[Commit]:
    """Return the committed batches in order; a batch may have been planned by an earlier, killed incarnation."""
    known = list(lines)
    plans = _plans(known)
    return [
        Commit(
            0,
            int(line["batch"]),
            int(plans[line["batch"]]["wall_ns"]),
            int(line["wall_ns"]),
            offsets_by_partition(line["ends"]),
        )
        for line in events(known, "committed")
    ]


def events_in(lines: Iterable[Line]) -> Iterator[EngineEvent]:
    """Yield task starts, one per partition, and state loads, in order."""
    incarnation, partitions = 0, 0
    for line in lines:
        at_ns = int(line["wall_ns"])
        if line["event"] == "started":
            incarnation = int(line["incarnation"])
        elif line["event"] == "planned":
            partitions = len(line["ends"])
        elif line["event"] == "launched":
            # After a kill, tasks start before their batch is planned, so the partitions come from an earlier batch.
            yield from (launched(incarnation, int(line["batch"]), number, at_ns) for number in range(partitions))
        elif line["event"] == "loaded":
            yield loaded(incarnation, int(line["batch"]), int(line["partition"]), at_ns)


def launched(incarnation: int, batch: int, partition: int, wall_ns: int) -> EngineEvent:
    """Return the event of a partition's task start."""
    task = f"task {partition} of batch {batch}"
    return EngineEvent(
        "task_started", "driver", _process(incarnation), wall_ns, TRACES_FILE, f"{task} launched", task=task
    )


def loaded(incarnation: int, batch: int, partition: int, wall_ns: int) -> EngineEvent:
    """Return the event of a partition's state load."""
    task = f"task {partition} of batch {batch}"
    text = f"state of partition {partition} loaded by {task}"
    return EngineEvent(
        "state_loaded", "driver", _process(incarnation), wall_ns, TRACES_FILE, text, task=task, store=str(partition)
    )


def _process(incarnation: int) -> str:
    return f"driver-{incarnation}"


def _plans(lines: Iterable[Line]) -> dict[int, Line]:
    """Return the last plan of each batch."""
    return {int(line["batch"]): line for line in events(lines, "planned")}


def _by_name(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): offset for partition, offset in sorted(offsets.items())}


def _by_number(offsets: Offsets) -> dict[int, int]:
    return {int(partition): offset for partition, offset in offsets.items()}
