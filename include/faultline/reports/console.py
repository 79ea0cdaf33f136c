"""Summary of a sweep on standard output, as text or as JSON values."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from faultline.comparison.candidates import COSTS, Candidate
from faultline.comparison.effects import Effect, EffectVerdict
from faultline.comparison.recommendation import MIN_CONFIDENCE, Recommendation
from faultline.comparison.sweep_summary import InvalidRuns, SweepSummary
from faultline.records.format import NONE, WIDTH
from faultline.reports.views.allocation import allocation_json
from faultline.reports.views.sweep_summary import (
    SINGLE_RUNS_TEXT,
    capitalize_first,
    front_headings,
    front_rows,
    invalid_text,
    n_text,
    placebo_text,
    recommendation_lines,
    short_name,
    size_text,
    summary_lines,
    verdict_text,
)
from faultline.system.text import finite_or_none

_STYLES = {EffectVerdict.DIFFERS: "bold", EffectVerdict.EQUIVALENT: "", EffectVerdict.INCONCLUSIVE: "dim"}


def print_summary(summary: SweepSummary | None, invalid: InvalidRuns | None) -> None:
    """Print the summary. `invalid`: the invalid runs, with the effects that would result if they counted."""
    console = _console()
    console.print(Text("Summary", style="bold underline"))
    lines = summary_lines(summary) if summary else [] if invalid else ["No record has figures."]
    for line in [*lines, *([invalid_text(invalid)] if invalid else [])]:
        console.print(Padding(Text(line), (0, 0, 0, 4 if line.startswith("·") else 2)))


def print_recommendation(summary: SweepSummary) -> None:
    """Print the recommendation and the Pareto front."""
    console = _console()
    for line in [SINGLE_RUNS_TEXT] if summary.is_unrepeated else []:
        console.print(Text(line, style="yellow"))
    for number, line in enumerate(recommendation_lines(summary)):
        console.print(Text(line, style="" if number else "bold"))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("Configuration", overflow="fold")
    for heading in front_headings(summary):
        table.add_column(heading, justify="right")
    table.add_column("n", justify="right")
    table.add_column("Pareto front", overflow="fold")
    for name, figures, where, n in front_rows(summary):
        table.add_row(*map(Text, (name, *figures, str(n), where)))
    console.print(table)
    if summary.recoveries:
        console.print(Text(placebo_text(summary.placebo), style="dim"))


def print_effects(effects: Sequence[Effect]) -> None:
    """Print the effects along an axis as a table."""
    console = _console()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(capitalize_first(effects[0].axis.name), overflow="fold")
    for heading in ("Figure", "Change (95 %)"):
        table.add_column(heading, no_wrap=True)
    table.add_column("p", justify="right", no_wrap=True)
    table.add_column("n", no_wrap=True)
    table.add_column("Verdict", overflow="fold")
    for effect in effects:
        table.add_row(*map(Text, _cells(effect)), style=_STYLES[effect.verdict])
    console.print(table)


def _cells(effect: Effect) -> Iterator[str]:
    yield f"{effect.after} instead of {effect.before}"
    yield short_name(effect)
    yield size_text(effect)
    yield f"{effect.p:.2g}" if effect.found.freedom else NONE
    yield n_text(effect.found).removeprefix("n = ")
    yield verdict_text(effect)


def effects_json(effects: Sequence[Effect]) -> list[dict[str, Any]]:
    """Return the effects as JSON values: ratios as shares, recoveries in seconds, unknown or infinite ends as null."""
    return [
        {
            "axis": effect.axis.key,
            "before": effect.before,
            "after": effect.after,
            "metric": effect.metric.key,
            "fault": effect.fault or None,
            "unit": "share" if effect.ratio else effect.metric.unit,
            "change": _json_change(effect),
            "p": effect.p,
            "n": effect.found.n,
            "paired": effect.found.is_paired,
            "rows": len(effect.found.rows),
            "verdict": effect.verdict.value,
            "margin": math.expm1(effect.margin) if effect.ratio else effect.margin,
            "more_repetitions": effect.more_repetitions,
            "remark": effect.why or None,
        }
        for effect in effects
    ]


def summary_json(summary: SweepSummary) -> dict[str, Any]:
    """Return recommendation, front and effects as JSON values."""
    advice = summary.recommendation
    return {
        "told": bool(advice and advice.is_conclusive),
        "choose": None if advice is None or advice.best is None else _json_candidate(advice.best, advice),
        "sure": None if advice is None or advice.best is None else advice.confidence,
        "enough": MIN_CONFIDENCE,
        "second": None
        if advice is None or advice.runner_up is None
        else {**_json_candidate(advice.runner_up[0], advice), "share": advice.runner_up[1]},
        "experiments_to_tell": None if advice is None else advice.experiments,
        "repetitions": {"fewest": summary.min_repetitions, "most": summary.max_repetitions},
        "why": summary.why or None,
        "text": recommendation_lines(summary),
        "front": [
            {
                "configuration": entry.candidate.name,
                "config_ids": entry.candidate.config_ids,
                **{key: finite_or_none(value) for key, value in zip(summary.front.keys, entry.figures, strict=True)},
                "beaten_by": entry.dominated_by,
                "sure": entry.confidence,
                "certain": entry.is_certain,
            }
            for entry in summary.front.entries
        ],
        "effects": effects_json(summary.effects),
        "scatter": allocation_json(summary.allocation),
        "placebo": None
        if summary.placebo is None
        else {
            **{name: finite_or_none(value) for name, value in asdict(summary.placebo).items()},
            "relied_on": summary.placebo.is_reliable,
        },
    }


def _json_candidate(one: Candidate, advice: Recommendation) -> dict[str, Any]:
    costs = dict.fromkeys((advice.objective.minimise, *advice.objective.limits))
    return {
        "configuration": one.name,
        "config_ids": one.config_ids,
        **{key: None if (figure := one.figure(COSTS[key])) is None else finite_or_none(figure) for key in costs},
    }


def _json_change(effect: Effect) -> dict[str, float | None]:
    change = asdict(effect.found.change)
    return {
        name: math.expm1(known)
        if effect.ratio and (known := finite_or_none(value)) is not None
        else finite_or_none(value)
        for name, value in change.items()
    }


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
