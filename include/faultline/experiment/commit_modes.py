"""Commit modes, the ways in which a query commits its state, and their requirements.

Each mode names the engines that support it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

# Engine of a configuration that names none.
DEFAULT_ENGINE: Final = "spark"
# The shortest batch of real-time mode.
LEAST_REAL_TIME_S = 5.0


@dataclass(frozen=True)
class CommitMode:
    """One commit mode.

    `real_time`: outputs appear while a batch runs; only some workloads support it. `snapshots`: snapshots have their
    own cycle, which can set the time of a fault. `nearest`: the most similar mode of an engine that lacks this one.
    """

    name: str
    engines: tuple[str, ...]
    real_time: bool = False
    snapshots: bool = False
    nearest: str | None = None

    def check(
        self, workload: str, supporting: Sequence[str], *, checkpoint_interval_s: float, cores: int, partitions: int
    ) -> None:
        """Raise ValueError naming a parameter that excludes this mode. `supporting`: workloads with real-time mode."""
        if not self.real_time:
            return
        if workload not in supporting:
            raise ValueError(
                f"commit_mode: got {self.name} (real-time mode) with {workload}; expected workload "
                f"{' or '.join(supporting)}"
            )
        if checkpoint_interval_s < LEAST_REAL_TIME_S:
            raise ValueError(
                f"checkpoint_interval_s: got {checkpoint_interval_s:g}; expected at least {LEAST_REAL_TIME_S:g} s in "
                f"real-time mode ({self.name})"
            )
        if partitions > cores:
            raise ValueError(
                f"partitions: got {partitions}; expected at most {cores} (a core each) in "
                f"real-time mode ({self.name}); fix: lower partitions or raise executor_cores"
            )

    def check_cycle(self, cycle: str | None) -> None:
        """Raise ValueError if a fault needs a cycle that this mode lacks."""
        if cycle == "snapshot" and not self.snapshots:
            supporting = " or ".join(mode.name for mode in COMMIT_MODES.values() if mode.snapshots)
            raise ValueError(
                f"fault_plan: got cycle snapshot with commit_mode {self.name}; expected cycle checkpoint, or "
                f"commit_mode {supporting}"
            )


COMMIT_MODES = {
    one.name: one
    for one in (
        CommitMode("none", ("spark", "flink"), nearest="at-least-once"),
        CommitMode("unaligned", ("spark",), real_time=True, nearest="unaligned-barriers"),
        CommitMode("aligned", ("spark", "flink")),
        CommitMode("aligned-changelog", ("spark",), snapshots=True, nearest="aligned"),
        CommitMode("at-least-once", ("flink",), nearest="unaligned"),
        CommitMode("unaligned-barriers", ("flink",), nearest="aligned"),
    )
}


def modes_of(engine: str) -> frozenset[str]:
    """Return the names of the modes that an engine supports."""
    return frozenset(name for name, mode in COMMIT_MODES.items() if engine in mode.engines)
