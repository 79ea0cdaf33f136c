"""Claims of the dynamic-topology paper about its four mechanisms.

Source: Lu and others, *A performance optimization method based on dynamic topology for stream computing and its
implementation in Storm* (Acta Electronica Sinica 48(5), 2020), section 6. Six nodes, Storm 1.1.0, means of 50 runs.

6.1, fast word count (table 3, figure 13), tuples/s with the method and of Storm: 60,323 and 50,836 with 1-1-1 tasks
(for spout, split and count), 61,307 and 53,614 with 1-2-1, 64,535 and 60,312 with 1-2-2, 67,063 for both with 1-4-6:
17 % more at best, and nothing with enough tasks. 6.2, word count over a book with 1-2-4-1 tasks (figure 15): latencies
of 380 ms and 485 ms. 6.3, with a sleeping persistence (figure 16): 380 ms, growing without the queue. 6.4, overload
(figure 17): no pause with replacement, about 22 s for each `rebalance`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from faultline.comparison.findings.claims import (
    LATENCY,
    THROUGHPUT,
    ClaimResult,
    PaperClaim,
    not_covered,
    verdict_of,
    without_fault,
)
from faultline.comparison.findings.predicates import Moves, Stays, unanimous
from faultline.records.record import Record

MECHANISMS = "mechanisms"
NONE_AND_ALL = ("none", "all")


def has_slow_store(record: Record) -> bool:
    """Return whether the store is slowed on purpose."""
    return bool((record.config.get("topology") or {}).get("persist_delay_ms"))


def with_tasks(records: Sequence[Record], cases: Sequence[str], *, sustained: bool = False) -> list[Record]:
    """Return usable runs with a parallelism in `cases` and a fast store; `sustained`: only those not overloaded."""
    chosen = [
        one for one in without_fault(records) if one.config.get("parallelism") in cases and not has_slow_store(one)
    ]
    return [one for one in chosen if one.metrics.sustained or not sustained]


def queue_keeps_up(records: Sequence[Record]) -> ClaimResult:
    """Test whether, with a slow store, the lag grows without the delayed queue and is stable with it."""
    chosen = [one for one in without_fault(records) if has_slow_store(one) and one.metrics.sustained is not None]
    with_queue: list[bool] = []
    without: list[bool] = []
    for one in chosen:
        has = one.config[MECHANISMS] == "all" or "delayed_persistence" in str(one.config[MECHANISMS]).split("+")
        (with_queue if has else without).append(bool(one.metrics.sustained))
    if len(with_queue) < 2 or len(without) < 2:
        return not_covered("requires a slow store with and without the queue, each measured more than once")
    text = (
        f"lag was stable in {sum(with_queue)} of {len(with_queue)} runs with the queue, in {sum(without)} of "
        f"{len(without)} without"
    )
    is_stable, grows = unanimous(with_queue), unanimous([not stable for stable in without])
    is_refuted = is_stable is False or grows is False
    return ClaimResult(verdict_of(False if is_refuted else True if is_stable and grows else None), text)


def no_pause(records: Sequence[Record]) -> ClaimResult:
    """Test whether a replacement pauses for at most one batch; pauses of a rebalance are reported for comparison."""
    gaps: dict[str, list[float]] = {"replacement": [], "rebalance": []}
    batches: list[float] = []
    for one in without_fault(records):
        stages = one.metrics.stages
        if stages is None or stages.gap_s is None:
            continue
        kind = "rebalance" if "rebalance" in str(one.config[MECHANISMS]).split("+") else "replacement"
        gaps[kind].append(stages.gap_s)
        if kind == "replacement" and stages.batch_s is not None:
            batches.append(stages.batch_s)
    if not gaps["replacement"] or not batches:
        return not_covered("no stage was replaced")
    text = f"longest pause {max(gaps['replacement']):.1f} s, longest batch {max(batches):.1f} s"
    if gaps["rebalance"]:
        text += f"; stopped and started: {min(gaps['rebalance']):.1f} to {max(gaps['rebalance']):.1f} s"
    return ClaimResult(
        verdict_of(max(gaps["replacement"]) <= min(batches)), f"{text} (n = {sum(map(len, gaps.values()))})"
    )


TOPOLOGY = (
    PaperClaim("Storm: all mechanisms together raise the throughput of the fast word count while tasks are few",
               "6.1, figure 13 (a) and (b): by 17 %",
               Moves(THROUGHPUT, MECHANISMS, partial(with_tasks, cases=("1-1-1", "1-2-1")), NONE_AND_ALL)),
    PaperClaim("Storm: with enough tasks they leave the throughput as it is", "6.1, figure 13 (d)",
               Stays(THROUGHPUT, MECHANISMS, partial(with_tasks, cases=("1-4-6",)), NONE_AND_ALL)),
    PaperClaim("Storm: all together lower the latency of the word count over a book", "6.2, figure 15: 485 to 380 ms",
               Moves(LATENCY, MECHANISMS, partial(with_tasks, cases=("1-2-4-1",)), NONE_AND_ALL, rises=False)),
    PaperClaim("Storm: with a slow store latency stays flat with the delayed queue, and grows without it",
               "6.3, figure 16", queue_keeps_up),
    PaperClaim("Storm: a stage is replaced without a pause", "6.4, figure 17: none, against 22 s of `rebalance`",
               no_pause),
    PaperClaim("Storm: where nothing is overloaded they cost no noticeable latency", "section 4.4, of the queue only",
               Stays(LATENCY, MECHANISMS, partial(with_tasks, cases=("1-1-1", "1-2-2", "1-2-4-1"), sustained=True),
                     NONE_AND_ALL)),
)  # fmt: skip
