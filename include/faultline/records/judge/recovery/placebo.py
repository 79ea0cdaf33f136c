"""A recovery from a fault that never was: the rule of the end held against a control, at the t0 of a fault.

Whoever reads recoveries sees by it how often the rule itself calls a healthy engine unrecovered, and how long it takes.
"""

from __future__ import annotations

from faultline.records.judge.observations import Measured
from faultline.records.judge.recovery.end import end_of
from faultline.records.judge.recovery.on_time import cells_of
from faultline.records.judge.recovery.parts import Recovery
from faultline.records.judge.recovery.recoveries import choices, limits_between
from faultline.system.window import NS


def placebo_of(measured: Measured) -> Recovery | None:
    """None for a run with a fault, and for one that was too short for a fault or did not reach its end."""
    config, window = measured.raw.attempt.config, measured.window
    at_s = config.earliest_fault_s
    if measured.injected or not config.paced or any(measured.deaths.values()) or at_s > config.fault_window[1]:
        return None
    # So long after the warm-up, however long that took.
    t0_ns = window.start_ns + round(at_s * NS) - round(config.warmup_s * NS)
    limits = limits_between(measured, window.start_ns, t0_ns)
    if limits is None:
        return None
    end = end_of(
        cells_of(measured.tuples.production, limits.latency_ms),
        measured.bins,
        limits,
        t0_ns=t0_ns,
        t5_ns=_caught_up_ns(measured, t0_ns),
        produced_until_ns=window.end_ns,
        watched_until_ns=window.watched_until_ns,
    )
    recovered = end.t7_ns is not None
    return Recovery(
        recovered=recovered,
        macro_s=None if end.t7_ns is None else (end.t7_ns - t0_ns) / NS,
        censored_at_s=None if recovered else (end.out_ns - t0_ns) / NS,
        resolution_s=None if end.t7_ns is None else (end.t7_ns - end.out_ns) / NS,
        **choices(measured, limits, window.end_ns),
    )


def _caught_up_ns(measured: Measured, t0_ns: int) -> int | None:
    """The first commit from then on that covers what was due then."""
    due = measured.schedule.due(t0_ns)
    for end_ns, lag in zip(measured.bins["end_ns"].tolist(), measured.bins["lag"].tolist(), strict=True):
        if end_ns >= t0_ns and measured.schedule.due(end_ns) - lag >= due:
            return int(end_ns)
    return None
