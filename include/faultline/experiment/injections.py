"""Several injections of one fault in one run: required window and time bounds.

Only a fault in short form, given by the fields `fault`, `fault_action` and `fault_at_s`, can be injected several times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fault.plan import PlannedFault
from faultline.experiment.common_parameters import SECONDS_AFTER_FAULT, Common, baseline_commits


def shortest_duration_s(common: Common) -> float:
    """Return the shortest measured window, in seconds, that holds a baseline and a recovery for each injection."""
    return common.injections * (common.baseline_s + SECONDS_AFTER_FAULT)


def expected_duration_s(common: Common) -> float:
    """Return the approximate length of the measured window in seconds; `duration_s` is its upper bound.

    After each baseline, replacement, catch-up and stability window take about 15 s and three intervals (observed on two
    cores at intervals of 2 and 5 s: 41 and 59 s per injection).
    """
    checkpoint_interval_s = common.checkpoint_interval_s
    each_s = baseline_commits(checkpoint_interval_s) * checkpoint_interval_s + 3 * checkpoint_interval_s + 15.0
    return common.duration_s if common.injections == 1 else min(common.duration_s, common.injections * each_s)


def check_injections(common: Common, is_observable: bool) -> None:
    """Raise ValueError for more injections than the window holds, and for several if only one is possible.

    `is_observable`: whether the commits of the workload show that it is steady again.
    """
    if common.injections == 1:
        return
    if common.fault_plan is not None:
        raise ValueError(
            f"injections: got {common.injections} with fault_plan; expected 1; fix: list the faults in the plan, or "
            "use the short form"
        )
    if not is_observable:
        raise ValueError(
            f"injections: got {common.injections} for {common.workload}; expected 1, since its commits do not show "
            "when it is back to normal"
        )
    needed_s = shortest_duration_s(common)
    if common.duration_s < needed_s:
        raise ValueError(
            f"injections: got {common.injections} in {common.duration_s:g} s; expected a baseline of "
            f"{common.baseline_s:g} s and {SECONDS_AFTER_FAULT:g} s of recovery for each; fix: set duration_s to "
            f"{needed_s:g} or more, or inject less often"
        )


def repeat_fault(planned: Sequence[PlannedFault], common: Common) -> tuple[PlannedFault, ...]:
    """Return one fault per injection, with time bounds; the fault scheduler decides the time during the run."""
    if common.injections == 1 or not planned:
        return tuple(planned)
    (first,), (_, high) = planned, common.fault_window
    apart_s, lasts_s = common.baseline_s + SECONDS_AFTER_FAULT, first.end_s - first.latest_s
    later = []
    for n in range(1, common.injections):
        earliest_s = first.earliest_s + n * apart_s
        latest_s = min(high, max(earliest_s, high - lasts_s))  # 30 s remain after a fault that lasts
        later.append(replace(first, index=n, earliest_s=earliest_s, latest_s=latest_s, end_s=latest_s + lasts_s))
    return (first, *later)
