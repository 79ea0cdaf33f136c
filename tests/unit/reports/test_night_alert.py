"""What of a night is worth telling."""

from __future__ import annotations

from typing import Any

import pytest

from faultline.reports.notes import MOST_LINES, alert_of, not_begun

NIGHT = "2026-11-21T02:00:00+00:00"
WORSE, BETTER, ROWS = ["cpu +11 %"], ["p50 -7 %"], [{"name": "a", "p": 0.01}]


@pytest.mark.parametrize(
    ("verdict", "missing", "valid", "kind", "title"),
    [
        ({"reasons": [], "improvements": []}, 0, 10, None, ""),
        ({"reasons": WORSE, "improvements": BETTER}, 0, 10, "worse", "Night 2026-11-21: 1 figure worse"),
        ({"reasons": WORSE * 2}, 3, 7, "worse", "Night 2026-11-21: 2 figures worse"),
        ({"reasons": [], "beyond": WORSE}, 0, 10, "worse", "Night 2026-11-21: 1 figure beyond a limit"),
        ({"reasons": WORSE, "beyond": WORSE * 2}, 0, 10, "worse",
         "Night 2026-11-21: 2 figures beyond a limit, 1 figure worse"),
        ({"reasons": [], "improvements": BETTER}, 0, 10, "better", "Night 2026-11-21: 1 figure better"),
        ({"reasons": [], "improvements": BETTER}, 1, 9, "broken", "Night 2026-11-21: incomplete"),
        ({"reasons": [], "red": True, "problem": "too few pairs"}, 0, 10, "broken", "Night 2026-11-21: cannot tell"),
        ({"reasons": []}, 10, 0, "broken", "Night 2026-11-21: nothing valid"),
        (None, 0, 10, "broken", "Night 2026-11-21: incomplete"),
    ],
)  # fmt: skip
def test_worse_is_told_first_and_what_is_as_it_was_not_at_all(
    verdict: dict[str, Any] | None, missing: int, valid: int, kind: str | None, title: str
) -> None:
    told = alert_of(NIGHT, verdict, planned=10, missing=missing, valid=valid)
    assert (told.kind, told.title) == (kind, title) if told else kind is None
    if told and missing:
        assert f"{missing} of 10 cells without a valid record" in told.lines


def test_a_night_without_a_plan_and_one_that_did_not_begin_are_broken() -> None:
    told = alert_of(NIGHT, None, planned=0, missing=0, valid=0)
    assert told is not None and (told.kind, told.title) == ("broken", "Night 2026-11-21: not planned")
    told = not_begun(NIGHT, "night_weekly", 30)
    assert told.kind == "broken" and told.title == "Night 2026-11-21: not begun" and "switched on" in told.lines[0]


def test_the_figures_go_along_and_long_lists_are_cut() -> None:
    verdict = {"reasons": [f"figure {n}" for n in range(40)], "comparisons": ROWS}
    told = alert_of(NIGHT, verdict, planned=10, missing=0, valid=10)
    assert told is not None and told.figures == tuple(ROWS)
    assert len(told.lines) == MOST_LINES + 1 and told.lines[-1] == "and 28 more"
