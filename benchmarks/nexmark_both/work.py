"""Fixed work of one run: when it began and ended, and what the engine used for it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil

from benchmarks.nexmark_both.usage import UsageSampler
from faultline.system.process_tags import ENGINE, WORKERS

# Cores and slots of an engine's only worker process; its heap, and as much again for RocksDB.
CORES, WORKER_MB = 2, 2048
# Bound of a batch or mini-batch, and interval of durable checkpoints.
LATENCY_S, CHECKPOINT_S = 2.0, 30.0
WATERMARK_S = 4.0
# A slower run ends after this time; its costs are those of the events until then.
MOST_S = 300.0
# Share of the events after which code counts as compiled.
WARM_SHARE = 0.2
KAFKA, HARNESS = "kafka", "harness"


@dataclass(frozen=True)
class Measured:
    """Figures of one run over `events` events; CPU in seconds, `warm_*` without the first fifth of them.

    `engine_s` is the whole engine, `workers_s` its worker alone, `others_s` all processes but engine, broker and
    harness. `results`: rows or changes that the sink received. `commits`: seconds of each checkpoint or batch, and the
    bytes of each checkpoint.
    """

    events: int
    seconds: float
    warm_seconds: float
    engine_s: float
    warm_engine_s: float
    workers_s: float
    broker_s: float
    harness_s: float
    others_s: float
    peak_mb: float
    results: int
    commits: Sequence[Mapping[str, float]]
    plan: str


class FixedWork:
    """Follows one run. `processes`: the engine's, by role; their children are added."""

    def __init__(self, processes: Mapping[str, Sequence[psutil.Process]], broker: psutil.Process) -> None:
        own = psutil.Process()

        def find() -> dict[str, Iterable[psutil.Process]]:
            found: dict[str, Iterable[psutil.Process]] = {KAFKA: [broker], HARNESS: [own]}
            for role, roots in processes.items():
                found[role] = [one for root in roots for one in (root, *_children(root))]
            return found

        self.sampler = UsageSampler(find, (KAFKA, HARNESS))
        self._places: list[tuple[float, int]] = []
        self._end = 0.0

    def begin(self, position: int, at: float | None = None) -> None:
        """Note the position from which the engine reads, at an instant (default: now)."""
        self._places = [(time.time() if at is None else at, position)]

    def reached(self, position: int, at: float | None = None) -> None:
        """Note a position that the engine has read, at an instant (default: now); earlier ones are ignored."""
        if position >= self._places[0][1]:
            self._places.append((time.time() if at is None else at, position))

    def end(self) -> None:
        """Note that everything is processed, now."""
        self._end = time.time()

    def measured(self, results: int, commits: Sequence[Mapping[str, float]], plan: str) -> Measured:
        """Return the figures from the first to the last position; CPU until `end`."""
        times, positions = zip(*self._places, strict=True)
        begin, last = times[0], times[-1]
        events = positions[-1] - positions[0]
        warm = float(np.interp(positions[0] + WARM_SHARE * events, positions, times))
        usage = self.sampler.usage

        def cpu(*roles: str, since: float = begin) -> float:
            return usage.cpu_s(roles, since, self._end)

        engine, broker, harness = cpu(*ENGINE), cpu(KAFKA), cpu(HARNESS)
        return Measured(
            events=events,
            seconds=last - begin,
            warm_seconds=last - warm,
            engine_s=engine,
            warm_engine_s=cpu(*ENGINE, since=warm),
            workers_s=cpu(*WORKERS),
            broker_s=broker,
            harness_s=harness,
            others_s=cpu("machine") - engine - broker - harness,
            peak_mb=usage.peak_mb(begin, self._end),
            results=results,
            commits=commits,
            plan=plan,
        )


def _children(process: psutil.Process) -> list[Any]:
    try:
        return list(process.children(recursive=True))
    except psutil.Error:
        return []
