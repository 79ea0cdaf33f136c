"""The morning's note: what a night came to, as the note of its run in Airflow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from faultline.reports.headline import fitting, plain
from faultline.reports.pages import UI_PAGE

if TYPE_CHECKING:
    from faultline.comparison.gate.verdict import GateVerdict
    from faultline.comparison.nights import NightVerdict


def night_headline(verdict: NightVerdict, sweep_id: str) -> str:
    """What a night came to that was held against nights before it: the counts of its verdicts, what became worse, what
    kept it from a verdict, and what it can see."""
    from faultline.comparison.nights import power, summary

    parts = [f"**{verdict.night.day}**: {plain(summary(verdict))}"]
    parts += [f"**worse** {plain(reason)}" for reason in verdict.reasons()]
    parts += [plain(text) for text in (verdict.problem, power(verdict)) if text]
    return fitting(parts, _link(sweep_id))


def gate_headline(verdict: GateVerdict, kept: Mapping[str, Any], sweep_id: str) -> str:
    """What a night came to that was measured beside a baseline: what shuts the gate first, then what changed, by how
    much, how sure and since when, then how large a change would have been seen."""
    parts = [f"**{verdict.night.date[:10]}**: {plain(kept['summary'])}"]
    parts += [f"**red** {plain(problem)}" for problem in verdict.problems]
    for name, word in (("reasons", "worse"), ("suspicions", "suspected"), ("improvements", "better")):
        parts += [f"**{word}** {plain(line)}" for line in kept[name]]
    parts.append("would have been seen within two nights, four times in five: " + plain("; ".join(kept["visible"])))
    return fitting(parts, _link(sweep_id))


def _link(sweep_id: str) -> str:
    return f"[Results]({UI_PAGE}/sweeps/{quote(sweep_id, safe='')})"
