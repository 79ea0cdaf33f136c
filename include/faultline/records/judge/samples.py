"""Samples of processes and machines from the recorders of all hosts, converted to this host's clock."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from faultline.system.journal import Line
from faultline.system.measured_window import NS
from faultline.system.process_tags import RESTARTED, SERVICES

PROCESS_COLUMNS = ["wall_ns", "role", "pid", "create_time", "cpu_s", "rss_bytes", "final"]
MACHINE_COLUMNS = ["wall_ns", "busy_s", "stolen_s"]
# Largest difference in s between a start in services.jsonl and the creation time of the process.
START_TOLERANCE_S = 2.0
# CPU seconds of a host's cgroup, and the recorder's part of them.
GROUP_COLUMNS = ["wall_ns", "cpu_s", "recording_s"]


@dataclass(frozen=True)
class HostClock:
    """Clock of another host relative to this host's clock, in seconds.

    `start_s`, `end_s`: its lead at start and end of the run; `end_s` is None if the clock could not be read at the end.
    `half_round_trip_s`: half of the longer round trip of both readings.
    """

    start_s: float
    end_s: float | None
    half_round_trip_s: float

    @property
    def ahead_s(self) -> float:
        """Lead of the clock: the mean of both readings."""
        return self.start_s if self.end_s is None else (self.start_s + self.end_s) / 2

    @property
    def uncertain_ms(self) -> float:
        """Largest error in ms of an instant converted to this host's clock; infinite without a reading at the end.

        The error is the drift plus half a round trip. It is exact to the nanosecond, because rules compare it with
        limits.
        """
        if self.end_s is None:
            return math.inf
        drift_ns = abs(round(self.end_s * NS) - round(self.start_s * NS))
        return (2 * drift_ns + round(2 * self.half_round_trip_s * NS)) / 2e6


@dataclass(frozen=True)
class OtherHost:
    """Another host. `same_machine`: it shares this machine's cores, e.g. a host emulated by namespaces.

    `processes`, `machine`: its samples, on this host's clock. `group`: kernel totals of its cgroup. `ended`: whether
    its recorder stopped regularly, so that no sample is missing.
    """

    name: str
    same_machine: bool
    clock: HostClock | None
    processes: pd.DataFrame
    machine: pd.DataFrame
    group: pd.DataFrame
    ended: bool


def read_hosts(journals: Mapping[str, Sequence[Line]], recorder: Sequence[Line]) -> tuple[OtherHost, ...]:
    """Return the other hosts, in the order of `journals`.

    `journals`: lines of each host's own recorder. `recorder`: lines of this host's recorder.
    """
    clocks, local_start = clocks_of(recorder), _start_line(recorder)
    return tuple(_read_host(name, lines, clocks.get(name), local_start) for name, lines in journals.items())


def _start_line(journal: Sequence[Line]) -> Line:
    return next((line for line in journal if line.get("kind") == "start"), Line())


def clocks_of(recorder: Sequence[Line]) -> dict[str, HostClock]:
    """Return the clocks of other hosts by name, as read by the recorder at start and end."""
    found: dict[str, HostClock] = {}
    for line in (one for one in recorder if one.get("kind") == "clock"):
        name, offset, half = str(line["host"]), float(line["offset_s"]), float(line["round_trip_s"]) / 2
        before = found.get(name)
        if before is None:
            found[name] = HostClock(offset, None, half)
        else:
            found[name] = HostClock(before.start_s, offset, max(before.half_round_trip_s, half))
    return found


def processes_of(lines: Sequence[Line], host: str = "") -> pd.DataFrame:
    """Return the samples of processes in the recorder's journal of `host`; "" is this host."""
    rows = [[line.get(name) for name in PROCESS_COLUMNS] for line in lines if line.get("kind") == "proc"]
    frame = pd.DataFrame(rows, columns=PROCESS_COLUMNS)
    frame["final"] = frame["final"].eq(True)
    samples = [line for line in lines if line.get("kind") == "proc"]
    # Missing in older journals, and on kernels that do not count run delays.
    frame["waited_s"] = pd.Series([line.get("waited_s") for line in samples], dtype="float64")
    frame["lowered"] = pd.Series([line.get("lowered") is True for line in samples], dtype="bool")
    frame["host"] = host
    return frame


def machine_of(lines: Sequence[Line]) -> pd.DataFrame:
    """Return the samples of the whole machine; empty for older journals without them."""
    return _number_frame(lines, "machine", MACHINE_COLUMNS)


def _number_frame(lines: Sequence[Line], kind: str, columns: Sequence[str]) -> pd.DataFrame:
    rows = [[line.get(name) for name in columns] for line in lines if line.get("kind") == kind]
    figures = dict.fromkeys(columns[1:], "float64")
    return pd.DataFrame(rows, columns=list(columns), dtype=object).astype({"wall_ns": "int64", **figures})


def _read_host(name: str, lines: Sequence[Line], clock: HostClock | None, local_start: Line) -> OtherHost:
    start = _start_line(lines)
    ahead_ns = 0 if clock is None else round(clock.ahead_s * NS)
    processes, machine = processes_of(lines, name), machine_of(lines)
    group = _number_frame(lines, "group", GROUP_COLUMNS)
    for frame in (processes, machine, group):
        frame["wall_ns"] -= ahead_ns
    processes["create_time"] -= ahead_ns / NS
    same_machine = local_start.get("boot") is not None and start.get("boot") == local_start["boot"]
    if same_machine and local_start.get("space") is not None and start.get("space") == local_start["space"]:
        # Both hosts share a PID namespace, so this host's recorder has sampled the same processes.
        processes, group = processes[:0], group[:0]
    ended = bool(lines) and lines[-1].get("kind") == "stop"
    return OtherHost(name, same_machine, clock, processes, machine, group, ended)


def all_processes(recorder: Sequence[Line], started: Sequence[Line], hosts: Sequence[OtherHost]) -> pd.DataFrame:
    """Return the samples of the processes of all hosts.

    `started`: lines on services started during the run; their processes get the role RESTARTED.
    """
    frames = [processes_of(recorder), *(one.processes for one in hosts)]
    frame = pd.concat([one for one in frames if len(one)] or frames[:1], ignore_index=True)
    for line in started:
        # A restart delay holds the process after its creation. Creation times distinguish reused pids.
        created_s = line["wall_ns"] / NS - float(line.get("waited_s") or 0.0)
        is_created_then = frame["create_time"].between(created_s - START_TOLERANCE_S, created_s + START_TOLERANCE_S)
        frame.loc[is_created_then & (frame["pid"] == line["pid"]) & (frame["role"] == SERVICES), "role"] = RESTARTED
    return frame


def recorder_death(recorder: Sequence[Line], hosts: Sequence[OtherHost]) -> str | None:
    """Return why samples are missing; None if the recorders of all hosts stopped regularly."""
    if not recorder or recorder[-1].get("kind") != "stop":
        return "its last line is not `stop`"
    missing = [one.name for one in hosts if not one.ended]
    return f"of {', '.join(missing)}: the last line of its journal is not `stop`" if missing else None
