"""The timeline of a fault: t0 … t7, each an instant with the evidence it was read from.

Only t2 depends on what was broken, so a new victim needs one function in DETECTORS; everything
else reads the engine's own traces (commits, executor logs, bins).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from faultline.bands import Band, first_held
from faultline.executor_log import ExecutorEvents, StateLoad
from faultline.raw import Commit, Line
from faultline.window import CLOCK_RESOLUTION_NS, Window

CHAIN = ("t0", "t2", "t3", "t4", "t5", "t6", "t7")
_EXECUTOR_ID = re.compile(r"--executor-id[ =](\S+)")


@dataclass(frozen=True)
class Event:
    """A named instant and where it was read."""

    name: str
    wall_ns: int
    source: str


@dataclass(frozen=True)
class Evidence:
    """All that the timeline is read from.

    `end_offsets`: the broker's, read just before the signal. `victims`: the conductor's victim lines of
    the faults that were delivered. `executors`: the recorder's REST samples. Bands are None where the
    baseline held nothing.
    """

    t0_ns: int
    victim: str
    victims: Sequence[Line]
    end_offsets: Mapping[str, int]
    commits: Sequence[Commit]
    bins: pd.DataFrame
    lag: Band | None
    throughput: Band | None
    latency: Band | None
    executors: pd.DataFrame
    log: ExecutorEvents
    emissions_ms: npt.NDArray[np.int64]
    window: Window


Timeline = Mapping[str, Event]
Detector = Callable[[Evidence], Event | None]


def read_timeline(evidence: Evidence) -> dict[str, Event]:
    """The events that can be found, by name; a name that is missing was not seen."""
    found: dict[str, Event] = {"t0": Event("t0", evidence.t0_ns, "conductor.jsonl: signal delivered")}
    _add(found, DETECTORS[evidence.victim](evidence))
    _add(found, _caught_up(evidence))
    if "t2" in found:
        for event in _redeployed(evidence, found["t2"].wall_ns, found.get("t5")):
            _add(found, event)
    if "t5" in found:
        _add(found, _lag_normal(evidence, found["t5"].wall_ns))
    if "t6" in found:
        _add(found, _all_normal(evidence, found["t6"].wall_ns))
    _add(found, _silence(evidence, found.get("t6")))
    _add(found, _replacement(evidence))
    _add(found, _snapshot(evidence))
    return found


def executor_removed(evidence: Evidence) -> Event | None:
    """t2 of an executor: `removeTime` in Spark's REST interface; of several victims the last one's.

    The victim is known by `--executor-id` in its command line; without it, the first removal after t0.
    """
    removed = evidence.executors.dropna(subset=["removed_ns"])
    removed = removed[removed["removed_ns"] >= evidence.t0_ns - CLOCK_RESOLUTION_NS]
    if removed.empty:
        return None
    by_id = removed.sort_values("wall_ns").groupby("id")["removed_ns"].last()
    ids = [identity for identity in map(_executor_id, evidence.victims) if identity is not None]
    if not ids:
        return Event("t2", int(by_id.min()), "recorder.jsonl: first executor removed after t0 (REST)")
    if any(identity not in by_id.index for identity in ids):
        return None
    names = ", ".join(ids)
    return Event("t2", int(by_id[ids].max()), f"recorder.jsonl: removeTime of executor {names} (REST)")


DETECTORS: dict[str, Detector] = {"executor": executor_removed}


def reloads(loads: Sequence[StateLoad], after_ns: int, until_ns: int | None) -> list[StateLoad]:
    """The first real load of each store in [after, until]: the partitions reopened by the fault.

    Later loads of the same store are moves between executors, not recovery.
    """
    first: dict[str, StateLoad] = {}
    for load in loads:
        if load.real and load.wall_ns >= after_ns and (until_ns is None or load.wall_ns <= until_ns):
            first.setdefault(load.store, load)
    return list(first.values())


def _add(found: dict[str, Event], event: Event | None) -> None:
    if event is not None:
        found[event.name] = event


def _executor_id(victim: Line) -> str | None:
    command = victim.get("command") or []
    match = _EXECUTOR_ID.search(command if isinstance(command, str) else " ".join(map(str, command)))
    return match.group(1) if match else None


def _caught_up(evidence: Evidence) -> Event | None:
    """t5: first commit after t0 that covers what the broker held when the signal was sent."""
    for commit in sorted(evidence.commits, key=lambda item: item.committed_wall_ns):
        if commit.committed_wall_ns >= evidence.t0_ns and commit.covers(evidence.end_offsets):
            return Event("t5", commit.committed_wall_ns, f"batches.json: commit of batch {commit.batch}")
    return None


def _redeployed(evidence: Evidence, t2_ns: int, t5: Event | None) -> list[Event]:
    """t3 and t4: the last of the reloads and the launch of its task; without any, the first launch."""
    earliest = t2_ns - CLOCK_RESOLUTION_NS
    latest = None if t5 is None else t5.wall_ns + CLOCK_RESOLUTION_NS
    loads = reloads(evidence.log.loads, earliest, latest)
    if not loads:
        launched = next((task for task in evidence.log.launches if task.wall_ns >= t2_ns), None)
        if launched is None:
            return []
        source = f"log of executor {launched.executor}: first task after t2 (TID {launched.tid}), no state to load"
        return [Event("t3", launched.wall_ns, source), Event("t4", launched.wall_ns, source)]
    last = max(loads, key=lambda load: load.wall_ns)
    source = f"log of executor {last.executor}: Loaded {last.version}, partition {last.partition}, TID {last.tid}"
    found = [Event("t4", last.wall_ns, source)]
    for task in evidence.log.launches:
        if task.tid == last.tid and task.executor == last.executor:
            source = f"log of executor {task.executor}: Running task {task.index} in stage {task.stage}, TID {task.tid}"
            found.append(Event("t3", task.wall_ns, source))
    return found


def _watched(evidence: Evidence, from_ns: int) -> pd.DataFrame:
    """Bins from the one that ends at `from_ns` on, as long as the generator still sent."""
    ends = evidence.bins["end_ns"]
    return evidence.bins[(ends >= from_ns) & (ends <= evidence.window.watched_until_ns)]


def _lag_normal(evidence: Evidence, t5_ns: int) -> Event | None:
    """t6: end of the first bin from t5 on from which lag holds below its band's upper bound."""
    if evidence.lag is None:
        return None
    bins = _watched(evidence, t5_ns)
    return _held_event("t6", bins, (bins["lag"] <= evidence.lag.upper).to_numpy(dtype=np.bool_), "lag")


def _all_normal(evidence: Evidence, t6_ns: int) -> Event | None:
    """t7: the same for throughput and latency; throughput is two-sided until t6, a lower bound after."""
    if evidence.throughput is None or evidence.latency is None:
        return None
    bins = _watched(evidence, t6_ns)
    rate = bins["throughput_rps"]
    normal = (bins["latency_ms"] <= evidence.latency.upper) & (rate >= evidence.throughput.lower)
    normal &= (bins["end_ns"] > t6_ns) | (rate <= evidence.throughput.upper)
    return _held_event("t7", bins, normal.to_numpy(dtype=np.bool_), "throughput and latency")


def _held_event(name: str, bins: pd.DataFrame, inside: npt.NDArray[np.bool_], what: str) -> Event | None:
    index = first_held(bins["span_s"].to_numpy(dtype=np.float64), inside)
    if index is None:
        return None
    row = bins.iloc[index]
    return Event(name, int(row["end_ns"]), f"batches.json: {what} back in band and held from batch {int(row['batch'])}")


def _silence(evidence: Evidence, t6: Event | None) -> Event | None:
    """t1: last output before the longest silence that overlaps [t0, t6]; informative only."""
    until_ns = evidence.window.watched_until_ns if t6 is None else t6.wall_ns
    outputs = evidence.emissions_ms * 1_000_000
    if len(outputs) and outputs[-1] < until_ns:
        outputs = np.append(outputs, until_ns)
    begins, ends = outputs[:-1], outputs[1:]
    overlapping = (ends > evidence.t0_ns) & (begins < until_ns)
    if not overlapping.any():
        return None
    lengths = np.where(overlapping, ends - begins, -1)
    return Event("t1", int(begins[int(np.argmax(lengths))]), "harvest/tuples.parquet: last output before the silence")


def _replacement(evidence: Evidence) -> Event | None:
    """Registration of the first executor that was added after t0."""
    added = evidence.executors.dropna(subset=["added_ns"])
    added = added[(added["added_ns"] > evidence.t0_ns) & (added["id"] != "driver")]
    if added.empty:
        return None
    first = added.sort_values("added_ns").iloc[0]
    return Event("replacement_up", int(first["added_ns"]), f"recorder.jsonl: addTime of executor {first['id']} (REST)")


def _snapshot(evidence: Evidence) -> Event | None:
    """The last snapshot that reached the checkpoint before the signal: its age explains the replay."""
    before = [item for item in evidence.log.snapshots if item.wall_ns <= evidence.t0_ns]
    if not before:
        return None
    last = max(before, key=lambda item: item.wall_ns)
    source = f"log of executor {last.executor}: snapshot {last.version} of partition {last.partition}"
    return Event("snapshot", last.wall_ns, source)
