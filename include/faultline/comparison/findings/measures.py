"""The figures that claims are about: how a record gives each, and how it is written in a sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from faultline.records.format import cores, count, milliseconds, seconds, share
from faultline.records.record import Record
from faultline.system.marks import ENGINE


@dataclass(frozen=True)
class Measure:
    """One figure: its name, how a record gives it (None: unknown), and how a value is written with its unit."""

    name: str
    read: Callable[[Record], float | None]
    text: Callable[[float], str]


def measure(name: str, path: str, text: Callable[[float], str]) -> Measure:
    """The figure at `path` of a record's metrics, such as `latency_ms.mean`; unknown where a part of it is."""
    return Measure(name, lambda record: _at(record, path), text)


def valid(records: Iterable[Record]) -> list[Record]:
    """Those that are measured and believed."""
    return [record for record in records if record.sound]


def faultless(records: Iterable[Record]) -> list[Record]:
    """The valid ones in which nothing was broken on purpose."""
    return [record for record in valid(records) if record.config.get("fault") == "none"]


def _at(record: Record, path: str) -> float | None:
    part, _, rest = path.rpartition(".")
    holder = attrgetter(part)(record.metrics) if part else record.metrics
    value = None if holder is None else getattr(holder, rest)
    return None if value is None else float(value)


def _cpu(record: Record, roles: Sequence[str]) -> float | None:
    """CPU of several roles together, in cores; unknown when one of them is."""
    used = [getattr(record.metrics.cpu_cores, role) for role in roles]
    return None if any(value is None for value in used) else float(sum(used))


def _machine_share(record: Record) -> float | None:
    """Share of the machine's cores that engine, broker and generator used together."""
    used, there = _cpu(record, (*ENGINE, "kafka", "generator")), record.environment.cores
    return used / there if used is not None and there else None


def _ms(value: float) -> str:
    return f"{milliseconds(value)} ms"


def _s(value: float) -> str:
    return f"{seconds(value, 2 if abs(value) < 1 else 1)} s"


# The fault-tolerance paper means the mean over all tuples (4.1), and the CPU of the nodes that compute.
LATENCY = measure("mean latency", "latency_ms.mean", _ms)
CPU = Measure("CPU of the engine", lambda record: _cpu(record, ENGINE), lambda value: f"{cores(value)} cores")
# The stock paper's latency is the time in which nothing is computed (2.3), its throughput is counted per second.
NON_COMPUTE = measure("non-compute time", "non_compute_ms", _ms)
THROUGHPUT = measure("throughput", "throughput_rps", lambda value: f"{count(value)}/s")
GC = measure("GC", "gc_s", _s)
TASKS = measure("tasks", "work.tasks", count)
TASK_TIME = measure("run time of tasks", "work.task_s", _s)
MACHINE = Measure("CPU of the machine", _machine_share, share)
REPLAY = measure("replay", "recovery.replay_s", _s)
MACRO = measure("macro recovery", "recovery.macro_s", _s)
