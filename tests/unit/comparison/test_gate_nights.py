"""From plan and records to pairs, and the verdict in words: what the morning's note says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from faultline.comparison.gate.nights import paired_nights, paired_of, paired_verdict, reason, usual_primary
from faultline.comparison.gate.verdict import Finding, judge_gate
from faultline.experiment.config import parse_configuration
from faultline.experiment.matrix import PlannedCell
from faultline.experiment.night_file import NIGHTLY
from faultline.records.manifest import Baseline, Manifest
from faultline.records.record import Record
from faultline.records.summary import Entry
from faultline.reports.notes import MAX_NOTE, night_headline
from tests.unit.night_records import night_of
from tests.unit.pages_store import record
from tests.unit.sample_records import made_plan

CONFIG = parse_configuration({"fault": "none"})
PAIRS = 10


def plan(number: int, *, primary: str = "latency_ms.p50", spec: dict[str, Any] | None = None) -> Manifest:
    date = night_of(number)
    beside = Baseline(
        series=f"{date}.baseline", build="b0", spec=spec or {"revision": "v1.3"}, primary={CONFIG.config_id: primary}
    )
    cells = [PlannedCell(CONFIG, repetition, date) for repetition in range(PAIRS)]
    night = {"matrix": NIGHTLY, "series": date, "logical_date": date, "planned_at": date}
    return made_plan(cells, sweep_id=f"s{number}", baseline=beside, **night)


def both(number: int, slower: float, **other: Any) -> list[Record]:
    """A night's records of both builds."""
    rng, made = np.random.default_rng(number), []
    for repetition in range(PAIRS):
        for build, times in (("b0", 1.0), ("b1", 1 + slower)):
            series = night_of(number) + (".baseline" if build == "b0" else "")
            one = record(
                f"202611{number:02d}T02{repetition:02d}{build[1]}0Z-00000{build[1]}", sweep=f"s{number}", build=build,
                series=series, latency={"p50": 100 * times * (1 + 0.02 * rng.standard_normal())}, **other,
            )  # fmt: skip
            update = {"repetition": repetition, "config": CONFIG.model_dump(mode="json"), "config_id": CONFIG.config_id}
            made.append(one.model_copy(update=update))
    return made


def entries(*records: Record) -> list[Entry]:
    return [Entry.of(one) for one in records]


def test_repetitions_are_paired_and_what_is_unsound_or_of_another_build_is_left_out() -> None:
    found = both(1, 0.05)
    night = paired_of(plan(1), entries(*found))
    (cell,) = night.cells
    assert len(cell) == cell.planned == PAIRS and (night.build, night.baseline, night.problem) == ("b1", "b0", "")
    assert float(np.mean(cell.low)) == pytest.approx(np.log(1.05), abs=0.02)
    found[0] = found[0].model_copy(update={"status": "unsound"})
    found[3] = found[3].model_copy(update={"build": "b9"})
    assert len(paired_of(plan(1), entries(*found)).cells[0]) == PAIRS - 2
    again = found[0].model_copy(update={"status": "valid", "attempt": "20261101T050000Z-000000"})
    assert len(paired_of(plan(1), entries(*found, again)).cells[0]) == PAIRS - 1, "measured again, it counts"
    with pytest.raises(ValueError, match="has no baseline"):
        paired_of(plan(1).model_copy(update={"baseline": None}), [])


def test_a_side_that_is_missing_is_named_with_its_reason() -> None:
    found = both(1, 0.0)
    ours = [one for one in found if one.build == "b1"]
    assert paired_of(plan(1), entries(*ours)).problem.startswith("the baseline did not run: no attempt got as far")
    failed = [one.model_copy(update={"status": "failed", "reasons": ["x" * 900]}) for one in found if one.build == "b0"]
    problem = paired_of(plan(1), entries(*ours, *failed)).problem
    assert problem.startswith("the baseline did not run: xxx") and len(problem) < 240
    unsound = [one.model_copy(update={"status": "unsound", "reasons": ["disturbed"]}) for one in ours]
    night = paired_of(plan(1), entries(*unsound, *failed))
    assert night.problem == "tonight's build has no usable record: disturbed"


def test_the_note_says_what_changed_by_how_much_how_sure_since_when_and_what_would_have_been_seen() -> None:
    plans = [plan(1), plan(2), plan(3)]
    told = entries(*both(1, 0.0), *both(2, 0.06), *both(3, 0.06))
    nights = paired_nights(reversed(plans), told)
    assert [night.date for night in nights] == [night_of(number) for number in (1, 2, 3)]
    green, suspected, red = (judge_gate(nights[:number]) for number in (1, 2, 3))
    assert paired_verdict(green, {}).summary == "green: 1 no change seen; beside the baseline b0, in the same night"
    assert suspected.cells[0].finding is Finding.SUSPECTED and not suspected.red
    line = reason(red.cells[0])
    assert line.startswith("word_count: Latency p50 +") and "n = 10 pairs, q = 0.00" in line
    assert line.endswith("since 2026-11-02 (2 nights in a row)")
    kept = paired_verdict(red, {"revision": "v1.3"})
    assert kept.red and kept.reasons == (line,) and kept.baseline == {"build": "b0", "spec": "v1.3"}
    note = night_headline(kept, "s3")
    assert "**worse**" in note and "would have been seen within two nights" in note and len(note) <= MAX_NOTE
    shut = judge_gate(paired_nights([plan(1)], entries(*[one for one in both(1, 0.0) if one.build == "b1"])))
    assert "**red** the baseline did not run" in night_headline(paired_verdict(shut, {}), "s1")
    assert "unknown" in reason(shut.cells[0])


def test_recoveries_take_part_as_they_are_known() -> None:
    faulted = parse_configuration({"fault": "executor"})
    assert usual_primary(faulted) == "cpu_s_per_million.engine" and usual_primary(CONFIG) == "latency_ms.p50"
    night = paired_of(plan(1, primary="recovery.macro_s"), entries(*both(1, 0.0)))
    assert len(night.cells[0]) in (0, PAIRS) and all(
        a <= b for a, b in zip(night.cells[0].low, night.cells[0].high, strict=True)
    )
