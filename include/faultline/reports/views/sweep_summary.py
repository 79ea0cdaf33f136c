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
# From such a factor on a share is harder to read than the factor.
_FACTOR = 1.6
SINGLE_RUNS_TEXT = (
    f"Each configuration was measured once. A single run is noise, so nothing can be told yet: "
    f"measure with repetitions={MIN_REPETITIONS} or more; what is there is not measured again."
)


# The figures by which a step is chosen, and which one line tells of the only step; the others follow below.
HEADLINE_METRICS = (CPU_TOTAL, P50, MACRO)
# Heads the list of what is open.
INCONCLUSIVE_HEADING = "Undecided, and how many more repetitions of each configuration would tell"


def size_text(effect: Effect) -> str:
    """The change with its interval: `−38 % (−44 … −31)`, `× 1.9 (1.7 … 2.2)`, `+4.2 s (+1.0 … +7.9)`."""
    change = effect.found.change
    if math.isnan(change.value):
        return "unknown"
    if not effect.ratio:
        return f"{signed(change.value, 1)} s{_interval_text(change, lambda value: signed(value, 1))}"
    factor = Interval(*(_exp(value) for value in (change.value, change.low, change.high)))
    if factor.value < _FACTOR and (factor.high < _FACTOR * 2 or math.isinf(factor.high)):
        shares = Interval(*((value - 1) * 100 for value in (factor.value, factor.low, factor.high)))
        whole = 1 if abs(shares.value) < 10 else 0
        return f"{signed(shares.value, whole)} %{_interval_text(shares, lambda value: signed(value, whole))}"
    return f"× {_factor(factor.value)}{_interval_text(factor, _factor)}"


def effect_text(effect: Effect) -> str:
    """One figure of a step: `CPU −38 % (−44 … −31)`, `latency p99 differs by less than 4 %`."""
    name = SHORT_NAMES[effect.metric.key]
    if effect.verdict is EffectVerdict.EQUIVALENT:
        return f"{name} differs by less than {bound_text(effect)}"
    both = " (with the other parameters both ways)" if effect.has_opposite_rows else ""
    return f"{name} {size_text(effect)}{both}"


def bound_text(effect: Effect) -> str:
    """Beyond which a difference can be ruled out; of recoveries never less than how exactly they are known."""
    if not effect.ratio:
        return f"{math.ceil(effect.margin * 10) / 10:g} s"
    change = effect.found.change
    return f"{math.ceil(math.expm1(max(abs(change.low), abs(change.high))) * 1000) / 10:g} %"


def required_repetitions_text(effect: Effect) -> str:
    """What would settle an open effect: `about 7 more repetitions of each configuration would tell`."""
    short = required_repetitions(effect)
    return f"{short} of each configuration would tell" if effect.more_repetitions is not None else short


def required_repetitions(effect: Effect) -> str:
    """The same where a heading says what the number is."""
    parts = [effect.why] if effect.why else []
    if effect.more_repetitions is not None:
        parts.append(f"about {pluralize(effect.more_repetitions, 'more repetition')}")
    return "; ".join(parts) or "no number of repetitions that one would measure tells"


def step_lines(effects: Sequence[Effect]) -> list[tuple[str, str, str]]:
    """For each step: its name, what is decided of it with n, and what is open with what would tell it."""
    return [(step_text(same[0]), _decided_text(same), _inconclusive_text(same)) for same in group_by_step(effects)]


def group_by_step(effects: Sequence[Effect]) -> list[list[Effect]]:
    """The effects of each step, in order."""
    found: dict[tuple[str, str, str], list[Effect]] = {}
    for effect in effects:
        found.setdefault((effect.axis.key, effect.before, effect.after), []).append(effect)
    return list(found.values())


def step_text(effect: Effect) -> str:
    """`checkpoint interval 5 s instead of 2 s`."""
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
        f"{SHORT_NAMES[effect.metric.key]} {size_text(effect)}: {required_repetitions(effect)}"
        for effect in effects
        if effect.verdict is EffectVerdict.INCONCLUSIVE
    )


def headline_effects(effects: Sequence[Effect]) -> list[Effect]:
    """The effects of one line: those of the only step; none where there are several, whose lines come by verdict."""
    return (
        [effect for effect in effects if effect.metric.key in HEADLINE_METRICS]
        if len(group_by_step(effects)) == 1
        else []
    )


def remaining_effects(effects: Sequence[Effect]) -> list[Effect]:
    """The effects that `headline_lines` leaves out."""
    shown = headline_effects(effects)
    return [effect for effect in effects if effect not in shown]


def single_run_lines(effects: Sequence[Effect]) -> list[str]:
    """What single runs show, without any claim: a line a step."""
    shown = [effect for effect in effects if effect.metric.key in HEADLINE_METRICS]
    return [f"Seen so far: {lower_first(step_figures_text(same))}." for same in group_by_step(shown)]


def headline_lines(effects: Sequence[Effect]) -> list[str]:
    """The only step with all of its intervals, and how many more runs would settle what is open; else nothing."""
    shown = headline_effects(effects)
    if not shown:
        return []
    inconclusive = [effect for effect in shown if effect.verdict is EffectVerdict.INCONCLUSIVE]
    lines = [f"{step_figures_text(shown)}."]
    if inconclusive:
        required: dict[str, list[str]] = {}
        for effect in inconclusive:
            required.setdefault(_required_runs_text(effect), []).append(SHORT_NAMES[effect.metric.key])
        decided = "; ".join(f"{', '.join(names)} ({what})" for what, names in required.items())
        lines.append(f"Not shown yet: {decided}.")
    return lines


def step_figures_text(effects: Sequence[Effect]) -> str:
    """`Checkpoint interval 5 s instead of 2 s: CPU −29 % (−38 … −19), recovery +3.1 s (−0.5 … +6.8), n = 3 runs each`.

    `effects`: of one step, one at least.
    """
    figures = ", ".join(f"{SHORT_NAMES[effect.metric.key]} {size_text(effect)}" for effect in effects)
    return f"{capitalize_first(step_text(effects[0]))}: {figures}, {_runs_text(effects)}"


def _required_runs_text(effect: Effect) -> str:
    """`about 4 more runs of each would tell`."""
    parts = [effect.why] if effect.why else []
    if effect.more_repetitions is not None:
        parts.append(f"about {pluralize(effect.more_repetitions, 'more run')} of each would tell")
    return "; ".join(parts) or "no number of runs that one would measure tells"


def _runs_text(effects: Sequence[Effect]) -> str:
    """`n = 3 runs each`; where figures differ in it, of the one with the least."""
    found = min((effect.found for effect in effects), key=lambda one: one.n)
    if len(found.rows) > 1:
        return n_text(found)
    return f"n = {pluralize(found.n, 'run')} each"


def n_text(found: EffectEstimate) -> str:
    """`n = 12 pairs`; where repetitions do not pair, so many on either side."""
    if not found.is_paired:
        return f"n = {found.n} a side"
    return f"n = {found.n} {'pair' if found.n == 1 else 'pairs'}"


def recommendation_lines(summary: SweepSummary) -> list[str]:
    """The advice in a sentence or more; why there is none."""
    advice = summary.recommendation
    if advice is None:
        return [summary.why[0].upper() + summary.why[1:] + "."] if summary.why else []
    if advice.best is None:
        return [f"{unmet_limits_text(advice)}."]
    lines = []
    # Draws from a few runs say too little.
    is_ranked = advice.best.repetitions >= MIN_REPETITIONS
    share = f"; the best in {_share_text(advice.confidence)} of draws" if is_ranked else ""
    objective = capitalize_first(_objective_text(advice))
    choice = f"{advice.best.name} ({_cost_text(advice, advice.best)}{share})."
    if advice.is_conclusive:
        lines.append(f"{objective}: {choice}")
    else:
        lines.append(f"{objective}: inconclusive. {_required_experiments_text(advice)}")
        lines.append(f"{'Lowest median' if is_ranked else 'Ahead so far'}: {choice}")
    if advice.runner_up and share:
        second, often = advice.runner_up
        lines.append(f"Second: {second.name} ({_cost_text(advice, second)}; in {_share_text(often)}).")
    if len(summary.choice.circumstances) > 1:
        cases = "; ".join(summary.choice.circumstances)
        lines.append(f"Each configuration counts at its worst of these cases: {cases}.")
    if advice.unknown or summary.choice.incomplete:
        lacking = "; ".join([*advice.unknown, *summary.choice.incomplete])
        lines.append(f"Left out, since not all of it was measured: {lacking}.")
    if summary.choice.overloaded:
        lines.append(f"Left out, since it did not keep up with the load: {'; '.join(summary.choice.overloaded)}.")
    return lines


def unmet_limits_text(advice: Recommendation) -> str:
    """That no configuration is within the limits, which is the nearest, and by how much it misses; one line."""
    if advice.nearest is None:
        return "no configuration has all of these figures measured"
    misses = []
    for key, figure in advice.missed.items():
        limit = advice.objective.limits.get(key, math.inf)
        if math.isinf(figure):
            over = unit_text(key, advice.nearest.lower_bound(COSTS[key]))
            misses.append(f"{_COST_NAMES[key]} was not seen to end ({over} at least)")
        else:
            misses.append(f"{_COST_NAMES[key]} {unit_text(key, figure)}, {unit_text(key, figure - limit)} too much")
    return f"no configuration has {_limits_text(advice)}; the nearest is {advice.nearest.name}: {', '.join(misses)}"


def unit_text(cost: str, value: float) -> str:
    """A cost with its unit."""
    metric = BY_KEY[COSTS[cost]]
    return f"{metric.text(value)} {metric.unit}"


def _objective_text(advice: Recommendation) -> str:
    """`the least CPU with recovery under 30 s`."""
    limits = f" with {_limits_text(advice)}" if advice.objective.limits else ""
    return f"the least {_COST_NAMES[advice.objective.minimise]}{limits}"


def _limits_text(advice: Recommendation) -> str:
    if not advice.objective.limits:
        return f"a known {_COST_NAMES[advice.objective.minimise]}"
    return " and ".join(
        "a recovery that ends" if math.isinf(limit) else f"{_COST_NAMES[key]} under {unit_text(key, limit)}"
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
    """A share of draws, of which all are not certainty."""
    return "more than 99 %" if share > 0.99 else f"{share * 100:.0f} %"


def _required_experiments_text(advice: Recommendation) -> str:
    if advice.experiments is None:
        return "No feasible number of repetitions would decide."
    more = "experiment" if advice.experiments == 1 else "experiments"
    each = f"{advice.target_repetitions} repetitions of each that may be best"
    return f"About {advice.experiments:,} more {more} would tell ({each})."


def front_rows(summary: SweepSummary) -> list[tuple[str, list[str], str, int]]:
    """For each candidate: name, figures with units, where it stands, and repetitions."""
    rows = []
    for place in summary.front.entries:
        figures = []
        for key, value in zip(summary.front.keys, place.figures, strict=True):
            metric = BY_KEY[key]
            infinite = math.isinf(value)
            shown = place.candidate.lower_bound(key) if infinite else value
            figures.append(f"{'> ' * infinite}{metric.text(shown)} {metric.unit}")
        where = "on the front" if place.dominated_by is None else f"beaten by {place.dominated_by}"
        sure = "" if place.is_certain else ", not certain"
        rows.append((place.candidate.name, figures, where + sure, place.candidate.repetitions))
    return rows


def front_headings(summary: SweepSummary) -> list[str]:
    """The names of a front's figures."""
    return [capitalize_first(SHORT_NAMES[key]) for key in summary.front.keys]


def placebo_text(placebo: Placebo | None) -> str:
    """What the controls say of how far recoveries can be relied on."""
    if placebo is None:
        return "No control was measured, so how often the rule finds a recovery where nothing broke is unknown."
    macro = "not seen to end" if math.isinf(placebo.macro_s) else f"{placebo.macro_s:.1f} s"
    known = "" if placebo.resolution_s is None else f" (known to {placebo.resolution_s:.1f} s)"
    many = "1 control" if placebo.controls == 1 else f"{placebo.controls} controls"
    called = f"Of {many}, in which nothing broke, the rule calls {placebo.unrecovered} unrecovered"
    text = f"{called} ({placebo.share * 100:.0f} %); their median recovery is {macro}{known}."
    return text if placebo.is_reliable else f"{text} The recoveries here are not to be relied on."


def summary_lines(summary: SweepSummary) -> list[str]:
    """The whole answer, a line for each thing: effects, what is open, advice, and how far recoveries hold."""
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
    """The answer for a note, the most important first: how far it can be relied on, advice, effects."""
    if summary.is_unrepeated:
        return [SINGLE_RUNS_TEXT, *single_run_lines(summary.effects)]
    advice = recommendation_lines(summary) if summary.recommendation is not None else []
    trade, rest = headline_lines(summary.effects), remaining_effects(summary.effects)
    decided = [f"{step}: {decided}" for step, decided, _ in step_lines(rest) if decided]
    undecided = sum(effect.verdict is EffectVerdict.INCONCLUSIVE for effect in rest)
    doubt = summary.recoveries and summary.placebo is not None and not summary.placebo.is_reliable
    return [
        *(["the recoveries are not to be relied on"] if doubt else []),
        *trade,
        *advice[:1],
        *decided,
        *([f"{undecided} of {len(rest)} effects undecided"] if undecided and not trade else []),
    ]


def verdict_text(effect: Effect) -> str:
    """The verdict, and what would settle it where it is open."""
    if effect.verdict is EffectVerdict.INCONCLUSIVE:
        return f"inconclusive: {required_repetitions_text(effect)}"
    return f"less than {bound_text(effect)}" if effect.verdict is EffectVerdict.EQUIVALENT else effect.verdict.value


def lower_first(text: str) -> str:
    """With a small letter."""
    return text[:1].lower() + text[1:]


def capitalize_first(text: str) -> str:
    """With a capital letter."""
    return text[:1].upper() + text[1:]


def _exp(value: float) -> float:
    """The factor of a logarithm; an end that nobody knows stays infinite."""
    return math.exp(value) if abs(value) < 700 else value


def _factor(value: float) -> str:
    return f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def _interval_text(change: Interval, text: Callable[[float], str]) -> str:
    """The interval in parentheses; an end that nobody knows is left open."""
    low, high = (math.isfinite(end) for end in (change.low, change.high))
    if not low and not high:
        return ""
    if not high:
        return f" (at least {text(change.low)})"
    return f" ({text(change.low)} … {text(change.high)})" if low else f" (at most {text(change.high)})"


def invalid_text(invalid: InvalidRuns) -> str:
    """What the invalid runs would add, in one line."""
    codes = ", ".join(f"{number} {code}" for code, number in sorted(invalid.codes.items(), key=lambda one: -one[1]))
    runs = pluralize(invalid.runs, "invalid run")
    head = f"{runs} ({codes}) {'does' if invalid.runs == 1 else 'do'} not count"
    if not invalid.usable:
        head = f"No run is usable, so nothing is claimed: {runs} ({codes})"
    steps = group_by_step(invalid.effects)
    if not steps:
        return f"{head}; {'it compares' if invalid.runs == 1 else 'they compare'} nothing."
    if len(steps) == 1:
        shown = headline_effects(invalid.effects) or list(invalid.effects)
        whose = "Their figures" if not invalid.usable else "With it" if invalid.runs == 1 else "With them"
        return f"{head}. {whose}: {lower_first(step_figures_text(shown))}."
    decided = sum(effect.verdict is not EffectVerdict.INCONCLUSIVE for effect in invalid.effects)
    whose = "With it" if invalid.runs == 1 else "With them"
    return f"{head}. {whose}, {decided} of {len(invalid.effects)} effects would be decided."
