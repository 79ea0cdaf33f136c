"""Latency of tuples: emission of the first output that reflects a tuple, minus its intended production.

Latencies before, during and after recoveries are separate figures.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd

from faultline.records.judge.evidence import Evidence
from faultline.records.judge.journals import LEFT_OUT
from faultline.records.judge.recoveries import FaultRecovery, Recoveries
from faultline.records.judge.signals import Signals
from faultline.records.judge.tuples import NEVER_REFLECTED, PERMILLES, Tuples, first_affected_ns, nearest_rank
from faultline.records.record import LatencyMs

Span = tuple[int, int]


@dataclass(frozen=True)
class LatencyFigures:
    """Fields of `Metrics`; the last two are None without a fault."""

    latency_ms: LatencyMs
    latency_during_ms: LatencyMs | None
    latency_after_ms: LatencyMs | None


@dataclass(frozen=True)
class Phases:
    """Intervals of the measured window before, during and after recoveries; without a fault, `before` is all of it.

    A censored recovery lasts until the next fault.
    """

    before: Sequence[Span]
    during: Sequence[Span] = ()
    after: Sequence[Span] = ()


def phases_of(evidence: Evidence, signals: Signals, recoveries: Recoveries) -> Phases:
    """Return the phases of an attempt, each in chronological order."""
    window, during = signals.window, delayed_spans(evidence, signals, recoveries.faults)
    if not during:
        return Phases([(window.start_ns, window.end_ns)])
    edges = [*(edge for span in during for edge in span), window.end_ns]
    after = [span for span in zip(edges[1::2], edges[2::2], strict=True) if span[0] < span[1]]
    return Phases([(window.start_ns, during[0][0])], during, after)


def latency_of(evidence: Evidence, signals: Signals, phases: Phases, *, is_mapping_known: bool) -> LatencyFigures:
    """Return the latency in each phase. `is_mapping_known`: whether the tuples of each output are known."""
    tuples, method = signals.tuples, evidence.traces.method
    ends = signals.bins["end_ns"]

    def latency_in(spans: Sequence[Span] | None) -> LatencyMs:
        """Return the latency of the tuples produced in `spans`; None means the whole window."""
        if not (is_mapping_known and evidence.identifies_tuples):
            return LatencyMs.model_validate({**dict.fromkeys(LatencyMs.model_fields), "method": method})
        batches = None
        if not evidence.emits_per_record:
            intervals = phases.before if spans is None else spans
            batches = sum(int(((ends > start) & (ends <= until)).sum()) for start, until in intervals)
        return summarise(tuples, method, batches, spans)

    if not phases.during:
        return LatencyFigures(latency_in(None), None, None)
    after = latency_in(phases.after) if phases.after else None
    return LatencyFigures(latency_in(phases.before), latency_in(phases.during), after)


def summarise(tuples: Tuples, method: str, batches: int | None, spans: Iterable[Span] | None = None) -> LatencyMs:
    """Return the latency of the tuples produced in the measured window.

    `spans`: only tuples in production cells that start in one of these intervals [start, until).
    """
    frame = tuples.window
    if spans is not None:
        cell_starts = tuples.production["cell_ns"]
        is_chosen = pd.Series(False, index=cell_starts.index)
        for start_ns, until_ns in spans:
            is_chosen |= (cell_starts >= start_ns) & (cell_starts < until_ns)
        frame = tuples.production[is_chosen & (tuples.production["latency_ms"] != NEVER_REFLECTED)]
    values, weights = (frame[name].to_numpy(dtype="int64") for name in ("latency_ms", "n"))
    count = int(weights.sum())
    return LatencyMs(
        mean=float((values * weights).sum() / count) if count else None,
        max=float(values.max()) if count else None,
        count=count,
        negative=tuples.negative,
        unreflected=tuples.unreflected,
        method=method,
        batches=batches,
        **{name: nearest_rank(values, weights, permille) for name, permille in PERMILLES.items()},
    )


def delayed_spans(evidence: Evidence, signals: Signals, faults: Sequence[FaultRecovery]) -> list[Span]:
    """Return the intervals in which faults delay tuples, in ns, sorted and disjoint."""
    window, spans = signals.window, list[Span]()
    injected = evidence.scheduler.injected
    delivered = [(fault.t0_ns, one) for fault, one in zip(injected, faults, strict=True) if fault.t0_ns]
    for number, (t0_ns, one) in enumerate(delivered):
        begin_ns = first_affected_ns(signals.tuples.production, window, t0_ns)
        next_ns = delivered[number + 1][0] if number + 1 < len(delivered) else window.end_ns
        end_without_t7_ns = next_ns if one.recovery.recovered is False or one.settled.outcome == LEFT_OUT else t0_ns
        end_ns = min(end_without_t7_ns if one.t7_ns is None else one.t7_ns, window.end_ns)
        if spans and begin_ns <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], end_ns))
        else:
            spans.append((begin_ns, end_ns))
    return spans
