"""Samples of processes and machines from the recorders of all hosts, on this host's clock."""

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
# Largest difference in s between a start in the journal of services and the process's creation time.
START_S = 2.0
# CPU of a host's control group, and its recorder's part of it.
GROUP_COLUMNS = ["wall_ns", "cpu_s", "recording_s"]


@dataclass(frozen=True)
class HostClock:
    """A host's clock compared with this one's, in seconds: lead at start and end, and half the longer round trip.

    `end_s`: None if it could not be read at the end.
    """

    start_s: float
    end_s: float | None
    half_round_trip_s: float

    @property
    def ahead_s(self) -> float:
        """Mean of both readings."""
        return self.start_s if self.end_s is None else (self.start_s + self.end_s) / 2

    @property
    def uncertain_ms(self) -> float:
        """Largest error of an instant of that host on this host's clock; infinite without a reading at the end.

        It is the drift plus half a round trip, exact to the nanosecond, because rules compare it with limits.
        """
        if self.end_s is None:
            return math.inf
        drift_ns = abs(round(self.end_s * NS) - round(self.start_s * NS))
        return (2 * drift_ns + round(2 * self.half_round_trip_s * NS)) / 2e6


@dataclass(frozen=True)
class OtherHost:
    """Another host. `same_machine`: it shares this machine's cores, as network namespaces do.

    `processes`, `machine`: its samples, on this host's clock; `group`: kernel totals of its control group. `ended`:
    whether its recorder was stopped regularly, so that no sample is missing.
    """

    name: str
    same_machine: bool
    clock: HostClock | None
    processes: pd.DataFrame
    machine: pd.DataFrame
    group: pd.DataFrame
    ended: bool


def read_hosts(journals: Mapping[str, Sequence[Line]], recorder: Sequence[Line]) -> tuple[OtherHost, ...]:
    """Return each by what its own journal says, in order of their names. `recorder`: this machine's."""
    clocks, here = clocks_of(recorder), _start_of(recorder)
    return tuple(_read(name, lines, clocks.get(name), here) for name, lines in journals.items())


def _start_of(journal: Sequence[Line]) -> Line:
    return next((line for line in journal if line.get("kind") == "start"), Line())


def clocks_of(recorder: Sequence[Line]) -> dict[str, HostClock]:
    """Return clock readings by host, taken by the recorder at start and end."""
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
    """Return samples of single processes in a journal of `host`; empty stands for this one."""
    rows = [[line.get(name) for name in PROCESS_COLUMNS] for line in lines if line.get("kind") == "proc"]
    frame = pd.DataFrame(rows, columns=PROCESS_COLUMNS)
    frame["final"] = frame["final"].eq(True)
    samples = [line for line in lines if line.get("kind") == "proc"]
    # Not in journals from before they were taken, nor where the kernel does not count delays.
    frame["waited_s"] = pd.Series([line.get("waited_s") for line in samples], dtype="float64")
    frame["lowered"] = pd.Series([line.get("lowered") is True for line in samples], dtype="bool")
    frame["host"] = host
    return frame


def machine_of(lines: Sequence[Line]) -> pd.DataFrame:
    """Return samples of the whole machine; none in journals from before they were taken."""
    return _numbers(lines, "machine", MACHINE_COLUMNS)


def _numbers(lines: Sequence[Line], kind: str, columns: Sequence[str]) -> pd.DataFrame:
    rows = [[line.get(name) for name in columns] for line in lines if line.get("kind") == kind]
    figures = dict.fromkeys(columns[1:], "float64")
    return pd.DataFrame(rows, columns=list(columns), dtype=object).astype({"wall_ns": "int64", **figures})


def _read(name: str, lines: Sequence[Line], clock: HostClock | None, here: Line) -> OtherHost:
    start = _start_of(lines)
    ahead_ns = 0 if clock is None else round(clock.ahead_s * NS)
    processes, machine, group = processes_of(lines, name), machine_of(lines), _numbers(lines, "group", GROUP_COLUMNS)
    for frame in (processes, machine, group):
        frame["wall_ns"] -= ahead_ns
    processes["create_time"] -= ahead_ns / NS
    same = here.get("boot") is not None and start.get("boot") == here["boot"]
    if same and here.get("space") is not None and start.get("space") == here["space"]:
        # In containers with one space of process ids this recorder has counted them all.
        processes, group = processes[:0], group[:0]
    ended = bool(lines) and lines[-1].get("kind") == "stop"
    return OtherHost(name, same, clock, processes, machine, group, ended)


def all_processes(recorder: Sequence[Line], started: Sequence[Line], hosts: Sequence[OtherHost]) -> pd.DataFrame:
    """Return samples of single processes, of all hosts.

    `started`: lines on services started during the run; these have a role of their own.
    """
    frames = [processes_of(recorder), *(one.processes for one in hosts)]
    frame = pd.concat([one for one in frames if len(one)] or frames[:1], ignore_index=True)
    for line in started:
        # The process exists before it may continue. Its pid may have belonged to another one.
        began_s = line["wall_ns"] / NS - float(line.get("waited_s") or 0.0)
        is_it = frame["create_time"].between(began_s - START_S, began_s + START_S)
        frame.loc[is_it & (frame["pid"] == line["pid"]) & (frame["role"] == SERVICES), "role"] = RESTARTED
    return frame


def recorder_death(recorder: Sequence[Line], hosts: Sequence[OtherHost]) -> str | None:
    """Return why samples are missing; None while none are."""
    if not recorder or recorder[-1].get("kind") != "stop":
        return "its last line is not `stop`"
    missing = [one.name for one in hosts if not one.ended]
    return f"of {', '.join(missing)}: the last line of its journal is not `stop`" if missing else None
