"""Noise profiles of measured records, for tests of the statistics.

`shapes.json` in this folder was made from the default runs of docs/results by

    python -m benchmarks.noise_profiles RESULTS
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.monte_carlo import Floats, smoothed_draws
from faultline.records.catalogue import CPU_TOTAL, MACRO, value_of
from faultline.records.index_entry import IndexEntry
from faultline.records.store import Store

FILE = Path(__file__).with_name("shapes.json")
# Metrics by which nightly runs are judged, and a recovery time.
FIGURES = ("latency_ms.p50", "latency_ms.p99", "throughput_rps", CPU_TOTAL, MACRO)
# Minimum repetitions of a group, and minimum values of a profile.
LEAST_GROUP, LEAST_SHAPE = 3, 12


def shapes_of(entries: Sequence[IndexEntry]) -> dict[str, list[float]]:
    """Return, by "WORKLOAD FIGURE", the logarithm of each value divided by the geometric mean of its group.

    A group consists of the valid repetitions of one configuration in one series. Values are scaled by √(n / (n − 1)),
    because deviations from the mean of n values are too small by that factor.
    """
    groups: dict[tuple[str, str, str, str], list[float]] = defaultdict(list)
    for entry in entries:
        for figure in FIGURES:
            value = value_of(entry, figure)
            if entry.status == "valid" and value is not None and value > 0:
                groups[(entry.config["workload"], figure, entry.config_id, entry.series)].append(value)
    shapes: dict[str, list[float]] = defaultdict(list)
    for (workload, figure, *_), values in groups.items():
        if len(values) >= LEAST_GROUP:
            logs = [math.log(value) for value in values]
            mean, scale = statistics.fmean(logs), math.sqrt(len(logs) / (len(logs) - 1))
            shapes[f"{workload} {figure}"] += [round(scale * (one - mean), 6) for one in logs]
    return {name: sorted(values) for name, values in sorted(shapes.items()) if len(values) >= LEAST_SHAPE}


def load_shapes() -> dict[str, list[float]]:
    """Return the noise profiles of the repository."""
    shapes: dict[str, list[float]] = json.loads(FILE.read_text(encoding="utf-8"))
    return shapes


def draw(shape: Sequence[float], size: int, rng: np.random.Generator, *, level: float = 100.0) -> Floats:
    """Return `size` values around `level` with the noise of the profile."""
    return np.asarray(level * np.exp(smoothed_draws(shape, size, rng)[0]))


def variation(shape: Sequence[float]) -> float:
    """Return the profile's coefficient of variation, approximately: the standard deviation of the logarithms."""
    return statistics.stdev(shape)


def _main(results: Path) -> None:
    found: Mapping[str, list[float]] = shapes_of(
        [IndexEntry.of(record) for record in Store(results).query(status="valid")]
    )
    FILE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for name, values in found.items():
        print(f"{name}: {len(values)} values, cv {variation(values):.1%}")


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
