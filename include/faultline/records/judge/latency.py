"""Latency of tuples: emission of the first output that reflects a tuple − its intended production.

Latency before, during and after recovery; never pooled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd

from faultline.records.judge.evidence import Evidence
from faultline.records.judge.journals import LEFT_OUT
from faultline.records.judge.recoveries import FaultRecovery, Recoveries
from faultline.records.judge.signals import Signals
from faultline.records.judge.tuples import NEVER, PERMILLES, Tuples, hit_from_ns, nearest_rank
from faultline.records.record import LatencyMs

Span = tuple[int, int]


@dataclass(frozen=True)
class LatencyFigures:
    """Fields of `Metrics`."""

    latency_ms: LatencyMs
    latency_during_ms: LatencyMs | None
    latency_after_ms: LatencyMs | None


def latency_of(evidence: Evidence, signals: Signals, recoveries: Recoveries, *, in_step: bool) -> LatencyFigures:
    """Return the latency before, during and after recoveries; without a fault, the first is that of the whole window.

    A censored recovery lasts until the next fault. `in_step`: whether each output's tuple is known.
    """
    window, tuples, method = signals.window, signals.tuples, evidence.traces.method
    ends = signals.bins["end_ns"]

    def within(spans: Sequence[Span] | None) -> LatencyMs:
        """Return figures over all tuples of the window without spans."""
        if not (in_step and evidence.identifies_tuples):
            return LatencyMs.model_validate({**dict.fromkeys(LatencyMs.model_fields), "method": method})
        batches = None
        if method != "rank":
            edges = spans if spans is not None else [(window.start_ns, window.end_ns)]
            batches = sum(int(((ends > start) & (ends <= until)).sum()) for start, until in edges)
        return summarise(tuples, method, batches, spans)

    during = spans_of(evidence, signals, recoveries.faults)
    if not during:
        return LatencyFigures(within(None), None, None)
    edges = [*(edge for span in during for edge in span), window.end_ns]
    after = [span for span in zip(edges[1::2], edges[2::2], strict=True) if span[0] < span[1]]
    return LatencyFigures(within([(window.start_ns, during[0][0])]), within(during), within(after) if after else None)


def summarise(tuples: Tuples, method: str, batches: int | None, spans: Iterable[Span] | None = None) -> LatencyMs:
    """Return the latency of the tuples produced in the measured window.

    `spans`: only tuples in cells of production that begin in one of these [start, until).
    """
    frame = tuples.window
    if spans is not None:
        begins = tuples.production["cell_ns"]
        chosen = pd.Series(False, index=begins.index)
        for start_ns, until_ns in spans:
            chosen |= (begins >= start_ns) & (begins < until_ns)
        frame = tuples.production[chosen & (tuples.production["latency_ms"] != NEVER)]
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


def spans_of(evidence: Evidence, signals: Signals, faults: Sequence[FaultRecovery]) -> list[Span]:
    """Return the spans in which a fault delays tuples, in ns, sorted and disjoint."""
    window, found = signals.window, list[Span]()
    struck = [(fault.t0_ns, one) for fault, one in zip(evidence.conductor.injected, faults, strict=True) if fault.t0_ns]
    for number, (t0_ns, one) in enumerate(struck):
        begin_ns = hit_from_ns(signals.tuples.production, window, t0_ns)
        next_ns = struck[number + 1][0] if number + 1 < len(struck) else window.end_ns
        open_ns = next_ns if one.recovery.recovered is False or one.settled.outcome == LEFT_OUT else t0_ns
        end_ns = min(open_ns if one.t7_ns is None else one.t7_ns, window.end_ns)
        if found and begin_ns <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end_ns))
        else:
            found.append((begin_ns, end_ns))
    return found
