"""Texts of a sweep summary, shared by pages, reports, notes and the terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from faultline.comparison.candidates import COSTS, Candidate
from faultline.comparison.effects import P50, Effect, EffectVerdict
from faultline.comparison.recommendation import Recommendation
from faultline.comparison.statistics.estimate import MIN_REPETITIONS, EffectEstimate, Interval
from faultline.comparison.sweep_summary import InvalidRuns, Placebo, SweepSummary
from faultline.records.catalogue import BY_KEY, CPU_TOTAL, MACRO, metrics_in
from faultline.records.columns import Sheet
from faultline.records.format import signed
from faultline.reports.views.allocation import allocation_lines
from faultline.system.text import pluralize

SHORT_NAMES = {metric.key: metric.head(Sheet.ANSWER) for metric in metrics_in(Sheet.ANSWER)}
_COST_NAMES = {"cpu": "CPU", "recovery": "recovery", "latency": "latency p99", "latency_p50": "latency p50"}
# Changes by a smaller factor are shown in percent.
_FACTOR = 1.6
SINGLE_RUNS_TEXT = (
    f"Each configuration was measured once; single runs show no effects. "
    f"Measure with repetitions={MIN_REPETITIONS} or more; existing records are kept."
)
# Metrics in the headline of a sweep with a single step; the others follow below it.
HEADLINE_METRICS = (CPU_TOTAL, P50, MACRO)
INCONCLUSIVE_HEADING = "Inconclusive, with the additional repetitions required per configuration"


def short_name(effect: Effect) -> str:
    """Return the name of an effect's figure: `latency p99`, `recovery (executor kill)`."""
    name = SHORT_NAMES[effect.metric.key]
    return f"{name} ({effect.fault})" if effect.fault else name


def size_text(effect: Effect) -> str:
    """Return the change with its interval: `−38 % (−44 … −31)`, `× 1.9 (1.7 … 2.2)`, `+4.2 s (+1.0 … +7.9)`."""
    change = effect.found.change
    if math.isnan(change.value):
        return "unknown"
    if not effect.ratio:
        return f"{signed(change.value, 1)} s{_interval_text(change, lambda value: signed(value, 1))}"
    factor = Interval(*(_exp(value) for value in (change.value, change.low, change.high)))
    if factor.value < _FACTOR and (factor.high < _FACTOR * 2 or math.isinf(factor.high)):
        shares = Interval(*((value - 1) * 100 for value in (factor.value, factor.low, factor.high)))
        digits = 1 if abs(shares.value) < 10 else 0
        return f"{signed(shares.value, digits)} %{_interval_text(shares, lambda value: signed(value, digits))}"
    return f"× {_factor(factor.value)}{_interval_text(factor, _factor)}"


def effect_text(effect: Effect) -> str:
    """Return one effect of a step: `CPU −38 % (−44 … −31)`, `latency p99 differs by less than 4 %`."""
    if effect.verdict is EffectVerdict.EQUIVALENT:
        return f"{short_name(effect)} differs by less than {bound_text(effect)}"
    both = " (sign depends on the other parameters)" if effect.has_opposite_rows else ""
    return f"{short_name(effect)} {size_text(effect)}{both}"


def bound_text(effect: Effect) -> str:
    """Return the bound below which a difference counts as equivalent; for recoveries at least their resolution."""
    if not effect.ratio:
        return f"{math.ceil(effect.margin * 10) / 10:g} s"
    change = effect.found.change
    return f"{math.ceil(math.expm1(max(abs(change.low), abs(change.high))) * 1000) / 10:g} %"


def required_repetitions_text(effect: Effect) -> str:
    """Return what an inconclusive effect requires: `requires about 7 more repetitions of each configuration`."""
    short = required_repetitions(effect)
    return f"requires {short} of each configuration" if effect.more_repetitions is not None else short


def required_repetitions(effect: Effect) -> str:
    """Return what an inconclusive effect requires, for a list whose heading names the unit (repetitions)."""
    parts = [effect.why] if effect.why else []
    if effect.more_repetitions is not None:
        parts.append(f"about {pluralize(effect.more_repetitions, 'more repetition')}")
    return "; ".join(parts) or "no practical number of repetitions suffices"


def step_lines(effects: Sequence[Effect]) -> list[tuple[str, str, str]]:
    """Return name, decided effects with n, and inconclusive effects with required repetitions of each step."""
    return [(step_text(same[0]), _decided_text(same), _inconclusive_text(same)) for same in group_by_step(effects)]


def group_by_step(effects: Sequence[Effect]) -> list[list[Effect]]:
    """Group the effects by step, in order."""
    found: dict[tuple[str, str, str], list[Effect]] = {}
    for effect in effects:
        found.setdefault((effect.axis.key, effect.before, effect.after), []).append(effect)
    return list(found.values())


def step_text(effect: Effect) -> str:
    """Return `checkpoint interval 5 s instead of 2 s`."""
    return f"{effect.axis.noun} {effect.after} instead of {effect.before}"


def _decided_text(effects: Sequence[Effect]) -> str:
    decided = [effect for effect in effects if effect.verdict is not EffectVerdict.INCONCLUSIVE]
    if not decided:
        return ""
    sizes = {n_text(effect.found) for effect in decided}
    if len(sizes) == 1:
        return f"{', '.join(map(effect_text, decided))}, {sizes.pop()}"
    return ", ".join(f"{effect_text(effect)}, {n_text(effect.found)}" for effect in decided)


def _inconclusive_text(effects: Sequence[Effect]) -> str:
    return "; ".join(
        f"{short_name(effect)} {size_text(effect)}: {required_repetitions(effect)}"
        for effect in effects
        if effect.verdict is EffectVerdict.INCONCLUSIVE
    )


def headline_effects(effects: Sequence[Effect]) -> list[Effect]:
    """Return the headline effects of a sweep with a single step; empty for several steps."""
    if len(group_by_step(effects)) != 1:
        return []
    return [effect for effect in effects if effect.metric.key in HEADLINE_METRICS]


def remaining_effects(effects: Sequence[Effect]) -> list[Effect]:
    """Return the effects that `headline_lines` omits."""
    shown = headline_effects(effects)
    return [effect for effect in effects if effect not in shown]


def single_run_lines(effects: Sequence[Effect]) -> list[str]:
    """Return one line per step with the differences of single runs, which prove nothing."""
    shown = [effect for effect in effects if effect.metric.key in HEADLINE_METRICS]
    return [f"Single runs: {lower_first(step_figures_text(same))}." for same in group_by_step(shown)]


def headline_lines(effects: Sequence[Effect]) -> list[str]:
    """Return lines about the step of a sweep with a single step, with required runs; empty for several steps."""
    shown = headline_effects(effects)
    if not shown:
        return []
    lines = [f"{step_figures_text(shown)}."]
    if inconclusive := [effect for effect in shown if effect.verdict is EffectVerdict.INCONCLUSIVE]:
        required: dict[str, list[str]] = {}
        for effect in inconclusive:
            required.setdefault(_required_runs_text(effect), []).append(short_name(effect))
        decided = "; ".join(f"{', '.join(names)} ({what})" for what, names in required.items())
        lines.append(f"Inconclusive: {decided}.")
    return lines


def step_figures_text(effects: Sequence[Effect]) -> str:
    """Return `Checkpoint interval 5 s instead of 2 s: CPU −29 % (−38 … −19), …, n = 3 runs each`.

    `effects`: one or more effects of one step.
    """
    figures = ", ".join(f"{short_name(effect)} {size_text(effect)}" for effect in effects)
    return f"{capitalize_first(step_text(effects[0]))}: {figures}, {_runs_text(effects)}"


def _required_runs_text(effect: Effect) -> str:
    """Return `requires about 4 more runs of each`."""
    parts = [effect.why] if effect.why else []
    if effect.more_repetitions is not None:
        parts.append(f"requires about {pluralize(effect.more_repetitions, 'more run')} of each")
    return "; ".join(parts) or "no practical number of runs suffices"


def _runs_text(effects: Sequence[Effect]) -> str:
    """Return `n = 3 runs each`, with the smallest n of the effects."""
    found = min((effect.found for effect in effects), key=lambda one: one.n)
    if len(found.rows) > 1:
        return n_text(found)
    return f"n = {pluralize(found.n, 'run')} each"


def n_text(found: EffectEstimate) -> str:
    """Return `n = 12 pairs`, or `n = 12 a side` without pairs."""
    if not found.is_paired:
        return f"n = {found.n} a side"
    return f"n = {found.n} {'pair' if found.n == 1 else 'pairs'}"


def recommendation_lines(summary: SweepSummary) -> list[str]:
    """Return the recommendation in sentences, or the reason why there is none."""
    advice = summary.recommendation
    if advice is None:
        return [summary.why[0].upper() + summary.why[1:] + "."] if summary.why else []
    if advice.best is None:
        return [f"{unmet_limits_text(advice)}."]
    lines = []
    # Bootstrap draws from few runs are not informative.
    is_ranked = advice.best.repetitions >= MIN_REPETITIONS
    share = f"; best in {_share_text(advice.confidence)} of draws" if is_ranked else ""
    objective = capitalize_first(_objective_text(advice))
    choice = f"{advice.best.name} ({_cost_text(advice, advice.best)}{share})."
    if advice.is_conclusive:
        lines.append(f"{objective}: {choice}")
    else:
        lines.append(f"{objective}: inconclusive. {_required_experiments_text(advice)}")
        lines.append(f"{'Lowest median' if is_ranked else 'Currently lowest'}: {choice}")
    if advice.runner_up and share:
        second, often = advice.runner_up
        lines.append(f"Second: {second.name} ({_cost_text(advice, second)}; in {_share_text(often)}).")
    if len(summary.choice.circumstances) > 1:
        cases = "; ".join(summary.choice.circumstances)
        lines.append(f"Worst case over: {cases}.")
    if advice.unknown or summary.choice.incomplete:
        lacking = "; ".join([*advice.unknown, *summary.choice.incomplete])
        lines.append(f"Excluded for missing figures: {lacking}.")
    if summary.choice.overloaded:
        lines.append(f"Excluded because the load was not sustained: {'; '.join(summary.choice.overloaded)}.")
    return lines


def unmet_limits_text(advice: Recommendation) -> str:
    """Return one line that names the configuration nearest to the limits and by how much it exceeds each."""
    if advice.nearest is None:
        return "no configuration has all required figures"
    misses = []
    for key, figure in advice.missed.items():
        limit = advice.objective.limits.get(key, math.inf)
        if math.isinf(figure):
            over = unit_text(key, advice.nearest.lower_bound(COSTS[key]))
            misses.append(f"{_COST_NAMES[key]} censored (at least {over})")
        else:
            misses.append(
                f"{_COST_NAMES[key]} {unit_text(key, figure)}, {unit_text(key, figure - limit)} over the limit"
            )
    return f"no configuration has {_limits_text(advice)}; the nearest is {advice.nearest.name}: {', '.join(misses)}"


def unit_text(cost: str, value: float) -> str:
    """Return a cost with its unit."""
    metric = BY_KEY[COSTS[cost]]
    return f"{metric.text(value)} {metric.unit}"


def _objective_text(advice: Recommendation) -> str:
    """Return `lowest CPU with recovery under 30 s`."""
    limits = f" with {_limits_text(advice)}" if advice.objective.limits else ""
    return f"lowest {_COST_NAMES[advice.objective.minimise]}{limits}"


def _limits_text(advice: Recommendation) -> str:
    if not advice.objective.limits:
        return f"a known {_COST_NAMES[advice.objective.minimise]}"
    return " and ".join(
        "a completed recovery" if math.isinf(limit) else f"{_COST_NAMES[key]} under {unit_text(key, limit)}"
        for key, limit in advice.objective.limits.items()
    )


def _cost_text(advice: Recommendation, one: Candidate) -> str:
    decided = []
    for key in dict.fromkeys((advice.objective.minimise, *advice.objective.limits)):
        figure = one.figure(COSTS[key])
        if figure is not None and math.isfinite(figure):
            decided.append(f"{_COST_NAMES[key]} {unit_text(key, figure)}")
        elif figure is not None:
            decided.append(f"{_COST_NAMES[key]} > {unit_text(key, one.lower_bound(COSTS[key]))}")
    return ", ".join(decided)


def _share_text(share: float) -> str:
    """Return a share of bootstrap draws; 100 % of the draws is shown as more than 99 %."""
    return "more than 99 %" if share > 0.99 else f"{share * 100:.0f} %"


def _required_experiments_text(advice: Recommendation) -> str:
    if advice.experiments is None:
        return "No feasible number of repetitions would decide."
    more = "experiment" if advice.experiments == 1 else "experiments"
    each = f"{advice.target_repetitions} repetitions of each that may be best"
    return f"A decision requires about {advice.experiments:,} more {more} ({each})."


def front_rows(summary: SweepSummary) -> list[tuple[str, list[str], str, int]]:
    """Return name, figures with units, position and repetitions of each candidate."""
    rows = []
    for entry in summary.front.entries:
        figures = []
        for key, value in zip(summary.front.keys, entry.figures, strict=True):
            metric = BY_KEY[key]
            infinite = math.isinf(value)
            shown = entry.candidate.lower_bound(key) if infinite else value
            figures.append(f"{'> ' * infinite}{metric.text(shown)} {metric.unit}")
        where = "on the Pareto front" if entry.dominated_by is None else f"dominated by {entry.dominated_by}"
        sure = "" if entry.is_certain else ", uncertain"
        rows.append((entry.candidate.name, figures, where + sure, entry.candidate.repetitions))
    return rows


def front_headings(summary: SweepSummary) -> list[str]:
    """Return the names of the front's figures."""
    return [capitalize_first(SHORT_NAMES[key]) for key in summary.front.keys]


def placebo_text(placebo: Placebo | None) -> str:
    """Return the result of the placebo test: the recovery rule applied to controls."""
    if placebo is None:
        return "No control run was measured, so the false-positive rate of the recovery rule is unknown."
    macro = "censored" if math.isinf(placebo.macro_s) else f"{placebo.macro_s:.1f} s"
    known = "" if placebo.resolution_s is None else f" (resolution {placebo.resolution_s:.1f} s)"
    many = "1 control run" if placebo.controls == 1 else f"{placebo.controls} control runs"
    called = f"Placebo test: the recovery rule calls {placebo.unrecovered} of {many} unrecovered"
    text = f"{called} ({placebo.share * 100:.0f} %); the median recovery is {macro}{known}."
    return text if placebo.is_reliable else f"{text} The recoveries of this sweep are not reliable."


def summary_lines(summary: SweepSummary) -> list[str]:
    """Return the whole summary: effects, inconclusive effects, recommendation, allocation and placebo test."""
    if summary.is_unrepeated:
        lines = [SINGLE_RUNS_TEXT, *single_run_lines(summary.effects)]
    else:
        lines = headline_lines(summary.effects)
        decided = step_lines(remaining_effects(summary.effects))
        lines += [f"{capitalize_first(step)}: {decided}." for step, decided, _ in decided if decided]
        open_ones = [f"· {step}: {undecided}." for step, _, undecided in decided if undecided]
        lines += [f"{INCONCLUSIVE_HEADING}:", *open_ones] if open_ones else []
        lines += recommendation_lines(summary)
    if summary.allocation is not None:
        lines += allocation_lines(summary.allocation)
    if summary.recoveries:
        lines.append(placebo_text(summary.placebo))
    return lines


def short_summary(summary: SweepSummary) -> list[str]:
    """Return the summary for a note, most important first: reliability, headline, recommendation, effects."""
    if summary.is_unrepeated:
        return [SINGLE_RUNS_TEXT, *single_run_lines(summary.effects)]
    advice = recommendation_lines(summary) if summary.recommendation is not None else []
    trade, rest = headline_lines(summary.effects), remaining_effects(summary.effects)
    decided = [f"{step}: {decided}" for step, decided, _ in step_lines(rest) if decided]
    undecided = sum(effect.verdict is EffectVerdict.INCONCLUSIVE for effect in rest)
    doubt = summary.recoveries and summary.placebo is not None and not summary.placebo.is_reliable
    return [
        *(["the recoveries are not reliable"] if doubt else []),
        *trade,
        *advice[:1],
        *decided,
        *([f"{undecided} of {len(rest)} effects inconclusive"] if undecided and not trade else []),
    ]


def verdict_text(effect: Effect) -> str:
    """Return the verdict as text, with the required repetitions if it is inconclusive."""
    if effect.verdict is EffectVerdict.INCONCLUSIVE:
        return f"inconclusive: {required_repetitions_text(effect)}"
    return f"less than {bound_text(effect)}" if effect.verdict is EffectVerdict.EQUIVALENT else effect.verdict.value


def lower_first(text: str) -> str:
    """Return the text with a lower-case first letter."""
    return text[:1].lower() + text[1:]


def capitalize_first(text: str) -> str:
    """Return the text with an upper-case first letter."""
    return text[:1].upper() + text[1:]


def _exp(value: float) -> float:
    """Return the exponential; an unknown end, which is infinite, stays infinite."""
    return math.exp(value) if abs(value) < 700 else value


def _factor(value: float) -> str:
    return f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def _interval_text(change: Interval, text: Callable[[float], str]) -> str:
    """Return the interval in parentheses; an unknown end is omitted."""
    low, high = (math.isfinite(end) for end in (change.low, change.high))
    if not low and not high:
        return ""
    if not high:
        return f" (at least {text(change.low)})"
    return f" ({text(change.low)} … {text(change.high)})" if low else f" (at most {text(change.high)})"


def invalid_text(invalid: InvalidRuns) -> str:
    """Return one line with the effects that would result if the invalid runs counted."""
    codes = ", ".join(f"{number} {code}" for code, number in sorted(invalid.codes.items(), key=lambda one: -one[1]))
    runs = pluralize(invalid.runs, "invalid run")
    head = f"{runs} excluded ({codes})"
    if not invalid.usable:
        head = f"No usable run; {runs} excluded ({codes})"
    steps = group_by_step(invalid.effects)
    if not steps:
        return f"{head}."
    if len(steps) == 1:
        shown = headline_effects(invalid.effects) or list(invalid.effects)
        whose = "Their figures" if not invalid.usable else "With it" if invalid.runs == 1 else "With them"
        return f"{head}. {whose}: {lower_first(step_figures_text(shown))}."
    decided = sum(effect.verdict is not EffectVerdict.INCONCLUSIVE for effect in invalid.effects)
    whose = "With it" if invalid.runs == 1 else "With them"
    return f"{head}. {whose}, {decided} of {len(invalid.effects)} effects would be conclusive."
