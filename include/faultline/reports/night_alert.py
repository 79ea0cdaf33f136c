"""What of a night is worth telling: worse, better, or broken; and in which words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from faultline.system.text import counted

# A message is read on a phone: what is beyond stands on the page.
MOST_LINES = 12


@dataclass(frozen=True)
class Told:
    """What is told of a night: its kind, a title, lines below it, and the figures behind them."""

    kind: str
    title: str
    lines: tuple[str, ...]
    figures: tuple[Mapping[str, Any], ...] = ()


def alert_of(night: str, verdict: Mapping[str, Any] | None, *, planned: int, missing: int, valid: int) -> Told | None:
    """What to tell of a night, None where it is as it was.

    `verdict`: as it is kept in results/nights/, None where there is none; `planned`: cells, of which so many are
    `missing`, and `valid` records there are. What became worse is told before what is missing, and both are told.
    """
    day = night[:10]
    gap = f"{missing} of {counted(planned, 'cell')} without a valid record" if missing else ""
    if not planned:
        return Told("broken", f"Night {day}: not planned", ("nothing was measured; the note of its run says why",))
    if not valid:
        return Told("broken", f"Night {day}: nothing valid", _lines([gap, *_problems(verdict)]))
    beyond, worse, better = ((verdict or {}).get(key) or () for key in ("beyond", "reasons", "improvements"))
    figures = _figures(verdict)
    if beyond or worse:
        counts = [(len(beyond), "beyond a limit"), (len(worse), "worse")]
        what = ", ".join(f"{counted(number, 'figure')} {word}" for number, word in counts if number)
        return Told("worse", f"Night {day}: {what}", _lines([*beyond, *worse, gap]), figures)
    if gap or verdict is None or verdict.get("red"):
        why = "cannot tell" if not gap and verdict else "incomplete"
        return Told("broken", f"Night {day}: {why}", _lines([gap, *_problems(verdict)]), figures)
    if better:
        return Told("better", f"Night {day}: {counted(len(better), 'figure')} better", _lines(better), figures)
    return None


def not_begun(night: str, dag_id: str, minutes: int) -> Told:
    """What is told of a night that was due and did not begin."""
    return Told(
        "broken",
        f"Night {night[:10]}: not begun",
        (
            f"{dag_id} was due at {night} and has no plan {minutes} minutes later; is it switched on, and the "
            "scheduler up?",
        ),
    )


def _problems(verdict: Mapping[str, Any] | None) -> list[str]:
    return [str(verdict["problem"])] if verdict and verdict.get("problem") else []


def _figures(verdict: Mapping[str, Any] | None) -> tuple[Mapping[str, Any], ...]:
    """The rows of a verdict, of either kind of night."""
    return tuple((verdict or {}).get("cells") or (verdict or {}).get("comparisons") or ())


def _lines(texts: Sequence[str]) -> tuple[str, ...]:
    kept = [text for text in texts if text]
    more = len(kept) - MOST_LINES
    return (*kept[:MOST_LINES], *([f"and {more} more"] if more > 0 else []))
