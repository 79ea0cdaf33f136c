"""Several injections of one fault in one run: each against its own baseline, and what spoils one of them alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from faultline.experiment.attempt import Attempt, write_json
from faultline.experiment.attempt_plan import read_plan
from faultline.records.judge.judge import judge
from faultline.records.record import Record
from faultline.records.store import validator
from faultline.system.journal import Line
from tests.unit.synthetic import NS, T0_NS, Scenario, Synthetic, edit_event, edit_lines, edit_table


@dataclass(frozen=True)
class Repeated:
    """A synthetic attempt whose fault was injected several times, and where it lies."""

    made: Synthetic
    folder: Path

    def journal(self, change: Callable[[list[Line]], Sequence[Line]]) -> None:
        edit_lines(self.folder / "conductor.jsonl", change)

    def judged(self, *codes: str) -> Record:
        """A record with such reasons."""
        record = judge(self.folder)
        validator().validate(record.as_dict())
        assert [reason.partition(":")[0] for reason in record.reasons] == list(codes)
        return record


def repeated(results: Path, **values: Any) -> Repeated:
    """Three injections, as the short form of a fault with `injections=3` leaves them."""
    made = Synthetic(Scenario(victims=("executor",) * 3, **values))
    folder = made.write(results)
    plan = read_plan(Attempt(folder))
    short = {"fault_plan": None, "fault": "executor", "fault_at_s": plan.faults[0].earliest_s, "injections": 3}
    order = replace(plan.order, config={**plan.order.config, **short})
    write_json(folder / "plan.json", replace(plan, order=order).as_mapping())
    one = Repeated(made, folder)
    one.journal(lambda lines: [*lines[:-1], *(_trigger(made, number) for number in (1, 2)), lines[-1]])
    return one


def _trigger(made: Synthetic, number: int) -> Line:
    normal_s = (made.hits[number - 1].t7 - made.hits[number - 1].t0) / NS
    told = {"normal_s": normal_s, "baseline_commits": 12, "phase": 0.1, "waited_s": 40.0}
    return {"event": "injection", "fault": number, "wall_ns": made.hits[number].t0 - NS, **told}


@pytest.fixture
def one(tmp_path: Path) -> Repeated:
    return repeated(tmp_path)


def settled(fault: int, **changes: Any) -> Callable[[list[Line]], list[Line]]:
    """What is said of a fault when it has settled."""

    def change(line: Line) -> Line:
        return line | changes if (line["event"], line.get("fault")) == ("settled", fault) else line

    return lambda lines: [change(line) for line in lines]


def test_each_injection_gives_back_what_was_planted(one: Repeated) -> None:
    record = one.judged()
    metrics, hits = record.metrics, one.made.hits
    assert record.status == "valid"
    for number, found in enumerate(metrics.recoveries):
        one.made.assert_given_back(found, number)
        assert (found.injection, found.at_s) == (number + 1, pytest.approx((hits[number].t0 - T0_NS) / NS))
        assert found.note is None
    assert [found.trigger is None for found in metrics.recoveries] == [True, False, False]
    assert metrics.recoveries[1].trigger is not None and metrics.recoveries[1].trigger.baseline_commits == 12
    # The engine is after each recovery what it was before.
    assert [found.drift_since_first_s for found in metrics.recoveries] == [None, 0.0, 0.0]
    assert metrics.injections is not None
    assert metrics.injections.model_dump() == {"planned": 3, "made": 3, "ended_early": None}
    assert metrics.recovery.macro_s == pytest.approx(sorted(found.macro_s or 0 for found in metrics.recoveries)[1])
    assert (metrics.recovery.injection, metrics.recovery.at_s, metrics.recovery.trigger) == (None, None, None)


def test_what_was_slow_is_the_time_of_all_recoveries_and_of_nothing_else(one: Repeated) -> None:
    metrics = one.judged().metrics
    during, after = metrics.latency_during_ms, metrics.latency_after_ms
    assert during is not None and after is not None and during.count is not None and after.count is not None
    lasted_s = sum((hit.t7 - hit.t0) / NS for hit in one.made.hits)
    tuples = 2 * one.made.s.rate
    # To a cell of production at either edge, and what waited for its batch when the fault came.
    assert during.count == pytest.approx(tuples * lasted_s, abs=3 * tuples * (2 + one.made.s.checkpoint_interval_s))
    whole = metrics.latency_ms.count or 0
    assert whole + during.count + after.count == pytest.approx(tuples * one.made.window.duration_s, abs=tuples)
    assert after.p50 == pytest.approx(metrics.latency_ms.p50, rel=0.02)
    assert during.max is not None and after.max is not None and during.max > after.max


def test_a_later_injection_that_went_wrong_says_nothing_against_the_others(one: Repeated) -> None:
    one.journal(settled(1, outcome="no-effect", detail="it had gone"))
    record = one.judged()
    assert record.status == "valid"
    first, second, third = record.metrics.recoveries
    assert (second.note, second.recovered, second.injection) == ("no-effect: it had gone", None, 2)
    assert first.recovered and third.recovered and third.macro_s is not None and first.macro_s is not None
    assert record.metrics.recovery.macro_s == pytest.approx((first.macro_s + third.macro_s) / 2)
    one.journal(lambda lines: [line for line in lines if (line["event"], line.get("fault")) != ("end_offsets", 2)])
    third = one.judged().metrics.recoveries[2]
    assert third.recovered is None and (third.note or "").startswith("timeline-incomplete: missing")


@pytest.mark.parametrize(
    ("fault", "outcome", "code"), [(0, "no-effect", "no-effect"), (1, "unknown", "fault-outcome-unknown")]
)
def test_the_first_injection_must_hold_and_no_effect_be_unknown(
    one: Repeated, fault: int, outcome: str, code: str
) -> None:
    one.journal(settled(fault, outcome=outcome))
    one.judged(code)


def test_injections_that_were_never_made_are_no_faults(one: Repeated) -> None:
    gone = {"event": "not_normal", "fault": 2, "signal": "lag", "value": 900.0, "limit": 500.0, "waited_s": 120.0}
    one.journal(lambda lines: [*(line for line in lines[:-1] if line.get("fault") != 2), gone, lines[-1]])
    metrics = one.judged().metrics
    assert len(metrics.recoveries) == 2
    made = metrics.injections
    assert made is not None and made.ended_early is not None
    assert (made.planned, made.made, made.ended_early.signal, made.ended_early.limit) == (3, 2, "lag", 500.0)


def test_a_baseline_of_its_own_that_is_too_short_is_noted_and_counts(one: Repeated) -> None:
    first_ns, second_ns = one.made.hits[0].t0, one.made.hits[1].t0
    edit_event(one.folder / "conductor.jsonl", "injection", normal_s=(second_ns - first_ns) / NS - 6.0)

    # The first recovery is not seen to end, so the journal tells when the engine was back: six seconds before.
    def slowed(tuples: pd.DataFrame) -> pd.DataFrame:
        slow = tuples["produced_ms"].between(first_ns // 10**6 + 1, second_ns // 10**6 - 6001)
        return tuples.assign(emitted_ms=tuples["emitted_ms"] + 5000 * slow)

    edit_table(one.folder / "harvest" / "tuples.parquet", slowed)
    record = one.judged()
    first, second, third = record.metrics.recoveries
    assert first.recovered is False
    assert (second.note or "").startswith("baseline-too-short: 3 bins") and second.recovered is not None
    assert third.note is None and record.metrics.recovery.recovered is not None


def test_the_window_begins_and_ends_where_the_conductor_says(tmp_path: Path) -> None:
    one = repeated(tmp_path, warmup_s=16.0)
    begin, end = T0_NS + 10 * NS, one.made.hits[2].t7 + 20 * NS
    told = {"event": "measured_from", "wall_ns": begin, "steady": True, "waited_s": 10.0, "commits": 4}
    one.journal(lambda lines: [told, *lines, {"event": "measured_until", "wall_ns": end}])
    record = one.judged()
    at = {event.name: event for event in record.timeline}
    assert (at["measured_from"].wall_ns, at["measured_until"].wall_ns) == (begin, end)
    assert at["measured_from"].source.startswith("conductor.jsonl")
    assert record.metrics.warmup is not None and record.metrics.warmup.waited_s == 10.0
    series = json.loads((one.folder / "series.json").read_text())
    assert (series["warmup_s"], series["duration_s"]) == (10.0, pytest.approx((end - begin) / NS))
    assert record.metrics.source_rps == pytest.approx(one.made.s.rate, rel=0.01)
