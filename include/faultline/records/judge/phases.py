"""Latency before a fault, while it is not over, and after it: three figures, which nothing throws together."""

from __future__ import annotations

from collections.abc import Sequence

from faultline.records.judge.bins import between
from faultline.records.judge.latency import Latency, summarise, summarise_within
from faultline.records.judge.observations import Measured
from faultline.records.judge.production import hit_from_ns
from faultline.records.judge.recovery.recoveries import Recovered
from faultline.records.judge.validity import LEFT_OUT

Span = tuple[int, int]


def latencies_of(measured: Measured, recovered: Sequence[Recovered]) -> tuple[Latency, Latency | None, Latency | None]:
    """The latency of what was put out before the first fault, of what came from each fault until its recovery was over,
    and of the rest; of a run without a fault the first is the whole window's. A recovery that was not seen to end lasts
    until the next fault."""
    window, method, tuples = measured.window, measured.raw.traces.method, measured.tuples
    known = measured.tells_tuples and not is_out_of_step(measured)

    def batches(spans: Sequence[Span]) -> int | None:
        return None if method == "rank" else sum(len(between(measured.bins, *span)) for span in spans)

    def within(spans: Sequence[Span]) -> Latency:
        return summarise_within(tuples, method, batches(spans), spans) if known else Latency.unknown(method)

    during = spans_of(measured, recovered)
    if not during:
        found = summarise(tuples, method, batches([(window.start_ns, window.end_ns)]))
        return found if known else Latency.unknown(method), None, None
    edges = [*(edge for span in during for edge in span), window.end_ns]
    after = [span for span in zip(edges[1::2], edges[2::2], strict=True) if span[0] < span[1]]
    return within([(window.start_ns, during[0][0])]), within(during), within(after) if after else None


def spans_of(measured: Measured, recovered: Sequence[Recovered]) -> list[Span]:
    """From when to when what is produced is late because of a fault, as instants in ns, in order and apart."""
    window, found = measured.window, list[Span]()
    struck = [(fault.t0_ns, one) for fault, one in zip(measured.injected, recovered, strict=True) if fault.t0_ns]
    for number, (t0_ns, one) in enumerate(struck):
        begin_ns = hit_from_ns(measured.tuples.production, window, t0_ns)
        next_ns = struck[number + 1][0] if number + 1 < len(struck) else window.end_ns
        ends = [event.wall_ns for event in one.events if event.name.partition("#")[0] == "t7"]
        open_ns = next_ns if one.recovery.recovered is False or one.settled.outcome == LEFT_OUT else t0_ns
        end_ns = min(ends[0] if ends else open_ns, window.end_ns)
        if found and begin_ns <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end_ns))
        else:
            found.append((begin_ns, end_ns))
    return found


def is_out_of_step(measured: Measured) -> bool:
    """Whether ranks no longer tell which output is whose: after a double count of a key each of its outputs counts one
    tuple more than have come. Outputs that name their tuple tell all the same."""
    by_rank = measured.raw.traces.method == "rank" and not measured.raw.attempt.config.kind.carries_ids
    return by_rank and measured.audit.overcounted > 0
