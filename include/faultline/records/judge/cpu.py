"""CPU and memory by role, from cumulative counters of processes, and background CPU of the machine.

Host, pid and creation time identify a process, so a reused pid does not continue another process's counter. Counters
start at 0 when the process is created and are interpolated linearly between samples. After the last sample a counter
keeps its value, so the CPU of a dead process still counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from faultline.records.judge.samples import OtherHost
from faultline.records.work_parts import BackgroundCpuPart, CpuPerMillion
from faultline.system.measured_window import NS
from faultline.system.process_tags import ENGINE, ROLES, SERVICES, WORKERS

# A process counts as alive for 1.5 s after a sample, because the samples of each second may be late.
ALIVE_NS = 1_500_000_000
MEGABYTE = 1e6
# Length in s of the stretch in which background load is highest.
WORST_S = 5

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def cores(processes: pd.DataFrame, start_ns: int, end_ns: int) -> dict[str, float | None]:
    """Return the mean number of cores that each role used in [start, end].

    0 for a role without a process; None for all roles without any sample.
    """
    used = cpu_seconds(processes, np.array([start_ns, end_ns], dtype=np.int64))
    seconds = (end_ns - start_ns) / NS
    return {role: float(used[role][1] - used[role][0]) / seconds if len(processes) else None for role in ROLES}


def rps_per_core(throughput_rps: float, used: Mapping[str, float | None]) -> float | None:
    """Return the throughput per core of executors and their Python workers; None if they used no CPU.

    The driver is excluded, because its planning does not depend on the number of records.
    """
    worker_cores = sum(used.get(role) or 0.0 for role in WORKERS)
    return throughput_rps / worker_cores if worker_cores else None


def seconds_per_million(used: Mapping[str, float | None], throughput_rps: float | None) -> CpuPerMillion | None:
    """Return the CPU seconds per million records, of all processes of the engine and of its workers alone.

    `used`: cores by role. Returns None if nothing was committed or sampled.
    """
    if not throughput_rps or any(used.get(role) is None for role in ENGINE):
        return None
    engine, workers = (sum(used[role] or 0.0 for role in roles) * 1e6 / throughput_rps for roles in (ENGINE, WORKERS))
    return CpuPerMillion(engine=engine, workers=workers)


def engine_seconds(processes: pd.DataFrame, start_ns: int, end_ns: int) -> float:
    """Return the CPU seconds that the engine used in [start, end]."""
    used = cpu_seconds(processes, np.array([start_ns, end_ns], dtype=np.int64), ENGINE)
    return float(sum(values[1] - values[0] for values in used.values()))


def background_cpu(machine: pd.DataFrame, processes: pd.DataFrame, start_ns: int, end_ns: int) -> BackgroundCpuPart:
    """Return mean background CPU in [start, end], in cores.

    Fields of the result, None if not sampled: `processes` includes all but the experiment, its recorder and its fault
    scheduler, so it contains `services`, which run the experiments. `recorder`: CPU of the recorder. `steal`: taken by
    the hypervisor.
    """
    window, seconds = np.array([start_ns, end_ns], dtype=np.int64), (end_ns - start_ns) / NS
    used = cpu_seconds(processes, window, tuple(processes["role"].unique()))
    own_s = {role: float(values[1] - values[0]) for role, values in used.items()}
    services = own_s.pop(SERVICES, None)
    total = {name: counter_growth(machine, name, window) for name in ("busy_s", "stolen_s")}
    return BackgroundCpuPart(
        processes=None if total["busy_s"] is None else max(0.0, (total["busy_s"] - sum(own_s.values())) / seconds),
        services=None if services is None else services / seconds,
        recorder=own_s["recorder"] / seconds if "recorder" in own_s else None,
        steal=None if total["stolen_s"] is None else total["stolen_s"] / seconds,
    )


@dataclass(frozen=True)
class BackgroundLoad:
    """Cores used by other processes plus steal: the mean, and the highest mean over `WORST_S` seconds."""

    mean: float
    worst: float


def background_load(
    machine: pd.DataFrame, processes: pd.DataFrame, start_ns: int, end_ns: int
) -> BackgroundLoad | None:
    """Return the background load in [start, end]; None if the machine was not sampled.

    It is the machine's CPU minus that of the experiment's processes. Unreported steal counts as 0.
    """
    instants = np.arange(start_ns, end_ns + 1, NS, dtype=np.int64)
    busy, stolen = (_interpolated_counter(machine, name, instants) for name in ("busy_s", "stolen_s"))
    if busy is None or len(instants) < 2:
        return None
    used = cpu_seconds(processes, instants, tuple(processes["role"].unique()))
    own = sum((values for role, values in used.items() if role != SERVICES), np.zeros(len(instants)))
    background = busy - own + (0.0 if stolen is None else stolen)
    span = min(WORST_S, len(instants) - 1)
    mean = float(background[-1] - background[0]) / (len(instants) - 1)
    return BackgroundLoad(max(0.0, mean), max(0.0, float((background[span:] - background[:-span]).max()) / span))


@dataclass(frozen=True)
class LostCpu:
    """Mean number of cores that the measured processes (engine, broker and generator) lost in a window.

    `others`: to other processes. `stolen`: to the hypervisor; None if unreported. `worst`: highest mean loss to both
    over `WORST_S` seconds.
    """

    others: float
    stolen: float | None
    worst: float

    @property
    def mean(self) -> float:
        """Mean loss to both together."""
        return self.others + (self.stolen or 0.0)


def lost_cpu(machine: pd.DataFrame, processes: pd.DataFrame, start_ns: int, end_ns: int) -> LostCpu | None:
    """Return the CPU lost in [start, end]; None if the machine or the run delay of the processes was not sampled.

    The kernel counts how long each thread was ready without a core (its run delay), but not which thread ran instead.
    The loss of each second is therefore estimated:

        lost = min(F, D × F ÷ B)

    - D: run delay of the measured processes, in thread-seconds.
    - B: busy seconds of the machine's cores.
    - F: the part of B used by foreign processes: those outside the experiment, without services at low priority
      (`lowered`).

    A waiting thread waits for the thread on the core, which is foreign in F of B seconds. F is the upper bound: n
    threads that wait for one foreign process count n times in D, but lose one core.

    Properties of the estimate:

    - It is 0 without foreign work. Run delay that the measured processes cause each other counts with the share F ÷ B.
    - A foreign process on an idle core adds to F but not to D, and costs almost nothing.
    - It is too high, up to F, if foreign work and run delay fall into different parts of a second. A burst that takes a
      core from a batch counts fully, because F and D grow in the same second.
    - It is an upper bound if the measured processes mostly have more threads than cores, as JVMs on a small machine do:
      D then exceeds B, and all foreign work counts as lost.
    - It is half of the true loss for a single measured thread next to one foreign process.
    - It excludes contention without a run queue (caches, memory, hyperthreads).

    Steal is added as counted by the machine, because it affects the running thread and all waiting ones.
    """
    instants = np.arange(start_ns, end_ns + 1, NS, dtype=np.int64)
    busy, stolen = (_interpolated_counter(machine, name, instants) for name in ("busy_s", "stolen_s"))
    if busy is None or len(instants) < 2 or "waited_s" not in processes:
        return None
    measured = processes[processes["role"].isin(ROLES)].dropna(subset=["waited_s"])
    if measured.empty:
        return None
    used = cpu_seconds(processes, instants, tuple(processes["role"].unique()))
    own = sum((values for role, values in used.items() if role != SERVICES), np.zeros(len(instants)))
    low_priority = _cumulative(
        _with_low_priority_cpu(processes[processes["role"] == SERVICES]), (SERVICES,), "cpu_s", instants
    )
    run_delay = sum(_cumulative(measured, ROLES, "waited_s", instants).values(), np.zeros(len(instants)))
    worked = np.maximum(np.diff(busy), 0.0)
    foreign = np.clip(np.diff(busy - own - low_priority[SERVICES]), 0.0, worked)
    foreign_share = np.divide(foreign, worked, out=np.zeros_like(worked), where=worked > 0)
    to_others = np.minimum(foreign, np.diff(run_delay) * foreign_share)
    to_host = np.zeros_like(worked) if stolen is None else np.maximum(np.diff(stolen), 0.0)
    lost_s = np.concatenate([[0.0], np.cumsum(to_others + to_host)])
    span = min(WORST_S, len(worked))
    return LostCpu(
        float(to_others.mean()),
        None if stolen is None else float(to_host.mean()),
        float((lost_s[span:] - lost_s[:-span]).max()) / span,
    )


def _with_low_priority_cpu(processes: pd.DataFrame) -> pd.DataFrame:
    """Return the samples of services with their CPU counters replaced by the CPU used at low priority.

    A process whose first sample is at low priority has low priority from its start.
    """
    changed = []
    for _, samples in _by_process(processes, (SERVICES,)):
        counters = np.maximum.accumulate(samples["cpu_s"].to_numpy(dtype=np.float64))
        lowered = samples["lowered"].to_numpy(dtype=np.bool_)
        is_low_throughout = lowered & np.concatenate([lowered[:1], lowered[:-1]])
        changed.append(samples.assign(cpu_s=np.cumsum(np.diff(counters, prepend=0.0) * is_low_throughout)))
    return pd.concat(changed) if changed else processes


def counter_growth(machine: pd.DataFrame, name: str, window: Ints) -> float | None:
    """Return the growth of a machine's counter, or None if it was not sampled at both ends."""
    values = _interpolated_counter(machine, name, window)
    return None if values is None else float(values[-1] - values[0])


def _interpolated_counter(machine: pd.DataFrame, name: str, instants: Ints) -> Floats | None:
    """Return a counter of the machine, interpolated at ascending instants; None unless samples enclose them."""
    samples = machine.dropna(subset=[name]).sort_values("wall_ns")
    times = samples["wall_ns"].to_numpy(dtype=np.int64)
    if not len(times) or times[0] > instants[0] or times[-1] < instants[-1]:
        return None
    values: Floats = np.interp(
        (instants - times[0]).astype(np.float64), (times - times[0]).astype(np.float64), samples[name]
    )
    return values


def cpu_seconds(processes: pd.DataFrame, instants: Ints, roles: Sequence[str] = ROLES) -> dict[str, Floats]:
    """Return the cumulative CPU seconds of each role at the given instants (ns, ascending)."""
    return _cumulative(processes, roles, "cpu_s", instants)


def _cumulative(processes: pd.DataFrame, roles: Sequence[str], counter: str, instants: Ints) -> dict[str, Floats]:
    """Return a counter at the given instants, summed over the processes of each role."""
    total = {role: np.zeros(len(instants)) for role in roles}
    for role, samples in _by_process(processes, roles):
        times = samples["wall_ns"].to_numpy(dtype=np.int64)
        counters = np.maximum.accumulate(samples[counter].to_numpy(dtype=np.float64))
        created_ns = min(round(float(samples["create_time"].iloc[0]) * NS), int(times[0]) - 1)
        # Relative to the creation, because float64 does not resolve ns since the epoch.
        total[role] += np.interp(
            (instants - created_ns).astype(np.float64),
            np.concatenate([[0.0], (times - created_ns).astype(np.float64)]),
            np.concatenate([[0.0], counters]),
        )
    return total


def rss_mb(processes: pd.DataFrame, start_ns: int, end_ns: int) -> dict[str, float | None]:
    """Return the peak in [start, end] of each role's resident memory in MB, summed over its processes each second."""
    seconds = np.arange(start_ns, end_ns + 1, NS, dtype=np.int64)
    total = {role: np.zeros(len(seconds)) for role in ROLES}
    for role, samples in _by_process(processes, ROLES):
        times = samples["wall_ns"].to_numpy(dtype=np.int64)
        index = np.searchsorted(times, seconds, side="right") - 1
        alive = (index >= 0) & (seconds - times[index] <= ALIVE_NS) & ~samples["final"].to_numpy(dtype=np.bool_)[index]
        total[role] += np.where(alive, samples["rss_bytes"].to_numpy(dtype=np.float64)[index], 0.0)
    return {role: float(total[role].max()) / MEGABYTE if len(processes) else None for role in ROLES}


def cores_by_second(processes: pd.DataFrame, t0_ns: int, until_ns: int) -> list[dict[str, float]]:
    """Return the cores used by each role in each second after T0, for plots; `t_s` is the end of the second."""
    instants = np.arange(t0_ns, until_ns + 1, NS, dtype=np.int64)
    used = {role: np.diff(values) for role, values in cpu_seconds(processes, instants).items()}
    return [
        {"t_s": float(second + 1), **{role: round(float(used[role][second]), 4) for role in ROLES}}
        for second in range(len(instants) - 1)
    ]


def _by_process(processes: pd.DataFrame, roles: Sequence[str]) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the role and the samples of each process, in chronological order."""
    with_role = processes[processes["role"].isin(roles)].sort_values("wall_ns", kind="stable")
    for (role, *_), samples in with_role.groupby(["role", "host", "pid", "create_time"]):
        yield str(role), samples


def highest_background_load(
    machine: pd.DataFrame, processes: pd.DataFrame, hosts: Sequence[OtherHost], start_ns: int, end_ns: int
) -> BackgroundLoad | None:
    """Return the highest background load of the machines that do not report lost CPU, or None without such a machine.

    `machine`: samples of this machine. `processes`: samples of all hosts.
    """
    known = [
        found
        for samples, own in _samples_by_machine(machine, processes, hosts)
        if lost_cpu(samples, own, start_ns, end_ns) is None
        and (found := background_load(samples, own, start_ns, end_ns)) is not None
    ]
    return None if not known else BackgroundLoad(max(one.mean for one in known), max(one.worst for one in known))


def highest_lost_cpu(
    machine: pd.DataFrame, processes: pd.DataFrame, hosts: Sequence[OtherHost], start_ns: int, end_ns: int
) -> LostCpu | None:
    """Return the CPU lost on the machine with the largest loss, or None if no machine reports it."""
    found = [
        lost_cpu(samples, own, start_ns, end_ns) for samples, own in _samples_by_machine(machine, processes, hosts)
    ]
    return max((one for one in found if one is not None), key=lambda one: one.mean, default=None)


def _samples_by_machine(
    machine: pd.DataFrame, processes: pd.DataFrame, hosts: Sequence[OtherHost]
) -> list[tuple[pd.DataFrame, pd.DataFrame]]:
    """Return the machine samples and process samples of each machine."""
    others = [(one.machine, one.processes) for one in hosts if not one.same_machine]
    return [(machine, of_this_machine(processes, hosts)), *others]


def of_this_machine(processes: pd.DataFrame, hosts: Sequence[OtherHost]) -> pd.DataFrame:
    """Return the samples of the processes that share this machine's cores."""
    return processes[processes["host"].isin(["", *(one.name for one in hosts if one.same_machine)])]


def cores_by_host(processes: pd.DataFrame, here: str, start_ns: int, end_ns: int) -> dict[str, float]:
    """Return the cores that engine and broker used on average in [start, end], by host. `here`: name of this host."""
    roles = [role for role in ROLES if role != "generator"]
    found = processes[processes["role"].isin(roles)]
    used = {}
    for host in found["host"].unique():
        by_role = cores(found[found["host"] == host], start_ns, end_ns)
        used[str(host) or here] = round(sum(by_role[role] or 0.0 for role in roles), 6)
    return used


def cores_of_host(host: OtherHost, start_ns: int, end_ns: int) -> tuple[float, float | None]:
    """Return the mean cores of another host in [start, end]: summed over its processes, and from a kernel counter.

    The counter, without the recorder's CPU, is that of the host's cgroup if it shares this machine, else that of its
    machine. It is None if it was not sampled.
    """
    window = np.array([start_ns, end_ns], dtype=np.int64)
    used = cpu_seconds(host.processes, window, tuple(host.processes["role"].unique()))
    seconds = (end_ns - start_ns) / NS
    # On another machine, the cgroup of the host's agent covers only its login session.
    counted = (
        counter_growth(host.group, "cpu_s", window)
        if host.same_machine
        else counter_growth(host.machine, "busy_s", window)
    )
    used_cores = sum(float(one[1] - one[0]) for one in used.values()) / seconds
    # Older journals lack it.
    recorder_s = counter_growth(host.group, "recording_s", window) or 0.0
    return used_cores, None if counted is None else (counted - recorder_s) / seconds


def cores_on_one_host(used: Mapping[str, float | None], here: str) -> dict[str, float]:
    """Return the cores used by the engine and its broker if there is only one host, by the host's name `here`."""
    parts = [value for role, value in used.items() if role != "generator" and value is not None]
    return {here: round(sum(parts), 6)} if parts else {}
