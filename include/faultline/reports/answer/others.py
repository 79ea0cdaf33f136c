"""What unsound runs would add to an answer, in one line."""

from __future__ import annotations

from faultline.comparison.effects import Verdict
from faultline.comparison.unsound import Unsound
from faultline.reports.answer.words import by_step, trade_text, traded, uncapital
from faultline.system.text import counted


def unsound_text(unsound: Unsound) -> str:
    """What the unsound runs would add, in one line."""
    codes = ", ".join(f"{number} {code}" for code, number in sorted(unsound.codes.items(), key=lambda one: -one[1]))
    runs = counted(unsound.runs, "unsound run")
    head = f"{runs} ({codes}) {'does' if unsound.runs == 1 else 'do'} not count"
    if not unsound.usable:
        head = f"No run is usable, so nothing is claimed: {runs} ({codes})"
    steps = by_step(unsound.effects)
    if not steps:
        return f"{head}; {'it compares' if unsound.runs == 1 else 'they compare'} nothing."
    if len(steps) == 1:
        shown = traded(unsound.effects) or list(unsound.effects)
        whose = "Their figures" if not unsound.usable else "With it" if unsound.runs == 1 else "With them"
        return f"{head}. {whose}: {uncapital(trade_text(shown))}."
    decided = sum(effect.verdict is not Verdict.OPEN for effect in unsound.effects)
    return f"{head}. With them, {decided} of {len(unsound.effects)} effects would be decided."
