"""Recovery: the parts between the events of a timeline, their identities, censoring, and how hard the fault hit.

t0 ──detection── t2 ──redeploy── t3 ──load── t4 ──replay── t5 ──catch-up── t6 ── t7
└────────────────── reload ──────────────────┘
└───────────────────────────────── macro ──────────────────────────────────────┘
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from faultline.records.judge.steady import LEAST, level_begins
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
# An engine without a commit for this time and number of bins has stopped.
HELD_S = 10.0
HELD_BINS = 3


def measure(timeline: Timeline) -> tuple[RecoveryPart, tuple[str, ...]]:
    """Return the recovery between the events of `timeline`, and what is wrong with the chain.

    A tail of missing events is censoring: the observation ended first. The recovery ended in (last_violation, t7]. A
    problem is `missing: …` (a gap before an observed event) or `negative: …`.
    """
    chain, problems = _settle(timeline)
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
    out = timeline.get("last_violation")
    out_ns = t0_ns if out is None else max(t0_ns, out.wall_ns)
    found = {
        **dict(RecoveryPart.empty()),
        **lengths,
        "recovered": recovered,
        "replacement_up_s": None if replacement is None else _seconds(replacement.wall_ns - t0_ns),
        "censored_at_s": None if recovered else _seconds(out_ns - t0_ns),
        "resolution_s": _seconds(max(0, chain["t7"] - out_ns)) if recovered else None,
    }
    return RecoveryPart.model_validate(found), tuple(problems)


def _settle(timeline: Timeline) -> tuple[dict[str, int], list[str]]:
    """Return instants of the chain with differences below the clock's resolution removed, and the negatives."""
    chain: dict[str, int] = {}
    problems: list[str] = []
    before: str | None = None
    for name in CHAIN:
        if name not in timeline:
            continue
        instant = timeline[name].wall_ns
        if before is not None and instant < chain[before]:
            if chain[before] - instant <= CLOCK_RESOLUTION_NS:
                instant = chain[before]
            else:
                problems.append(f"negative: {name} lies {_seconds(chain[before] - instant):.3f} s before {before}")
        chain[name] = instant
        before = name
    return chain, problems


def _assert_identities(chain: dict[str, int]) -> None:
    """Check reload = detection + redeploy + load and reload + replay + catch-up = t6 − t0 ≤ macro.

    True by construction when the chain is ordered and whole; a failure is a bug of this module.
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

    A bin ends with a commit, so an engine that stays silent makes none: time without a commit up to `until`
    counts as a bin without records once it is as long as `held` (10 s and three bins). None when the
    baseline has no throughput, or if it is not known yet.
    """
    if not median_rps > 0:
        return None
    ends = bins["end_ns"].to_numpy(dtype=np.int64)
    inside = (ends > t0_ns) & (ends <= until_ns)
    rates = bins["throughput_rps"].to_numpy(dtype=np.float64)[inside].tolist()
    earlier = ends[ends <= until_ns]
    silent_s = (until_ns - (int(earlier.max()) if len(earlier) else t0_ns)) / NS
    if silent_s >= max(HELD_S, HELD_BINS * resolution_s):
        rates.append(0.0)
    return min(1.0, max(0.0, 1 - min(rates) / median_rps)) if rates else None


def settled_ns(bins: pd.DataFrame, t0_ns: int, until_ns: int) -> int | None:
    """Return the start of the last latency level: the end of the first of its bins in (t0, until].

    Based on the logarithm of the p99 of each bin, because an outage is many times the usual value. t0 itself if the
    latency stayed on one level; None with too few bins.
    """
    watched = bins[(bins["end_ns"] > t0_ns) & (bins["end_ns"] <= until_ns) & (bins["latency_ms"] > 0)]
    if len(watched) < 2 * LEAST:
        return None
    begins = level_begins(np.log(watched["latency_ms"].to_numpy(dtype=np.float64)))
    return int(watched["end_ns"].iloc[begins[-1]]) if begins else t0_ns


def phase_at(bins: pd.DataFrame, t0_ns: int, checkpoint_interval_s: float) -> float | None:
    """Return the share of a checkpoint cycle that was over at t0, at most 1; None before the first commit."""
    before = bins.loc[bins["end_ns"] <= t0_ns, "end_ns"]
    return min(1.0, (t0_ns - int(before.max())) / NS / checkpoint_interval_s) if len(before) else None


def lag_area_of_bins(bins: pd.DataFrame, start_ns: int, end_ns: int) -> float | None:
    """Return the area under the lag in record·seconds, for engines without commits: linear between the ends of bins.

    None without bins.
    """
    if bins.empty:
        return None
    times = (bins["end_ns"].to_numpy(dtype=np.int64) - start_ns) / NS
    lag = bins["lag"].to_numpy(dtype=np.float64)
    last = (end_ns - start_ns) / NS
    inner = times[(times > 0) & (times < last)]
    grid = np.concatenate([[0.0], inner, [last]])
    return float(np.trapezoid(np.interp(grid, times, lag), grid))


def largest_lateness_ms(latest: Sequence[tuple[int, float]], begin_ns: int, end_ns: int) -> float | None:
    """Return the generator's largest lateness in [begin, end]; None when it reported nothing of it.

    `latest`: of each second its end, and the largest in it.
    """
    return max((ms for at_ns, ms in latest if begin_ns < at_ns <= end_ns + NS), default=None)
