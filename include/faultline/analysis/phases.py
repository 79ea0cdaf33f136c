"""Latency before a fault, while it is not over, and after it: three figures, which nothing throws together."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from faultline.analysis.bins import between
from faultline.analysis.latency import Latency, summarise, summarise_between
from faultline.analysis.observations import Measured
from faultline.analysis.production import hit_from_ns
from faultline.analysis.recovery.recoveries import Recovered


def latencies_of(measured: Measured, recovered: Sequence[Recovered]) -> tuple[Latency, Latency | None, Latency | None]:
    """The latency of what was put out before the first fault, of what came until the last recovery was over, and from
    then on; of a run without a fault the first is the whole window's. A recovery that was not seen to end leaves
    nothing after it."""
    window, method, tuples = measured.window, measured.raw.traces.method, measured.tuples
    known = measured.tells_tuples and not is_out_of_step(measured)

    def batches(begin_ns: int, end_ns: int) -> int | None:
        return None if method == "rank" else len(between(measured.bins, begin_ns, end_ns))

    begun = [fault.t0_ns for fault in measured.injected if fault.t0_ns is not None]
    if not begun:
        found = summarise(tuples, method, batches(window.start_ns, window.end_ns))
        return found if known else Latency.unknown(method), None, None
    ends = [event.wall_ns for one in recovered for event in one.events if event.name.partition("#")[0] == "t7"]
    ended = all(one.recovery.recovered is not False for one in recovered)
    last_ns = min(max([*begun, *ends]), window.end_ns) if ended else window.end_ns
    edges = [window.start_ns, hit_from_ns(tuples.production, window, min(begun)), last_ns, window.end_ns]
    parts = [
        summarise_between(tuples, method, batches(begin, end), begin, end) if known else Latency.unknown(method)
        for begin, end in pairwise(edges)
    ]
    return parts[0], parts[1], parts[2] if last_ns < window.end_ns else None


def is_out_of_step(measured: Measured) -> bool:
    """Whether ranks no longer tell which output is whose: after a double count of a key each of its outputs counts one
    tuple more than have come. Outputs that name their tuple tell all the same."""
    by_rank = measured.raw.traces.method == "rank" and not measured.raw.attempt.config.kind.carries_ids
    return by_rank and measured.audit.overcounted > 0
