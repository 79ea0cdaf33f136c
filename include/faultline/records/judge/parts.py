"""Recovery parts between the events of a timeline, their identities, censoring, and the impact of the fault.

t0 ──detection── t2 ──redeploy── t3 ──load── t4 ──replay── t5 ──catch-up── t6 ── t7
└────────────────── reload ──────────────────┘
└───────────────────────────────── macro ──────────────────────────────────────┘
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from faultline.records.judge.steady import MIN_LEVEL_VALUES, level_starts
from faultline.records.judge.timeline import CHAIN, Timeline
from faultline.records.record import RecoveryPart
from faultline.system.measured_window import CLOCK_RESOLUTION_NS, NS

PARTS = {
    "detection_s": ("t0", "t2"),
    "redeploy_s": ("t2", "t3"),
    "load_s": ("t3", "t4"),
    "reload_s": ("t0", "t4"),
    "replay_s": ("t4", "t5"),
    "catchup_s": ("t5", "t6"),
    "macro_s": ("t0", "t7"),
}
# An engine has stopped if it has no commit for 10 s and for three time bins.
STOPPED_S = 10.0
STOPPED_BINS = 3


def measure(timeline: Timeline) -> tuple[RecoveryPart, tuple[str, ...]]:
    """Return the recovery parts between the events of `timeline`, and the problems of the chain t0 … t7.

    If only the last events are missing, the recovery is censored: observation ended first. Otherwise it ended in
    (last_violation, t7]. A problem is `missing: …`, an event missing before an observed one, or `negative: …`, an event
    earlier than its predecessor.
    """
    chain, problems = _ordered_chain(timeline)
    seen = [name for name in CHAIN if name in chain]
    last = CHAIN.index(seen[-1])
    problems += [f"missing: {name}, though {seen[-1]} was seen" for name in CHAIN[:last] if name not in chain]
    lengths = {
        part: _seconds(chain[end] - chain[begin]) if begin in chain and end in chain else None
        for part, (begin, end) in PARTS.items()
    }
    recovered = "t7" in chain
    if not problems:
        _assert_identities(chain)
    replacement = timeline.get("replacement_up")
    t0_ns = chain["t0"]
    violation = timeline.get("last_violation")
    violation_ns = t0_ns if violation is None else max(t0_ns, violation.wall_ns)
    found = {
        **dict(RecoveryPart.empty()),
        **lengths,
        "recovered": recovered,
        "replacement_up_s": None if replacement is None else _seconds(replacement.wall_ns - t0_ns),
        "censored_at_s": None if recovered else _seconds(violation_ns - t0_ns),
        "resolution_s": _seconds(max(0, chain["t7"] - violation_ns)) if recovered else None,
    }
    return RecoveryPart.model_validate(found), tuple(problems)


def _ordered_chain(timeline: Timeline) -> tuple[dict[str, int], list[str]]:
    """Return the instants of the chain in ns, and a problem for each event that is earlier than its predecessor.

    Differences below the resolution of the clocks are set to 0 instead.
    """
    chain: dict[str, int] = {}
    problems: list[str] = []
    previous: str | None = None
    for name in CHAIN:
        if name not in timeline:
            continue
        instant = timeline[name].wall_ns
        if previous is not None and instant < chain[previous]:
            if chain[previous] - instant <= CLOCK_RESOLUTION_NS:
                instant = chain[previous]
            else:
                problems.append(f"negative: {name} lies {_seconds(chain[previous] - instant):.3f} s before {previous}")
        chain[name] = instant
        previous = name
    return chain, problems


def _assert_identities(chain: dict[str, int]) -> None:
    """Check reload = detection + redeploy + load and reload + replay + catch-up = t6 − t0 ≤ macro.

    They hold for every ordered chain, so a failure is a bug in this module.
    """
    instants = [chain[name] for name in CHAIN if name in chain]
    if instants != sorted(instants):
        raise AssertionError(f"the timeline is not ordered: {chain}")
    steps = [later - earlier for earlier, later in zip(instants, instants[1:], strict=False)]
    if sum(steps) != instants[-1] - instants[0]:
        raise AssertionError(f"the parts do not add up: {chain}")


def _seconds(nanoseconds: int) -> float:
    return nanoseconds / NS


def dip_depth(bins: pd.DataFrame, median_rps: float, resolution_s: float, t0_ns: int, until_ns: int) -> float | None:
    """Return 1 − lowest throughput of the bins that end in (t0, until] ÷ the baseline's median, within [0, 1].

    A stopped engine has no commits, so no bins. Time without a commit before `until` therefore counts as a bin without
    records if it lasts 10 s and three bins. None if the baseline has no throughput, or without any bin.
    """
    if not median_rps > 0:
        return None
    ends = bins["end_ns"].to_numpy(dtype=np.int64)
    inside = (ends > t0_ns) & (ends <= until_ns)
    rates = bins["throughput_rps"].to_numpy(dtype=np.float64)[inside].tolist()
    earlier_ends = ends[ends <= until_ns]
    silent_s = (until_ns - (int(earlier_ends.max()) if len(earlier_ends) else t0_ns)) / NS
    if silent_s >= max(STOPPED_S, STOPPED_BINS * resolution_s):
        rates.append(0.0)
    return min(1.0, max(0.0, 1 - min(rates) / median_rps)) if rates else None


def last_level_start_ns(bins: pd.DataFrame, t0_ns: int, until_ns: int) -> int | None:
    """Return the start of the last latency level: the end of its first bin in (t0, until].

    Levels are found in the logarithm of each bin's p99, because outages exceed the usual latency many times. Returns t0
    if the latency has one level; None with too few bins.
    """
    watched = bins[(bins["end_ns"] > t0_ns) & (bins["end_ns"] <= until_ns) & (bins["latency_ms"] > 0)]
    if len(watched) < 2 * MIN_LEVEL_VALUES:
        return None
    starts = level_starts(np.log(watched["latency_ms"].to_numpy(dtype=np.float64)))
    return int(watched["end_ns"].iloc[starts[-1]]) if starts else t0_ns


def phase_at(commits: pd.DataFrame, t0_ns: int, checkpoint_interval_s: float) -> float | None:
    """Return the elapsed share of the checkpoint interval at t0, at most 1; None before the first commit.

    `commits`: column end_ns.
    """
    earlier_ends = commits.loc[commits["end_ns"] <= t0_ns, "end_ns"]
    return min(1.0, (t0_ns - int(earlier_ends.max())) / NS / checkpoint_interval_s) if len(earlier_ends) else None


def lag_area_of_bins(bins: pd.DataFrame, start_ns: int, end_ns: int) -> float | None:
    """Return the area under the lag in record·seconds, for engines that emit per record; None without bins.

    The lag is interpolated linearly between the ends of bins.
    """
    if bins.empty:
        return None
    times = (bins["end_ns"].to_numpy(dtype=np.int64) - start_ns) / NS
    lag = bins["lag"].to_numpy(dtype=np.float64)
    last = (end_ns - start_ns) / NS
    inner = times[(times > 0) & (times < last)]
    grid = np.concatenate([[0.0], inner, [last]])
    return float(np.trapezoid(np.interp(grid, times, lag), grid))


def largest_schedule_lag_ms(latest: Sequence[tuple[int, float]], begin_ns: int, end_ns: int) -> float | None:
    """Return the generator's largest schedule lag in [begin, end], in ms; None if it reported none.

    `latest`: for each second, its end in ns and its largest schedule lag in ms.
    """
    return max((ms for at_ns, ms in latest if begin_ns < at_ns <= end_ns + NS), default=None)
