"""What a sweep has decided so far: of each comparison by how much its sides differ, or what it would take to tell."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from faultline.comparison.cells import Axis, Step
from faultline.comparison.question import FIGURES, compared, steps_of
from faultline.comparison.statistics.estimate import Interval, logarithm_of, share_of
from faultline.comparison.statistics.sequential import Judged, Method, Outcome, Pair, judge
from faultline.records.catalogue import bounds_of
from faultline.records.columns import Metric
from faultline.records.manifest import Manifest, Question
from faultline.records.record import SCHEMA
from faultline.records.summary import Entry

# More than so many times the pairs at hand is a guess that helps nobody.
_FARTHEST = 1000


@dataclass(frozen=True)
class Decision:
    """One comparison of neighbours along an axis.

    `change`: the figure after as a share of that before, less 1, with an interval that holds at all looks and for all
    comparisons of the sweep together; infinite where nobody knows. None of no pairs. `margin`: up to which share a
    difference is none that matters; at least what the figure is known to. `pairs`: that both sides have measured;
    `looked`: how many of them decided it. `more`: further pairs that would decide it if they scatter as before, None
    when it is decided or nobody can tell. `where`: the values on the other axes.
    """

    step: Step
    metric: Metric
    outcome: Outcome
    change: Interval | None
    margin: float
    pairs: int
    looked: int | None
    more: int | None
    where: str = ""

    @property
    def decided(self) -> bool:
        """Whether no more is measured for it."""
        return self.outcome in (Outcome.DIFFERS, Outcome.WITHIN)

    @property
    def at_least(self) -> float | None:
        """The bound of the change that lies nearer to none, where it differs: −0.31 is 31 % less at least."""
        if self.outcome is not Outcome.DIFFERS or self.change is None:
            return None
        return self.change.low if self.change.low > 0 else self.change.high

    @property
    def text(self) -> str:
        """In a line: `checkpoint interval (s) 5 instead of 2: CPU, all roles −38 % (−44 … −31), n = 12 pairs, differs
        by at least 31 %, decided after 6`."""
        where = f"{self.where}, " if self.where else ""
        said = f"{where}{self.step.axis.name} {self.step.label}: {self.metric.name}"
        if self.change is None:
            return f"{said}: no pairs yet"
        ends = f"{percent(self.change.low)} … {percent(self.change.high)}"
        said = f"{said} {percent(self.change.value)} % ({ends}), n = {self.pairs} pairs"
        if self.outcome is Outcome.WITHIN:
            return f"{said}, {self.outcome} {_share(self.margin)} %, decided after {self.looked}"
        if self.at_least is not None:
            # Down, or it would promise more than is known.
            least = "∞" if math.isinf(self.at_least) else f"{math.floor(1000 * abs(self.at_least)) / 10:g}"
            return f"{said}, {self.outcome} {least} %, decided after {self.looked}"
        return f"{said}, {self.outcome}: {self.needs}"

    @property
    def needs(self) -> str:
        """What it would take, where it is not decided."""
        if self.more is None:
            return "nobody can tell yet how many more pairs it takes"
        return f"about {self.more} more pairs would tell, if they scatter as these do"


def decisions_of(plan: Manifest, entries: Iterable[Entry]) -> list[Decision]:
    """One decision for each comparison of a sweep's plan, in the order of its axes; none where it asks nothing.

    `entries`: records of its configurations. Those of its series and build by today's schema count, of each cell the
    newest that is sound, whatever sweep measured it, unless the question is to be answered afresh.
    """
    question = plan.decide
    if question is None:
        return []
    steps, axes = steps_of({cell.config_id: cell.config for cell in plan.cells}, question.along)
    found = counted(plan, entries)
    spent = _spent(plan, found)
    return [
        _decision(step, question, found[step.before.config_id], found[step.after.config_id], axes, spent)
        for step in steps
    ]


def settled(decisions: Sequence[Decision]) -> frozenset[str]:
    """Ids of the configurations of which all comparisons are decided; a cell of them is not measured any more."""
    open_ones = compared(one.step for one in decisions if not one.decided)
    return frozenset(compared(one.step for one in decisions) - open_ones)


def settled_in(plan: Manifest, entries: Iterable[Entry]) -> frozenset[str]:
    """The same of a sweep's plan, and all of its configurations when its experiments are spent; nothing where it is to
    measure all of its cells."""
    entries = list(entries)
    if _spent(plan, counted(plan, entries)):
        return frozenset(cell.config_id for cell in plan.cells)
    return settled(decisions_of(plan, entries))


def counted(plan: Manifest, entries: Iterable[Entry]) -> dict[str, dict[int, Entry]]:
    """What counts of a plan's cells, by configuration and repetition."""
    found: dict[str, dict[int, Entry]] = {cell.config_id: {} for cell in plan.cells}
    for entry in sorted(entries, key=lambda entry: entry.attempt):
        same = (entry.series, entry.build, entry.schema) == (plan.series, plan.build, SCHEMA)
        if same and plan.counts(entry) and entry.sound and entry.config_id in found:
            found[entry.config_id][entry.repetition] = entry
    return found


def _spent(plan: Manifest, found: Mapping[str, Mapping[int, Entry]]) -> bool:
    """Whether as many experiments count as the budget has."""
    if plan.decide is None or plan.decide.experiments is None:
        return False
    planned = {(cell.config_id, cell.repetition) for cell in plan.cells}
    done = sum((config_id, one) in planned for config_id, blocks in found.items() for one in blocks)
    return done >= plan.decide.experiments


def tally(decisions: Sequence[Decision]) -> str:
    """How many are decided and how many are not, in words; empty where nothing was asked."""
    if not decisions:
        return ""
    done = sum(one.decided for one in decisions)
    left = f", {len(decisions) - done} open" if done < len(decisions) else ""
    return f"{done} of {len(decisions)} comparisons decided{left}"


def log_ratio(before: Pair, after: Pair) -> Pair:
    """From where to where the logarithm of after ÷ before may lie; 0 where neither is more than nothing."""
    return logarithm_of(after[0], before[1]), logarithm_of(after[1], before[0])


def change_of(judged: Judged) -> Interval:
    """The change that logarithms of ratios stand for. What is judged lies within what the looks left."""
    value = min(max(judged.value, judged.low), judged.high)
    return Interval(*(share_of(one) for one in (value, judged.low, judged.high)))


def margin_of(smallest: float) -> Pair:
    """The logarithms of ratios between which a difference does not matter."""
    return (math.log(1 - smallest) if smallest < 1 else -math.inf), math.log1p(smallest)


def percent(share: float) -> str:
    """A change in percent with its sign: −38, +4.2."""
    if math.isinf(share):
        return "∞"
    return f"{'−' if share < 0 else '+'}{_share(abs(share))}"


def _share(share: float) -> str:
    return f"{100 * share:.1f}" if share < 0.095 else f"{100 * share:.0f}"


def _decision(
    step: Step,
    question: Question,
    before: Mapping[int, Entry],
    after: Mapping[int, Entry],
    axes: Sequence[Axis],
    spent: bool,
) -> Decision:
    metric = FIGURES[question.figure]
    pairs, widths = _pairs(before, after, metric.key)
    margin = max(question.smallest, statistics.median(widths)) if widths else question.smallest
    judged = judge(pairs, question.bounds, Method(question.method), margin_of(min(margin, 1.0)))
    outcome = judged.outcome
    if outcome is Outcome.OPEN and (spent or min(len(before), len(after)) >= question.blocks):
        outcome = Outcome.SPENT
    others = [axis for axis in axes if axis.key != step.axis.key]
    return Decision(
        step, metric, outcome, change_of(judged) if pairs else None, min(margin, 1.0), len(pairs), judged.looked,
        _more(judged, len(pairs), margin), ", ".join(f"{axis.name} {axis.label(step.before)}" for axis in others),
    )  # fmt: skip


def _pairs(before: Mapping[int, Entry], after: Mapping[int, Entry], key: str) -> tuple[list[Pair], list[float]]:
    """Logarithms of ratios in the order in which their pairs were completed, as looks saw them, and how exactly the
    figure is known in each, as a share of it."""
    found: list[tuple[str, Pair]] = []
    widths: list[float] = []
    for block in before.keys() & after.keys():
        one, other = before[block], after[block]
        values = bounds_of(one, key), bounds_of(other, key)
        if values[0] is not None and values[1] is not None:
            found.append((max(one.attempt, other.attempt), log_ratio(values[0], values[1])))
            widths += [1 - low / high for low, high in values if 0 < high < math.inf]  # type: ignore[misc]
    return [pair for _, pair in sorted(found)], widths


def _more(judged: Judged, pairs: int, margin: float) -> int | None:
    """Pairs till the last look's half width is as small as what it has to fit in."""
    if judged.outcome is not Outcome.OPEN or not math.isfinite(judged.half) or not judged.half:
        return None
    off = abs(judged.value)
    room = max(off, math.log1p(margin) - off)
    needed = pairs * (judged.half / room) ** 2 - pairs
    return max(1, math.ceil(needed)) if needed < _FARTHEST * pairs else None
