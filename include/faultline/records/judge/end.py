"""End of a recovery (definition 2): lag is normal again (t6) and tuples are on time again (t7), for 95 % of the next H.

The recovery thresholds L* (latency) and lag* lie `recovered_within` above the baseline; the record holds both. H is the
stability window. A tuple is on time if its latency is at most L*, and late if it is emitted later or never. The
recovery ended between the last threshold violation and t7. If t7 was not observed, the recovery is censored at the last
violation.

A production cell holds the tuples produced in one second, or at one instant if tuples are sparse (see `tuples`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from faultline.records.judge.evidence import Evidence
from faultline.records.judge.signals import Signals
from faultline.records.judge.steady import MIN_HELD_SHARE, Limits, limits_from
from faultline.records.judge.tuples import MS, NEVER_REFLECTED, due_spacing_s, nearest_rank
from faultline.records.record import RecoveryPart
from faultline.system.measured_window import NS

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ProductionCells:
    """Production cells in chronological order, as arrays `(n,)`.

    `start_ns`: start of the cell. `due`, `on_time`: number of its tuples, and of those on time. `first_ns`: emission of
    its first tuple on time, 0 without one. `late_ns`: last instant at which a tuple was found to be late, 0 without
    one.
    """

    start_ns: Ints
    due: Ints
    on_time: Ints
    first_ns: Ints
    late_ns: Ints

    def __len__(self) -> int:
        return len(self.start_ns)


def production_cells(produced: pd.DataFrame, limit_ms: float | None) -> ProductionCells:
    """Return the production cells, with tuples up to `limit_ms` (L*) on time; no cells if it is None.

    `produced` has the columns PRODUCED_COLUMNS.
    """
    if limit_ms is None:
        none = np.zeros(0, dtype=np.int64)
        return ProductionCells(none, none, none, none, none)
    latency = produced["latency_ms"].to_numpy(dtype=np.int64)
    is_on_time = (latency != NEVER_REFLECTED) & (latency <= limit_ms)
    # A late tuple is found to be late at its output, and a tuple without output when L* has passed.
    known_ns = produced["last_ms"].to_numpy(dtype=np.int64) * MS
    known_ns = np.where(latency == NEVER_REFLECTED, known_ns + round(limit_ms * MS), known_ns)
    first_ns = produced["first_ms"].to_numpy(dtype=np.int64) * MS
    n = produced["n"].to_numpy(dtype=np.int64)
    rows = pd.DataFrame(
        {
            "cell_ns": produced["cell_ns"].to_numpy(dtype=np.int64),
            "due": n,
            "on_time": np.where(is_on_time, n, 0),
            "first_ns": np.where(is_on_time, first_ns, np.iinfo(np.int64).max),
            "late_ns": np.where(is_on_time, 0, known_ns),
        }
    )
    found = (
        rows.groupby("cell_ns", sort=True)
        .agg(due=("due", "sum"), on_time=("on_time", "sum"), first_ns=("first_ns", "min"), late_ns=("late_ns", "max"))
        .reset_index()
    )
    first = found["first_ns"].to_numpy(dtype=np.int64)
    return ProductionCells(
        found["cell_ns"].to_numpy(dtype=np.int64),
        found["due"].to_numpy(dtype=np.int64),
        found["on_time"].to_numpy(dtype=np.int64),
        np.where(first == np.iinfo(np.int64).max, 0, first),
        found["late_ns"].to_numpy(dtype=np.int64),
    )


def p99_ms(produced: pd.DataFrame, start_ns: int, until_ns: int, emitted_by_ns: int | None = None) -> float | None:
    """Return the p99 latency of the tuples produced in the cells of [start, until) and emitted by `emitted_by_ns`.

    None without such tuples. A tuple that no output reflects has no latency, so it is omitted here;
    `production_cells` counts it as late.
    """
    chosen = (produced["cell_ns"] >= start_ns) & (produced["cell_ns"] < until_ns)
    chosen &= produced["latency_ms"] != NEVER_REFLECTED
    if emitted_by_ns is not None:
        chosen &= produced["last_ms"] * MS <= emitted_by_ns
    inside = produced[chosen]
    return nearest_rank(
        inside["latency_ms"].to_numpy(dtype=np.int64), inside["n"].to_numpy(dtype=np.int64), permille=990
    )


def limits_of(
    production: pd.DataFrame,
    bins: pd.DataFrame,
    *,
    start_ns: int,
    until_ns: int,
    checkpoint_interval_s: float,
    within: float,
    by_lag: bool = False,
) -> Limits | None:
    """Return the recovery thresholds, which exceed the values of the baseline [start, until) by the share `within`.

    `start_ns`: end of the warm-up. `until_ns`: the fault. `production`: columns PRODUCED_COLUMNS. `by_lag`: outputs do
    not identify tuples, so lag alone decides. Returns None if nothing was committed, or if latency decides and no tuple
    was emitted.
    """
    baseline = bins[(bins["end_ns"] > start_ns) & (bins["end_ns"] <= until_ns)]
    baseline_p99_ms = None if by_lag else p99_ms(production, start_ns, until_ns, emitted_by_ns=until_ns)
    if baseline.empty or (baseline_p99_ms is None and not by_lag):
        return None
    spacing_s = due_spacing_s(production, start_ns, until_ns)
    return limits_from(
        baseline_p99_ms,
        float(baseline["lag"].max()),
        checkpoint_interval_s=checkpoint_interval_s,
        rate=float(baseline["records"].sum() / baseline["span_s"].sum()),
        spacing_s=spacing_s,
        within=within,
    )


@dataclass(frozen=True)
class RecoveryEnd:
    """End of a recovery.

    `t6_ns`, `t7_ns`: None if not observed. `last_violation_ns`: last threshold violation before the end, or the signal
    if there is none. `violation`: what was violated.
    """

    t6_ns: int | None
    t7_ns: int | None
    last_violation_ns: int
    violation: str


def end_of(
    cells: ProductionCells,
    bins: pd.DataFrame,
    limits: Limits,
    *,
    t0_ns: int,
    t5_ns: int | None,
    produced_until_ns: int,
    watched_until_ns: int,
    until_ns: int | None = None,
) -> RecoveryEnd:
    """Return the end of the recovery from a fault at `t0_ns`.

    `bins`: columns start_ns, end_ns and lag, sorted. `t5_ns`: None if the input before the fault was never processed.
    `produced_until_ns`: end of the usable production: the end of the load, or L* before the next fault.
    `watched_until_ns`: latest usable commit. `until_ns`: the next fault; nothing after it is used.
    """
    usable_bins = bins[bins["end_ns"] <= watched_until_ns]
    if t5_ns is None:
        last_commit_ns = _last_between(usable_bins["end_ns"], t0_ns, until_ns)
        violation_ns = max(t0_ns, last_commit_ns, _last_between(cells.late_ns, t0_ns, until_ns))
        return RecoveryEnd(None, None, violation_ns, "no commit covered what was there at the fault")
    t6_ns = lag_recovered_ns(usable_bins, limits, t5_ns, watched_until_ns)
    if limits.latency_ms is None:
        return _end_by_lag(usable_bins, limits, t0_ns=t0_ns, t5_ns=t5_ns, t6_ns=t6_ns, until_ns=until_ns)
    index = None
    if t6_ns is not None:
        # Tuples may be on time while lag is still high, and late again afterwards.
        index = first_stable_cell(cells, limits, _first_output_ns(usable_bins, t0_ns, t6_ns), produced_until_ns)
    t7_ns = None if t6_ns is None or index is None else max(int(cells.first_ns[index]), t6_ns)
    # Up to 5 % of the tuples after the end may be late, so later cells are no violations.
    is_before_end = cells.start_ns < (produced_until_ns if index is None else cells.start_ns[index])
    end_ns = until_ns if t7_ns is None else t7_ns
    late_ns = _last_between(cells.late_ns[is_before_end], t0_ns, end_ns)
    lag_violations = _lag_violations(usable_bins, limits, t0_ns, t5_ns, end_ns, t7_ns)
    violation_ns, violation = max((late_ns, "tuples later than L*"), *lag_violations)
    return RecoveryEnd(t6_ns, t7_ns, max(violation_ns, t0_ns), violation if violation_ns > t0_ns else "nothing")


def _end_by_lag(
    usable_bins: pd.DataFrame, limits: Limits, *, t0_ns: int, t5_ns: int, t6_ns: int | None, until_ns: int | None
) -> RecoveryEnd:
    """Return the end of the recovery by lag alone, for outputs that do not identify their input; t7 is then t6."""
    end_ns = until_ns if t6_ns is None else t6_ns
    violation_ns, violation = max(_lag_violations(usable_bins, limits, t0_ns, t5_ns, end_ns, t6_ns))
    return RecoveryEnd(t6_ns, t6_ns, max(violation_ns, t0_ns), violation if violation_ns > t0_ns else "nothing")


def _lag_violations(
    usable_bins: pd.DataFrame, limits: Limits, t0_ns: int, t5_ns: int, end_ns: int | None, t7_ns: int | None
) -> list[tuple[int, str]]:
    """Return the last commit before `end_ns` above lag*, and the last one before t5, each with its description."""
    high_lag_ns = _last_between(usable_bins.loc[usable_bins["lag"] > limits.lag, "end_ns"], t0_ns, end_ns)
    # Until t5, the input that preceded the fault is not processed.
    uncovered_ns = _last_between(usable_bins.loc[usable_bins["end_ns"] < t5_ns, "end_ns"], t0_ns, end_ns)
    if t7_ns is None:
        uncovered_ns = max(uncovered_ns, t5_ns)
    return [(high_lag_ns, "lag above lag*"), (uncovered_ns, "not caught up")]


def lag_recovered_ns(bins: pd.DataFrame, limits: Limits, t5_ns: int, until_ns: int) -> int | None:
    """Return t6: the first commit from t5 on with lag ≤ lag* at it and for 95 % of the next H; None if not observed.

    The lag at the end of a bin counts for its whole span. Time after the last commit counts as a violation.
    """
    ends = bins["end_ns"].to_numpy(dtype=np.int64)
    starts = bins["start_ns"].to_numpy(dtype=np.int64)
    is_within = bins["lag"].to_numpy(dtype=np.float64) <= limits.lag
    hold_ns = round(limits.hold_s * NS)
    for index in np.flatnonzero(is_within & (ends >= t5_ns)):
        begin, end = int(ends[index]), int(ends[index]) + hold_ns
        if end > until_ns:
            return None
        inside_ns = np.clip(ends, begin, end) - np.clip(starts, begin, end)
        if float(inside_ns[is_within].sum()) >= MIN_HELD_SHARE * hold_ns:
            return begin
    return None


def first_stable_cell(cells: ProductionCells, limits: Limits, emitted_from_ns: int, until_ns: int) -> int | None:
    """Return the index of the first production cell from which tuples stay on time, or None.

    95 % of the cell's tuples and of those of the next H are on time. The cell's first tuple on time was emitted at
    `emitted_from_ns` or later, and that H ends by `until_ns`.
    """
    hold_ns = round(limits.hold_s * NS)
    due = np.concatenate([[0], np.cumsum(cells.due)])
    on_time = np.concatenate([[0], np.cumsum(cells.on_time)])
    starts = np.arange(len(cells))
    ends = np.searchsorted(cells.start_ns, cells.start_ns + hold_ns)
    is_window_on_time = on_time[ends] - on_time[starts] >= MIN_HELD_SHARE * (due[ends] - due[starts])
    is_cell_on_time = cells.on_time >= MIN_HELD_SHARE * cells.due
    is_stable = is_window_on_time & is_cell_on_time
    found = np.flatnonzero(is_stable & (cells.first_ns >= emitted_from_ns) & (cells.start_ns + hold_ns <= until_ns))
    return int(found[0]) if len(found) else None


def _first_output_ns(bins: pd.DataFrame, t0_ns: int, t6_ns: int) -> int:
    """Return the earliest instant of an output of the t6 batch: just after the previous commit."""
    earlier = bins.loc[(bins["end_ns"] > t0_ns) & (bins["end_ns"] < t6_ns), "end_ns"]
    return int(earlier.max()) + 1 if len(earlier) else t0_ns


def _last_between(instants_ns: Iterable[int] | Ints | pd.Series, after_ns: int, end_ns: int | None) -> int:
    """Return the last of the instants in (after, end), 0 if there is none; `end_ns` None means unbounded."""
    values = np.asarray(instants_ns, dtype=np.int64)
    values = values[(values > after_ns) & (values < (np.iinfo(np.int64).max if end_ns is None else end_ns))]
    return int(values.max()) if len(values) else 0


# Recovery thresholds of an attempt, and its placebo recovery.


def limits_between(evidence: Evidence, signals: Signals, start_ns: int, until_ns: int) -> Limits | None:
    """Return the recovery thresholds from the baseline between `start_ns` and the fault at `until_ns`."""
    config = evidence.config
    return limits_of(
        signals.tuples.production,
        signals.bins,
        start_ns=start_ns,
        until_ns=min(signals.window.end_ns, until_ns),
        checkpoint_interval_s=config.checkpoint_interval_s if config.paced else signals.resolution_s,
        within=config.recovered_within,
        by_lag=not evidence.identifies_tuples,
    )


def threshold_fields(evidence: Evidence, signals: Signals, limits: Limits | None, until_ns: int) -> dict[str, Any]:
    """Return the recovery thresholds and `plateau_ratio`, as fields of `RecoveryPart`.

    `plateau_ratio`: p99 latency of the last H before `until_ns`, divided by that of the baseline.
    """
    if limits is None:
        return {}
    tail = p99_ms(signals.tuples.production, until_ns - round(limits.hold_s * NS), until_ns)
    return {
        "recovered_within": evidence.config.recovered_within,
        "latency_limit_ms": limits.latency_ms,
        "lag_limit": limits.lag,
        "hold_s": limits.hold_s,
        "plateau_ratio": tail / limits.baseline_p99_ms if tail is not None and limits.baseline_p99_ms else None,
    }


def placebo_of(evidence: Evidence, signals: Signals) -> RecoveryPart | None:
    """Return the placebo recovery of a control run; None for other, unfinished or too short runs."""
    config, window = evidence.config, signals.window
    at_s = config.earliest_fault_s
    if evidence.scheduler.injected or not config.paced or any(signals.deaths.values()) or at_s > config.fault_window[1]:
        return None
    # `earliest_fault_s` counts from T0 with a fixed warm-up; this run's warm-up may have ended at another time.
    t0_ns = window.start_ns + round(at_s * NS) - round(config.warmup_s * NS)
    limits = limits_between(evidence, signals, window.start_ns, t0_ns)
    if limits is None:
        return None
    end = end_of(
        production_cells(signals.tuples.production, limits.latency_ms),
        signals.bins,
        limits,
        t0_ns=t0_ns,
        t5_ns=_covering_commit_ns(signals, t0_ns),
        produced_until_ns=window.end_ns,
        watched_until_ns=window.watched_until_ns,
    )
    recovered = end.t7_ns is not None
    return RecoveryPart.model_validate(
        {
            **dict(RecoveryPart.empty()),
            **threshold_fields(evidence, signals, limits, window.end_ns),
            "recovered": recovered,
            "macro_s": None if end.t7_ns is None else (end.t7_ns - t0_ns) / NS,
            "censored_at_s": None if recovered else (end.last_violation_ns - t0_ns) / NS,
            "resolution_s": None if end.t7_ns is None else (end.t7_ns - end.last_violation_ns) / NS,
        }
    )


def _covering_commit_ns(signals: Signals, t0_ns: int) -> int | None:
    """Return the first commit from t0 on that covers all records due at t0, or None."""
    due = signals.schedule.due(t0_ns)
    for end_ns, lag in zip(signals.bins["end_ns"].tolist(), signals.bins["lag"].tolist(), strict=True):
        if end_ns >= t0_ns and signals.schedule.due(end_ns) - lag >= due:
            return int(end_ns)
    return None
