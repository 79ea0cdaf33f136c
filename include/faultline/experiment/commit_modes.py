"""The ways in which state is committed, each with what it asks of a configuration. Which of them an engine has, its
capabilities say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# The shortest batch of real-time mode.
LEAST_REAL_TIME_S = 5.0


@dataclass(frozen=True)
class CommitMode:
    """`real_time`: records go through within a batch, which only some workloads can. `snapshots`: they come in a cycle
    of their own, at which a fault can be aimed."""

    name: str
    real_time: bool = False
    snapshots: bool = False

    def check(
        self, workload: str, able: Sequence[str], *, checkpoint_interval_s: float, cores: int, partitions: int
    ) -> None:
        """Raise ValueError naming the parameter that keeps a workload, or the cluster, from running in it. `able`: the
        workloads that run in real-time mode."""
        if not self.real_time:
            return
        if workload not in able:
            raise ValueError(
                f"commit_mode: {workload} cannot run in real-time mode ({self.name}); use {' or '.join(able)}"
            )
        if checkpoint_interval_s < LEAST_REAL_TIME_S:
            raise ValueError(
                f"checkpoint_interval_s: real-time mode ({self.name}) has batches of {LEAST_REAL_TIME_S:g} s at least; "
                "raise it"
            )
        if partitions > cores:
            raise ValueError(
                f"partitions: in real-time mode ({self.name}) each of {partitions} holds a core of {cores}; "
                "lower partitions or raise executor_cores"
            )

    def check_cycle(self, cycle: str | None) -> None:
        """Raise ValueError for a cycle that it has not, at which a fault is aimed."""
        if cycle == "snapshot" and not self.snapshots:
            having = " or ".join(one.name for one in COMMIT_MODES.values() if one.snapshots)
            raise ValueError(
                f"fault_plan: commit_mode {self.name} has no snapshot cycle of its own; use cycle checkpoint, or "
                f"commit_mode {having}"
            )


COMMIT_MODES = {
    one.name: one
    for one in (
        CommitMode("none"),
        CommitMode("unaligned", real_time=True),
        CommitMode("aligned"),
        CommitMode("aligned-changelog", snapshots=True),
    )
}
