"""Synthetic sweep with known figures: intervals x states x repetitions under a kill."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from faultline.records.record import ByRole, Record, RecoveryPart
from tests.unit.pages_store import record
from tests.unit.sample_records import RECOVERED

LIMITS = {"recovered_within": 0.25, "latency_limit_ms": 4_000.0, "lag_limit": 2_500.0, "hold_s": 10.0}


def swept(
    intervals: Sequence[float] = (2.0, 5.0, 10.0),
    states: Sequence[float] = (1.0, 8.0),
    repetitions: int = 5,
    *,
    scatter: float = 0.05,
    censored: int = 0,
    controls: bool = True,
    seed: int = 1,
    sweep: str = "s1",
) -> list[Record]:
    """Return the records of the sweep.

    At interval i: CPU 1.2 / i + 0.3 cores, latency p50 400·i and p99 900·i ms, recovery 8 + i s with resolution i s.
    All rise with the state by 2 % per MB and vary by `scatter`. The first `censored` repetitions of the longest
    interval are censored. Controls, one at each interval and repetition, have a placebo test without a finding.
    """
    rng = np.random.default_rng(seed)
    found = []
    for state in states:
        for interval in intervals:
            for repetition in range(repetitions):
                a, b, c = np.exp(rng.normal(0, scatter, 3)) * (1 + 0.02 * state)
                macro = (8 + interval) * float(np.exp(rng.normal(0, scatter)))
                open_ended = interval == max(intervals) and repetition < censored
                recovery = RECOVERED | LIMITS | {"macro_s": macro, "resolution_s": min(interval, macro)}
                if open_ended:
                    recovery |= {"recovered": False, "macro_s": None, "resolution_s": None, "censored_at_s": macro}
                one = record(
                    f"{sweep}-{state:g}-{interval:g}-{repetition}",
                    sweep=sweep,
                    state_mb=state,
                    checkpoint_interval_s=interval,
                    duration_s=300.0,
                    repetition=repetition,
                    latency={"p50": 400 * interval * float(b), "p99": 900 * interval * float(c)},
                    recovery=recovery,
                )
                found.append(with_cpu(one, (1.2 / interval + 0.3) * float(a)))
    for interval in intervals if controls else ():
        for repetition in range(repetitions):
            one = record(
                f"{sweep}-control-{interval:g}-{repetition}",
                sweep=sweep,
                fault="none",
                checkpoint_interval_s=interval,
                duration_s=300.0,
                repetition=repetition,
                latency={"p50": 400 * interval, "p99": 900 * interval},
            )
            found.append(with_placebo(one, macro_s=interval))
    return found


def with_cpu(one: Record, cores: float) -> Record:
    """Return the record with `cores` used in total."""
    used = ByRole(driver=0.2 * cores, executors=0.8 * cores, python_workers=0.0, kafka=0.0, generator=0.0)
    return one.model_copy(update={"metrics": one.metrics.model_copy(update={"cpu_cores": used})})


def with_placebo(one: Record, macro_s: float | None, *, late_s: float = 0.0) -> Record:
    """Return a control with this placebo result.

    `macro_s`: recovery time, None if not recovered; `late_s`: time of the last late tuple.
    """
    update = {"recovered": macro_s is not None, "macro_s": macro_s, **LIMITS}
    update |= {"censored_at_s": 40.0} if macro_s is None else {"resolution_s": macro_s - late_s}
    placebo = RecoveryPart.empty().model_copy(update=update)
    return one.model_copy(update={"metrics": one.metrics.model_copy(update={"placebo": placebo})})
