"""The end of a recovery, definition 2: lag is back (t6), and tuples are on time again (t7), for the better part of H.

What counts as recovered is a choice: L* and lag* lie `recovered_within` above what was seen before the fault, and both
stand in the record. A tuple is on time when its latency is at most L*; one that came later, or never, is late. A
recovery is an interval: it was not over when the last thing was seen out of its bound, and it was over at t7. One that
was not seen to end is censored at the last instant at which it is known not to have ended.
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
from faultline.records.judge.steady import HELD_SHARE, Limits, limits_from
from faultline.records.judge.tuples import MS, NEVER, due_spacing_s, nearest_rank
from faultline.records.record import RecoveryPart
from faultline.system.measured_window import NS

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Cells:
    """Cells of production in order of time, arrays of one length.

    `start_ns`: when the production of each begins. `due`, `on_time`: tuples. `first_ns`: emission of its first tuple
    on time, 0 without any. `late_ns`: the last instant at which one of its tuples was known to be late, 0 without any.
    """

    start_ns: Ints
    due: Ints
    on_time: Ints
    first_ns: Ints
    late_ns: Ints

    def __len__(self) -> int:
        return len(self.start_ns)


def cells_of(produced: pd.DataFrame, limit_ms: float | None) -> Cells:
    """Return the cells, with tuples up to `limit_ms` (L*) on time; None without a limit.

    `produced` has PRODUCED_COLUMNS.
    """
    if limit_ms is None:
        none = np.zeros(0, dtype=np.int64)
        return Cells(none, none, none, none, none)
    latency = produced["latency_ms"].to_numpy(dtype=np.int64)
    good = (latency != NEVER) & (latency <= limit_ms)
    # A tuple that came is known to be late by its output; one that never came, once its time had run out.
    known_ns = produced["last_ms"].to_numpy(dtype=np.int64) * MS
    known_ns = np.where(latency == NEVER, known_ns + round(limit_ms * MS), known_ns)
    first_ns = produced["first_ms"].to_numpy(dtype=np.int64) * MS
    n = produced["n"].to_numpy(dtype=np.int64)
    rows = pd.DataFrame(
        {
            "cell_ns": produced["cell_ns"].to_numpy(dtype=np.int64),
            "due": n,
            "on_time": np.where(good, n, 0),
            "first_ns": np.where(good, first_ns, np.iinfo(np.int64).max),
            "late_ns": np.where(good, 0, known_ns),
        }
    )
    found = (
        rows.groupby("cell_ns", sort=True)
        .agg(due=("due", "sum"), on_time=("on_time", "sum"), first_ns=("first_ns", "min"), late_ns=("late_ns", "max"))
        .reset_index()
    )
    first = found["first_ns"].to_numpy(dtype=np.int64)
    return Cells(
        found["cell_ns"].to_numpy(dtype=np.int64),
        found["due"].to_numpy(dtype=np.int64),
        found["on_time"].to_numpy(dtype=np.int64),
        np.where(first == np.iinfo(np.int64).max, 0, first),
        found["late_ns"].to_numpy(dtype=np.int64),
    )


def p99_ms(produced: pd.DataFrame, start_ns: int, until_ns: int, seen_by_ns: int | None = None) -> float | None:
    """Return p99 of the latency of the tuples produced in the cells of [start, until), reflected by `seen_by_ns`.

    None without any. A tuple that no output reflected has no latency: it is left out here, and late in `cells_of`.
    """
    chosen = (produced["cell_ns"] >= start_ns) & (produced["cell_ns"] < until_ns) & (produced["latency_ms"] != NEVER)
    if seen_by_ns is not None:
        chosen &= produced["last_ms"] * MS <= seen_by_ns
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
    """Return the recovery thresholds: baseline from warm-up (`start_ns`) to the fault plus the share `within`.

    `production`: PRODUCED_COLUMNS. `by_lag`: outputs do not identify tuples, so lag alone decides. None if no tuple was
    emitted otherwise, or nothing was committed.
    """
    before = bins[(bins["end_ns"] > start_ns) & (bins["end_ns"] <= until_ns)]
    highest_ms = None if by_lag else p99_ms(production, start_ns, until_ns, seen_by_ns=until_ns)
    if before.empty or (highest_ms is None and not by_lag):
        return None
    spacing_s = due_spacing_s(production, start_ns, until_ns)
    return limits_from(
        highest_ms,
        float(before["lag"].max()),
        checkpoint_interval_s=checkpoint_interval_s,
        rate=float(before["records"].sum() / before["span_s"].sum()),
        spacing_s=spacing_s,
        within=within,
    )


@dataclass(frozen=True)
class RecoveryEnd:
    """End of a recovery.

    `t6_ns`, `t7_ns`: None if not observed. `out_ns`: last threshold violation before the end, or the signal itself if
    there is none. `out`: its evidence.
    """

    t6_ns: int | None
    t7_ns: int | None
    out_ns: int
    out: str


def end_of(
    cells: Cells,
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

    `bins`: start_ns, end_ns, lag, sorted. `produced_until_ns`: end of the usable production (the load's end, or
    the next fault's reach). `watched_until_ns`: the last usable commit. `until_ns`: the next fault, from which on
    nothing is usable.
    """
    watched = bins[bins["end_ns"] <= watched_until_ns]
    if t5_ns is None:
        out_ns = max(t0_ns, _before(watched["end_ns"], t0_ns, until_ns), _before(cells.late_ns, t0_ns, until_ns))
        return RecoveryEnd(None, None, out_ns, "no commit covered what was there at the fault")
    t6_ns = lag_back_ns(watched, limits, t5_ns, watched_until_ns)
    if limits.latency_ms is None:
        return _end_by_lag(watched, limits, t0_ns=t0_ns, t5_ns=t5_ns, t6_ns=t6_ns, until_ns=until_ns)
    index = None
    if t6_ns is not None:
        # Tuples that were on time while the lag was not, and late again since, are no end.
        index = first_held_cell(cells, limits, _seen_from_ns(watched, t0_ns, t6_ns), produced_until_ns)
    t7_ns = None if t6_ns is None or index is None else max(int(cells.first_ns[index]), t6_ns)
    # Cells behind the first good one may hold a few late tuples, which do not undo the end.
    judged = cells.start_ns < (produced_until_ns if index is None else cells.start_ns[index])
    end_ns = until_ns if t7_ns is None else t7_ns
    lates = _before(cells.late_ns[judged], t0_ns, end_ns)
    out_ns, out = max((lates, "tuples later than L*"), *_lags_out(watched, limits, t0_ns, t5_ns, end_ns, t7_ns))
    return RecoveryEnd(t6_ns, t7_ns, max(out_ns, t0_ns), out if out_ns > t0_ns else "nothing")


def _end_by_lag(
    watched: pd.DataFrame, limits: Limits, *, t0_ns: int, t5_ns: int, t6_ns: int | None, until_ns: int | None
) -> RecoveryEnd:
    """Return the end by lag alone, for outputs that do not identify their input."""
    end_ns = until_ns if t6_ns is None else t6_ns
    out_ns, out = max(_lags_out(watched, limits, t0_ns, t5_ns, end_ns, t6_ns))
    return RecoveryEnd(t6_ns, t6_ns, max(out_ns, t0_ns), out if out_ns > t0_ns else "nothing")


def _lags_out(
    watched: pd.DataFrame, limits: Limits, t0_ns: int, t5_ns: int, end_ns: int | None, t7_ns: int | None
) -> list[tuple[int, str]]:
    """Return the last instants before the end with excessive lag, and with uncommitted records due at t0."""
    lags = _before(watched.loc[watched["lag"] > limits.lag, "end_ns"], t0_ns, end_ns)
    # A commit before t5 did not cover what was there at the fault.
    uncovered = _before(watched.loc[watched["end_ns"] < t5_ns, "end_ns"], t0_ns, end_ns)
    if t7_ns is None:
        uncovered = max(uncovered, t5_ns)
    return [(lags, "lag above lag*"), (uncovered, "not caught up")]


def lag_back_ns(bins: pd.DataFrame, limits: Limits, t5_ns: int, until_ns: int) -> int | None:
    """Return t6: first commit from t5 on with lag within lag*, then within it for 95 % of the next H.

    A bin counts by its span and by the lag at its end; time that no commit ended counts as a violation.
    """
    ends = bins["end_ns"].to_numpy(dtype=np.int64)
    begins = bins["start_ns"].to_numpy(dtype=np.int64)
    good = bins["lag"].to_numpy(dtype=np.float64) <= limits.lag
    hold_ns = round(limits.hold_s * NS)
    for index in np.flatnonzero(good & (ends >= t5_ns)):
        begin, end = int(ends[index]), int(ends[index]) + hold_ns
        if end > until_ns:
            return None
        inside = np.clip(ends, begin, end) - np.clip(begins, begin, end)
        if float(inside[good].sum()) >= HELD_SHARE * hold_ns:
            return begin
    return None


def first_held_cell(cells: Cells, limits: Limits, seen_from_ns: int, until_ns: int) -> int | None:
    """Return the index of the first cell from which on tuples are on time, or None.

    The cell is on time, was emitted at `seen_from_ns` or later, and 95 % of the tuples of the next H are on time. That
    H ends before `until_ns`.
    """
    hold_ns = round(limits.hold_s * NS)
    due = np.concatenate([[0], np.cumsum(cells.due)])
    on_time = np.concatenate([[0], np.cumsum(cells.on_time)])
    begins = np.arange(len(cells))
    ends = np.searchsorted(cells.start_ns, cells.start_ns + hold_ns)
    held = on_time[ends] - on_time[begins] >= HELD_SHARE * (due[ends] - due[begins])
    itself = cells.on_time >= HELD_SHARE * cells.due
    found = np.flatnonzero(held & itself & (cells.first_ns >= seen_from_ns) & (cells.start_ns + hold_ns <= until_ns))
    return int(found[0]) if len(found) else None


def _seen_from_ns(bins: pd.DataFrame, t0_ns: int, t6_ns: int) -> int:
    """Return the instant from which outputs belong to the batch of t6 or a later one; they precede its commit."""
    before = bins.loc[(bins["end_ns"] > t0_ns) & (bins["end_ns"] < t6_ns), "end_ns"]
    return int(before.max()) + 1 if len(before) else t0_ns


def _before(instants_ns: Iterable[int] | npt.NDArray[np.int64] | pd.Series, after_ns: int, end_ns: int | None) -> int:
    """Return the last of the instants in (after, end); 0 without any."""
    values = np.asarray(instants_ns, dtype=np.int64)
    values = values[(values > after_ns) & (values < (np.iinfo(np.int64).max if end_ns is None else end_ns))]
    return int(values.max()) if len(values) else 0


# Recovery thresholds of an attempt, and its placebo recovery.


def limits_between(evidence: Evidence, signals: Signals, start_ns: int, until_ns: int) -> Limits | None:
    """Return the recovery thresholds from the baseline between `start_ns` and `until_ns`, the fault."""
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


def choices(evidence: Evidence, signals: Signals, limits: Limits | None, until_ns: int) -> dict[str, Any]:
    """Return the thresholds used, and the ratio of the tail after the recovery to the tail before the fault."""
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
    """Return the placebo recovery of a control; None for a run with a fault, a shorter run or an unfinished one."""
    config, window = evidence.config, signals.window
    at_s = config.earliest_fault_s
    if evidence.conductor.injected or not config.paced or any(signals.deaths.values()) or at_s > config.fault_window[1]:
        return None
    # Relative to the end of the warm-up.
    t0_ns = window.start_ns + round(at_s * NS) - round(config.warmup_s * NS)
    limits = limits_between(evidence, signals, window.start_ns, t0_ns)
    if limits is None:
        return None
    end = end_of(
        cells_of(signals.tuples.production, limits.latency_ms),
        signals.bins,
        limits,
        t0_ns=t0_ns,
        t5_ns=_caught_up_ns(signals, t0_ns),
        produced_until_ns=window.end_ns,
        watched_until_ns=window.watched_until_ns,
    )
    recovered = end.t7_ns is not None
    return RecoveryPart.model_validate(
        {
            **dict(RecoveryPart.empty()),
            **choices(evidence, signals, limits, window.end_ns),
            "recovered": recovered,
            "macro_s": None if end.t7_ns is None else (end.t7_ns - t0_ns) / NS,
            "censored_at_s": None if recovered else (end.out_ns - t0_ns) / NS,
            "resolution_s": None if end.t7_ns is None else (end.t7_ns - end.out_ns) / NS,
        }
    )


def _caught_up_ns(signals: Signals, t0_ns: int) -> int | None:
    """Return the first commit from then on that covers what was due then."""
    due = signals.schedule.due(t0_ns)
    for end_ns, lag in zip(signals.bins["end_ns"].tolist(), signals.bins["lag"].tolist(), strict=True):
        if end_ns >= t0_ns and signals.schedule.due(end_ns) - lag >= due:
            return int(end_ns)
    return None
