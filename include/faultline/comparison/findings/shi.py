"""Claims of the stock paper about input rates and executor cores.

Source: Shi and others, *System test framework of stream data for stock trading analysis scenario* (2020), section 3.3.
Spark Streaming on five nodes with 20 cores, five repetitions. Its latency is the time without computation (section 2.3:
`non_compute_ms`); its execution time and tasks are those of the executors (`work.task_s`, `work.tasks`).

Rates (test 1, table 3: 5 minutes each). Finding 1, figure 3: latency rises with the rate, slowly at low rates, strongly
at high ones. Finding 2, figure 4: GC time and CPU rise as well, but at the highest rate the CPU is far from fully used
(28.71 % on average). Finding 3: from 19.30 to 92.50 records/s all is stable (execution 8.5 s, GC 6 s), at 1,701.06
slightly more, at 46,071.31 execution takes a minute and latency 205 ms more: performance is stable up to a threshold
and drops beyond it; a batch may then exceed the batch interval, and back pressure keeps the executors from running out
of memory. Figure 5: tasks multiply from 3.97 to 19.3 records/s, hardly change after that, and fall at the highest rate.

Cores (test 2, table 4: 4 executors with 2, 4, 8, 16 cores for 2 minutes). Finding 1, figure 6: hardly any effect on
throughput. Finding 2, figure 7: latency falls strongly, at 16 cores to a third of that at 2. Finding 3, figure 8: GC
time rises, and CPU, to 31.05 % on average at 16 cores.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from faultline.comparison.capacity import is_sustained
from faultline.comparison.findings.claims import (
    CPU,
    GC,
    MACHINE,
    NON_COMPUTE,
    TASK_TIME,
    TASKS,
    THROUGHPUT,
    ClaimResult,
    ClaimVerdict,
    PaperClaim,
    not_covered,
    not_testable,
    valid_records,
    verdict_of,
    without_fault,
)
from faultline.comparison.findings.predicates import (
    Lies,
    Moves,
    Series,
    SeriesClaim,
    Stays,
    between,
    contrast,
    is_stable,
    mean_of,
    series_of,
    unanimous,
)
from faultline.comparison.statistics.estimate import ALPHA, p_text
from faultline.records.record import Record

RATE, CORES = "rate", "executor_cores"
# Average CPU use of a fully used machine.
FULLY_USED = 0.9
GC_BY_TASKS = "GC counts a pause once for each running task, so it rises with the cores by itself"
# From 2 to 16 cores: eight times the cores, a third of the latency.
PAPER_FACTOR, PAPER_SHARE = 8.0, 1 / 3
# Tolerance of the claim's third.
SHARE_MARGIN = 0.1


def gc_time_by_cores(records: Sequence[Record]) -> ClaimResult:
    """Test the GC time along the cores; inconclusive unless each record has it from the JVMs' logs.

    Spark's own figure cannot be used: it counts a pause once per running task, and more cores run more tasks at once.
    """
    found = Moves(GC, CORES, remark=oversubscribed)(records)
    if all(record.metrics.gc is not None for record in without_fault(records)):
        return found
    return ClaimResult(ClaimVerdict.INCONCLUSIVE, f"{found.evidence}; {GC_BY_TASKS}")


@dataclass(frozen=True)
class Steepest(SeriesClaim):
    """Whether the last step raises the figure more than all earlier steps together, and beyond the margin."""

    def judge(self, series: Sequence[Series]) -> ClaimResult:
        """Return the result; it is inconclusive if the series disagree."""
        answers, texts, ps = [], [], []
        for one in series:
            ends = (one.levels[0], one.levels[-2], one.levels[-1])
            surplus = contrast([level.values for level in ends], (1.0, -2.0, 1.0))
            p = surplus.p
            flat = p > ALPHA and is_stable([replace(one, levels=one.levels[-2:])])
            answers.append(False if flat else None if p > ALPHA else surplus.value > 0)
            # Equivalence does not rest on chance, as in `Stays`.
            ps.append(1.0 if flat else p)
            rates = f"{ends[0].at:,} to {ends[1].at:,}/s, {ends[2].at:,}/s"
            first, last, then = (self.measure.text(level.median) for level in ends)
            runs = sum(len(level.values) for level in ends)
            texts.append(
                f"{self.measure.name} {first} to {last}, then {then} (at {rates}; n = {runs}, p {p_text(p)})"
                f"{': the last step hardly changes it' if flat else ''}"
            )
        return ClaimResult(verdict_of(answers[0] if len(set(answers)) == 1 else None), "; ".join(texts), max(ps))


def machine_shares(records: Sequence[Record], by: str) -> tuple[list[float], str]:
    """Return the machine's CPU use by engine, broker and generator at the largest value of an axis, and a text."""
    chosen = without_fault(records)
    greatest = max((float(record.config[by]) for record in chosen), default=0.0)
    shares = [MACHINE.read(record) for record in chosen if float(record.config[by]) == greatest]
    known = [value for value in shares if value is not None]
    if not known:
        return [], "no valid run"
    used = f"{min(known):.0%} to {max(known):.0%} busy, generator and broker included"
    return known, f"at {greatest:,.10g} the machine is {used}"


def threshold(records: Sequence[Record]) -> ClaimResult:
    """Test whether all rates below some threshold are sustained and none above; a rate with a single run is ignored."""
    by_rate = sustained_rates(records)
    if not by_rate:
        return not_covered("no run with a known result for its rate")
    text = ", ".join(f"{sum(answers)} of {len(answers)} held {rate:,.10g}/s" for rate, answers in by_rate.items())
    clear = [answer for answers in by_rate.values() if (answer := unanimous(answers)) is not None]
    if True not in clear or False not in clear:
        return ClaimResult(ClaimVerdict.INCONCLUSIVE, text)
    return ClaimResult(verdict_of(clear == sorted(clear, reverse=True)), text)


def overload_is_survived(records: Sequence[Record]) -> ClaimResult:
    """Test whether no executor was lost at rates that were not sustained."""
    chosen = [record for record in records if record.config.get("fault") == "none" and is_sustained(record) is False]
    lost = [record for record in records if any("executor" in why and "lost" in why for why in _control_losses(record))]
    if not chosen and not lost:
        return not_covered("no rate was too high")
    memory = [record.metrics.rss_mb.executors for record in chosen]
    most = max((size for size in memory if size is not None), default=None)
    text = f"{len(lost)} of {len(chosen) + len(lost)} runs at rates that were too high lost an executor"
    text += "" if most is None else f"; executors held {most:,.0f} MB at most"
    return ClaimResult(verdict_of(False if lost else True if len(chosen) > 1 else None), text)


def latency_ratio(records: Sequence[Record]) -> ClaimResult:
    """Test the ratio of the latency at the most cores to that at the fewest; the paper has 8 times the cores."""
    series = [
        one
        for one in series_of(without_fault(records), CORES, NON_COMPUTE.read)
        if all(len(level.values) > 1 and level.median > 0 for level in one.levels)
    ]
    if not series:
        return not_covered("requires two numbers of cores, each measured more than once")
    ends = [(one.levels[0], one.levels[-1]) for one in series]
    shares = [b / a for fewest, most in ends for a in fewest.values for b in most.values if a]
    factor = min(float(most.at) / float(fewest.at) for fewest, most in ends)
    text = f"{min(shares):.0%} to {max(shares):.0%} of the {NON_COMPUTE.name} with {factor:g} times the cores"
    text += oversubscribed(records)
    if factor < PAPER_FACTOR:
        return not_testable(f"requires {PAPER_FACTOR:g} times the cores, as in the paper; here {text}")
    if not all(one.ratio for one in series):
        return ClaimResult(ClaimVerdict.INCONCLUSIVE, text)
    share = mean_of([one.step(*levels, True) for one, levels in zip(series, ends, strict=True)])
    found, p = between(share, -math.inf, math.log(PAPER_SHARE + SHARE_MARGIN))
    return ClaimResult(verdict_of(found), text, p)


def sustained_rates(records: Sequence[Record]) -> dict[float, list[bool]]:
    """Return, by rate, whether each run without a fault sustained it; undecided runs are omitted."""
    by_rate: dict[float, list[bool]] = {}
    for record in records:
        answer = is_sustained(record)
        if answer is not None and record.config.get("fault") == "none":
            by_rate.setdefault(float(record.config[RATE]), []).append(answer)
    return dict(sorted(by_rate.items()))


def _control_losses(record: Record) -> list[str]:
    return [reason for reason in record.reasons if reason.startswith("fault-in-control")]


def oversubscribed(records: Sequence[Record]) -> str:
    """Return a remark if executors had more cores than the machine, as in the paper (64 on 20)."""
    over = {float(record.config[CORES]) for record in valid_records(records) if record.environment.oversubscribed}
    if not over:
        return ""
    return f"; oversubscribed at {', '.join(f'{value:g}' for value in sorted(over))} cores an executor"


INPUT_RATE = (
    PaperClaim("Spark Streaming: the higher the rate, the larger the latency", "3.3, test 1, finding 1, figure 3",
               Moves(NON_COMPUTE, RATE, remark=oversubscribed)),
    PaperClaim("Spark Streaming: latency rises little while rates are low, and much at the highest (205 ms more)",
               "3.3, test 1, findings 1 and 3, figure 3", Steepest(NON_COMPUTE, RATE, repeated=3)),
    PaperClaim("Spark Streaming: the higher the rate, the more GC time", "3.3, test 1, finding 2, figure 4",
               Moves(GC, RATE, remark=oversubscribed)),
    PaperClaim("Spark Streaming: the higher the rate, the more CPU", "3.3, test 1, finding 2",
               Moves(CPU, RATE, remark=oversubscribed)),
    PaperClaim("Spark Streaming: at the highest rate the CPU is not fully used (28.71 % on average)",
               "3.3, test 1, finding 2", Lies(partial(machine_shares, by=RATE), high=FULLY_USED)),
    PaperClaim("Spark Streaming: performance is stable up to a threshold of the rate, and drops beyond it",
               "3.3, test 1, finding 3, table 3", threshold),
    PaperClaim("Spark Streaming: execution time grows little at first, and much at the highest rate (a minute more)",
               "3.3, test 1, finding 3, table 3", Steepest(TASK_TIME, RATE, repeated=3)),
    PaperClaim("Spark Streaming: tasks hardly change between the second and the last but one rate",
               "3.3, test 1, finding 3, figure 5", Stays(TASKS, RATE, repeated=4, part=(1, -1))),
    PaperClaim("Spark Streaming: tasks become fewer at the highest rate", "3.3, test 1, finding 3, figure 5",
               Moves(TASKS, RATE, repeated=2, part=(-2, None), rises=False)),
    PaperClaim("Spark Streaming: a rate that is too high does not cost an executor, thanks to back pressure",
               "3.3, test 1, finding 3", overload_is_survived),
)  # fmt: skip
EXECUTOR_CORES = (
    PaperClaim("Spark Streaming: the number of cores hardly changes the throughput", "3.3, test 2, finding 1, figure 6",
               Stays(THROUGHPUT, CORES, remark=oversubscribed)),
    PaperClaim("Spark Streaming: the more cores, the smaller the latency", "3.3, test 2, finding 2, figure 7",
               Moves(NON_COMPUTE, CORES, remark=oversubscribed, rises=False)),
    PaperClaim("Spark Streaming: with 16 cores instead of 2 the latency is a third", "3.3, test 2, finding 2, figure 7",
               latency_ratio),
    PaperClaim("Spark Streaming: the more cores, the more GC time", "3.3, test 2, finding 3, figure 8",
               gc_time_by_cores),
    PaperClaim("Spark Streaming: the more cores, the more CPU", "3.3, test 2, finding 3",
               Moves(CPU, CORES, remark=oversubscribed)),
    PaperClaim("Spark Streaming: with the most cores the CPU is not fully used (31.05 % on average)",
               "3.3, test 2, finding 3", Lies(partial(machine_shares, by=CORES), high=FULLY_USED)),
)  # fmt: skip
