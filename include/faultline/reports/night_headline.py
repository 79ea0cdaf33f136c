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


def night_headline(verdict: NightVerdict, kept: Mapping[str, Any], sweep_id: str) -> str:
    """What a night came to that was held against nights before it: the counts of its verdicts, what is beyond a limit
    or became worse, what kept it from a verdict, and what it can see. `kept`: the verdict as it is kept."""
    from faultline.comparison.nights import power

    parts = [f"**{verdict.night.day}**: {plain(kept['summary'])}", *_promised(kept)]
    parts += [f"**worse** {plain(reason)}" for reason in verdict.reasons()]
    parts += [plain(text) for text in (verdict.problem, power(verdict)) if text]
    return fitting(parts, _link(sweep_id))


def gate_headline(verdict: GateVerdict, kept: Mapping[str, Any], sweep_id: str) -> str:
    """What a night came to that was measured beside a baseline: what shuts the gate first, then what changed, by how
    much, how sure and since when, then how large a change would have been seen."""
    parts = [f"**{verdict.night.date[:10]}**: {plain(kept['summary'])}"]
    parts += [f"**red** {plain(problem)}" for problem in verdict.problems]
    parts += _promised(kept)
    for name, word in (("reasons", "worse"), ("suspicions", "suspected"), ("improvements", "better")):
        parts += [f"**{word}** {plain(line)}" for line in kept[name]]
    parts.append("would have been seen within two nights, four times in five: " + plain("; ".join(kept["visible"])))
    return fitting(parts, _link(sweep_id))


def _promised(kept: Mapping[str, Any]) -> list[str]:
    """What is said of limits."""
    words = (("beyond", "beyond its limit"), ("doubtful", "limit in doubt"))
    return [f"**{word}** {plain(line)}" for key, word in words for line in kept.get(key, ())]


def _link(sweep_id: str) -> str:
    return f"[Results]({UI_PAGE}/sweeps/{quote(sweep_id, safe='')})"
