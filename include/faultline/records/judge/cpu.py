"""CPU and memory by role, from cumulative counters of single processes, and background CPU of the machine.

A process is its pid *and* creation time, so a reused pid never continues another process's counter. A counter is linear
between samples, from 0 at the creation of the process. After the last sample it keeps its value, so the CPU of a dead
process stays counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from faultline.records.judge.samples import OtherHost
from faultline.records.record import BackgroundCpuPart, CpuPerMillion
from faultline.system.measured_window import NS
from faultline.system.process_tags import ENGINE, ROLES, SERVICES, WORKERS

# A process is taken as alive this long after a sample: samples come each second, and may be late.
ALIVE_NS = 1_500_000_000
MEGABYTE = 1e6
# Seconds over which the worst disturbance is looked for.
WORST_S = 5

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def cores(processes: pd.DataFrame, start_ns: int, end_ns: int) -> dict[str, float | None]:
    """Return mean cores used by each role in [start, end]: CPU seconds / seconds.

    0 for a role without a process; None for all roles when nothing was sampled.
    """
    used = cpu_seconds(processes, np.array([start_ns, end_ns], dtype=np.int64))
    seconds = (end_ns - start_ns) / NS
    return {role: float(used[role][1] - used[role][0]) / seconds if len(processes) else None for role in ROLES}


def rps_per_core(throughput_rps: float, used: Mapping[str, float | None]) -> float | None:
    """Return throughput over the cores that executors and their Python workers used; None where they used none.

    The driver is left out: it plans, whatever the number of records.
    """
    engine = sum(used.get(role) or 0.0 for role in WORKERS)
    return throughput_rps / engine if engine else None


def seconds_per_million(used: Mapping[str, float | None], throughput_rps: float | None) -> CpuPerMillion | None:
    """Return CPU seconds for a million records, of all processes of the engine and of those that do its work.

    `used`: cores by role; None where nothing was committed, or nothing sampled.
    """
    if not throughput_rps or any(used.get(role) is None for role in ENGINE):
        return None
    engine, workers = (sum(used[role] or 0.0 for role in roles) * 1e6 / throughput_rps for roles in (ENGINE, WORKERS))
    return CpuPerMillion(engine=engine, workers=workers)


def background_cpu(machine: pd.DataFrame, processes: pd.DataFrame, start_ns: int, end_ns: int) -> BackgroundCpuPart:
    """Return mean background CPU in [start, end], in cores.

    `processes` excludes the experiment with its recorder and fault scheduler; it includes `services`, which run the
    experiments. `recorder`: used by the recorder. `steal`: taken by the hypervisor. None if not sampled or not counted.
    """
    window, seconds = np.array([start_ns, end_ns], dtype=np.int64), (end_ns - start_ns) / NS
    used = cpu_seconds(processes, window, tuple(processes["role"].unique()))
    own = {role: float(values[1] - values[0]) for role, values in used.items()}
    services = own.pop(SERVICES, None)
    total = {name: counter_growth(machine, name, window) for name in ("busy_s", "stolen_s")}
    return BackgroundCpuPart(
        processes=None if total["busy_s"] is None else max(0.0, (total["busy_s"] - sum(own.values())) / seconds),
        services=None if services is None else services / seconds,
        recorder=own["recorder"] / seconds if "recorder" in own else None,
        steal=None if total["stolen_s"] is None else total["stolen_s"] / seconds,
    )


@dataclass(frozen=True)
class BackgroundLoad:
    """Cores taken by other processes and the hypervisor together: mean, and worst `WORST_S` seconds."""

    mean: float
    worst: float


def background_load(
    machine: pd.DataFrame, processes: pd.DataFrame, start_ns: int, end_ns: int
) -> BackgroundLoad | None:
    """Return the background load in [start, end], from the counters of the machine and of the experiment's processes.

    None if the machine was not sampled. Unreported steal counts as 0.
    """
    instants = np.arange(start_ns, end_ns + 1, NS, dtype=np.int64)
    busy, stolen = (_counter(machine, name, instants) for name in ("busy_s", "stolen_s"))
    if busy is None or len(instants) < 2:
        return None
    used = cpu_seconds(processes, instants, tuple(processes["role"].unique()))
    own = sum((values for role, values in used.items() if role != SERVICES), np.zeros(len(instants)))
    course = busy - own + (0.0 if stolen is None else stolen)
    span = min(WORST_S, len(instants) - 1)
    mean = float(course[-1] - course[0]) / (len(instants) - 1)
    return BackgroundLoad(max(0.0, mean), max(0.0, float((course[span:] - course[:-span]).max()) / span))


@dataclass(frozen=True)
class Lost:
    """Mean cores that the measured processes lost in a window.

    `others`: to other processes. `stolen`: to the hypervisor; None if unreported. `worst`: to both, in the worst
    `WORST_S` seconds.
    """

    others: float
    stolen: float | None
    worst: float

    @property
    def mean(self) -> float:
        """Mean loss to both together."""
        return self.others + (self.stolen or 0.0)


def lost_cpu(machine: pd.DataFrame, processes: pd.DataFrame, start_ns: int, end_ns: int) -> Lost | None:
    """Return the CPU lost in [start, end]; None if the run delay of the processes or the machine was not sampled.

    The kernel counts how long each thread was ready without a core, but not which thread had it. So for each second:

        lost = min(F, D × F ÷ B)

    D: run delay of the measured processes in thread-seconds; B: seconds that the machine's processors worked; F: of
    these, the seconds of processes that are neither the experiment's nor give way (`lowered`). A thread that waits does
    so behind the thread on the core, which is a foreign process in F of B seconds. The bound is F: n threads that
    wait behind one foreign process count n times in D, and have lost one processor.

    Idle cores: a foreign process on an otherwise idle core adds to F and not to D, and costs next to nothing.
    Bursts: within a second it is not known which thread waited when. Where foreign work and waiting fall into different
    parts of a second the figure is too high, never above F; a burst that does take a core from a batch is found whole,
    since both grow in the same second. The measured processes' own waiting for each other is shared out by F ÷ B, so
    the figure is 0 without foreign work. What threads do to each other without a queue (caches, memory, a core's other
    hyperthread) is not in it. Where the measured processes have more threads than cores most of the time, as JVMs that
    work on half of a small machine have, D is larger than B, and all foreign work counts as lost: an upper bound. A
    single measured thread is never behind itself, so next to one foreign process only half of its loss counts.

    Steal is added as the machine counts it: the hypervisor takes a core from the running thread and from all that wait.
    """
    instants = np.arange(start_ns, end_ns + 1, NS, dtype=np.int64)
    busy, stolen = (_counter(machine, name, instants) for name in ("busy_s", "stolen_s"))
    if busy is None or len(instants) < 2 or "waited_s" not in processes:
        return None
    measured = processes[processes["role"].isin(ROLES)].dropna(subset=["waited_s"])
    if measured.empty:
        return None
    used = cpu_seconds(processes, instants, tuple(processes["role"].unique()))
    own = sum((values for role, values in used.items() if role != SERVICES), np.zeros(len(instants)))
    giving_way = _cumulated(_while_lowered(processes[processes["role"] == SERVICES]), (SERVICES,), "cpu_s", instants)
    delay = sum(_cumulated(measured, ROLES, "waited_s", instants).values(), np.zeros(len(instants)))
    worked = np.maximum(np.diff(busy), 0.0)
    foreign = np.clip(np.diff(busy - own - giving_way[SERVICES]), 0.0, worked)
    share = np.divide(foreign, worked, out=np.zeros_like(worked), where=worked > 0)
    to_others = np.minimum(foreign, np.diff(delay) * share)
    to_host = np.zeros_like(worked) if stolen is None else np.maximum(np.diff(stolen), 0.0)
    course = np.concatenate([[0.0], np.cumsum(to_others + to_host)])
    span = min(WORST_S, len(worked))
    return Lost(
        float(to_others.mean()),
        None if stolen is None else float(to_host.mean()),
        float((course[span:] - course[:-span]).max()) / span,
    )


def _while_lowered(processes: pd.DataFrame) -> pd.DataFrame:
    """Return the samples with counters of CPU time that do not advance while a process has low priority.

    A process started by one with low priority has low priority from its start.
    """
    changed = []
    for _, samples in _by_process(processes, (SERVICES,)):
        counters = np.maximum.accumulate(samples["cpu_s"].to_numpy(dtype=np.float64))
        lowered = samples["lowered"].to_numpy(dtype=np.bool_)
        both = lowered & np.concatenate([lowered[:1], lowered[:-1]])
        changed.append(samples.assign(cpu_s=np.cumsum(np.diff(counters, prepend=0.0) * both)))
    return pd.concat(changed) if changed else processes


def counter_growth(machine: pd.DataFrame, name: str, window: Ints) -> float | None:
    """Return the growth of a machine's counter, or None if it was not sampled at both ends."""
    course = _counter(machine, name, window)
    return None if course is None else float(course[-1] - course[0])


def _counter(machine: pd.DataFrame, name: str, instants: Ints) -> Floats | None:
    """Return a counter of the machine at ascending instants, interpolated; None unless sampled on both sides."""
    samples = machine.dropna(subset=[name]).sort_values("wall_ns")
    times = samples["wall_ns"].to_numpy(dtype=np.int64)
    if not len(times) or times[0] > instants[0] or times[-1] < instants[-1]:
        return None
    course: Floats = np.interp(
        (instants - times[0]).astype(np.float64), (times - times[0]).astype(np.float64), samples[name]
    )
    return course


def cpu_seconds(processes: pd.DataFrame, instants: Ints, roles: Sequence[str] = ROLES) -> dict[str, Floats]:
    """Return cumulated CPU seconds of each role at the given instants (ns, ascending)."""
    return _cumulated(processes, roles, "cpu_s", instants)


def _cumulated(processes: pd.DataFrame, roles: Sequence[str], counter: str, instants: Ints) -> dict[str, Floats]:
    """Return the growth of any counter that starts at 0 with its process."""
    total = {role: np.zeros(len(instants)) for role in roles}
    for role, samples in _by_process(processes, roles):
        times = samples["wall_ns"].to_numpy(dtype=np.int64)
        counters = np.maximum.accumulate(samples[counter].to_numpy(dtype=np.float64))
        born = min(round(float(samples["create_time"].iloc[0]) * NS), int(times[0]) - 1)
        # relative to birth, so that float64 keeps nanoseconds apart
        total[role] += np.interp(
            (instants - born).astype(np.float64),
            np.concatenate([[0.0], (times - born).astype(np.float64)]),
            np.concatenate([[0.0], counters]),
        )
    return total


def rss_mb(processes: pd.DataFrame, start_ns: int, end_ns: int) -> dict[str, float | None]:
    """Return peak over the window's seconds of the resident memory summed over each role's processes, in MB."""
    seconds = np.arange(start_ns, end_ns + 1, NS, dtype=np.int64)
    total = {role: np.zeros(len(seconds)) for role in ROLES}
    for role, samples in _by_process(processes, ROLES):
        times = samples["wall_ns"].to_numpy(dtype=np.int64)
        index = np.searchsorted(times, seconds, side="right") - 1
        alive = (index >= 0) & (seconds - times[index] <= ALIVE_NS) & ~samples["final"].to_numpy(dtype=np.bool_)[index]
        total[role] += np.where(alive, samples["rss_bytes"].to_numpy(dtype=np.float64)[index], 0.0)
    return {role: float(total[role].max()) / MEGABYTE if len(processes) else None for role in ROLES}


def cores_by_second(processes: pd.DataFrame, t0_ns: int, until_ns: int) -> list[dict[str, float]]:
    """Return cores by role in each whole second after T0, for plots; `t_s` is the second's end."""
    instants = np.arange(t0_ns, until_ns + 1, NS, dtype=np.int64)
    used = {role: np.diff(values) for role, values in cpu_seconds(processes, instants).items()}
    return [
        {"t_s": float(second + 1), **{role: round(float(used[role][second]), 4) for role in ROLES}}
        for second in range(len(instants) - 1)
    ]


def _by_process(processes: pd.DataFrame, roles: Sequence[str]) -> Iterator[tuple[str, pd.DataFrame]]:
    known = processes[processes["role"].isin(roles)].sort_values("wall_ns", kind="stable")
    for (role, *_), samples in known.groupby(["role", "host", "pid", "create_time"]):
        yield str(role), samples


def highest_background_load(
    machine: pd.DataFrame, processes: pd.DataFrame, hosts: Sequence[OtherHost], start_ns: int, end_ns: int
) -> BackgroundLoad | None:
    """Return the highest background load of the machines that do not report lost CPU.

    `machine`: samples of this machine; `processes`: of all.
    """
    known = [
        found
        for samples, own in _machines(machine, processes, hosts)
        if lost_cpu(samples, own, start_ns, end_ns) is None
        and (found := background_load(samples, own, start_ns, end_ns)) is not None
    ]
    return None if not known else BackgroundLoad(max(one.mean for one in known), max(one.worst for one in known))


def highest_lost_cpu(
    machine: pd.DataFrame, processes: pd.DataFrame, hosts: Sequence[OtherHost], start_ns: int, end_ns: int
) -> Lost | None:
    """Return the CPU lost on the machine with the largest loss, or None if no machine reports it."""
    found = [lost_cpu(samples, own, start_ns, end_ns) for samples, own in _machines(machine, processes, hosts)]
    return max((one for one in found if one is not None), key=lambda one: one.mean, default=None)


def _machines(
    machine: pd.DataFrame, processes: pd.DataFrame, hosts: Sequence[OtherHost]
) -> list[tuple[pd.DataFrame, pd.DataFrame]]:
    """Return the samples of each machine and of its processes."""
    others = [(one.machine, one.processes) for one in hosts if not one.same_machine]
    return [(machine, of_this_machine(processes, hosts)), *others]


def of_this_machine(processes: pd.DataFrame, hosts: Sequence[OtherHost]) -> pd.DataFrame:
    """Return the samples of the processes that share this machine's cores."""
    return processes[processes["host"].isin(["", *(one.name for one in hosts if one.same_machine)])]


def cores_by_host(processes: pd.DataFrame, here: str, start_ns: int, end_ns: int) -> dict[str, float]:
    """Return mean cores in [start, end] of the engine and its broker, by host.

    `here`: name of this host.
    """
    roles = [role for role in ROLES if role != "generator"]
    found = processes[processes["role"].isin(roles)]
    used = {}
    for host in found["host"].unique():
        by_role = cores(found[found["host"] == host], start_ns, end_ns)
        used[str(host) or here] = round(sum(by_role[role] or 0.0 for role in roles), 6)
    return used


def cores_of_host(host: OtherHost, start_ns: int, end_ns: int) -> tuple[float, float | None]:
    """Return mean cores in [start, end] of another host: of its processes with a role, and of its own counter.

    The counter is that of its cgroup if it shares this machine, else that of its machine; the recorder is subtracted.
    """
    window = np.array([start_ns, end_ns], dtype=np.int64)
    used = cpu_seconds(host.processes, window, tuple(host.processes["role"].unique()))
    seconds = (end_ns - start_ns) / NS
    # On a machine of its own, the agent's group is that of a session.
    counted = (
        counter_growth(host.group, "cpu_s", window)
        if host.same_machine
        else counter_growth(host.machine, "busy_s", window)
    )
    total = sum(float(one[1] - one[0]) for one in used.values()) / seconds
    # Not in journals from before it was written down.
    recording = counter_growth(host.group, "recording_s", window) or 0.0
    return total, None if counted is None else (counted - recording) / seconds


def cores_on_one_host(used: Mapping[str, float | None], here: str) -> dict[str, float]:
    """Return cores used by the engine and its broker, where there is one host."""
    parts = [value for role, value in used.items() if role != "generator" and value is not None]
    return {here: round(sum(parts), 6)} if parts else {}
