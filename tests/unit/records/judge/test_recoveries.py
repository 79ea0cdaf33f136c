"""Several injections in one run: own baselines, and reasons that affect a single injection."""

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
class RepeatedFault:
    """A synthetic attempt with several injections of one fault, and its folder."""

    synthetic: Synthetic
    folder: Path

    def edit_journal(self, change: Callable[[list[Line]], Sequence[Line]]) -> None:
        edit_lines(self.folder / "conductor.jsonl", change)

    def checked_record(self, *codes: str) -> Record:
        """Return the record after checking its schema and reason codes."""
        record = judge(self.folder)
        validator().validate(record.as_dict())
        assert [reason.partition(":")[0] for reason in record.reasons] == list(codes)
        return record


def repeated_fault(results: Path, **values: Any) -> RepeatedFault:
    """Write an attempt with three injections, configured in short form with `injections=3`."""
    synthetic = Synthetic(Scenario(victims=("executor",) * 3, **values))
    folder = synthetic.write(results)
    plan = read_plan(Attempt(folder))
    short = {"fault_plan": None, "fault": "executor", "fault_at_s": plan.faults[0].earliest_s, "injections": 3}
    order = replace(plan.order, config={**plan.order.config, **short})
    write_json(folder / "plan.json", replace(plan, order=order).as_mapping())
    one = RepeatedFault(synthetic, folder)
    one.edit_journal(lambda lines: [*lines[:-1], *(_trigger(synthetic, number) for number in (1, 2)), lines[-1]])
    return one


def _trigger(synthetic: Synthetic, number: int) -> Line:
    normal_s = (synthetic.hits[number - 1].t7 - synthetic.hits[number - 1].t0) / NS
    values = {"normal_s": normal_s, "baseline_commits": 12, "phase": 0.1, "waited_s": 40.0}
    return {"event": "injection", "fault": number, "wall_ns": synthetic.hits[number].t0 - NS, **values}


@pytest.fixture
def one(tmp_path: Path) -> RepeatedFault:
    return repeated_fault(tmp_path)


def edit_outcome(fault: int, **changes: Any) -> Callable[[list[Line]], list[Line]]:
    """Return a journal edit that changes the outcome of a fault."""

    def change(line: Line) -> Line:
        return line | changes if (line["event"], line.get("fault")) == ("settled", fault) else line

    return lambda lines: [change(line) for line in lines]


def test_each_injection_yields_the_planted_recovery(one: RepeatedFault) -> None:
    record = one.checked_record()
    metrics, hits = record.metrics, one.synthetic.hits
    assert record.status == "valid"
    for number, found in enumerate(metrics.recoveries):
        one.synthetic.assert_given_back(found, number)
        assert (found.injection, found.at_s) == (number + 1, pytest.approx((hits[number].t0 - T0_NS) / NS))
        assert found.note is None
    assert [found.trigger is None for found in metrics.recoveries] == [True, False, False]
    assert metrics.recoveries[1].trigger is not None and metrics.recoveries[1].trigger.baseline_commits == 12
    # The engine returns to its first baseline after each recovery.
    assert [found.drift_since_first_s for found in metrics.recoveries] == [None, 0.0, 0.0]
    assert metrics.injections is not None
    assert metrics.injections.model_dump() == {"planned": 3, "made": 3, "ended_early": None}
    assert metrics.recovery.macro_s == pytest.approx(sorted(found.macro_s or 0 for found in metrics.recoveries)[1])
    assert (metrics.recovery.injection, metrics.recovery.at_s, metrics.recovery.trigger) == (None, None, None)


def test_latency_during_recoveries_covers_exactly_their_time(one: RepeatedFault) -> None:
    metrics = one.checked_record().metrics
    during, after = metrics.latency_during_ms, metrics.latency_after_ms
    assert during is not None and after is not None and during.count is not None and after.count is not None
    lasted_s = sum((hit.t7 - hit.t0) / NS for hit in one.synthetic.hits)
    tuples = 2 * one.synthetic.s.rate
    # Tolerance: one production cell at each edge, and tuples waiting for their batch at the fault.
    assert during.count == pytest.approx(
        tuples * lasted_s, abs=3 * tuples * (2 + one.synthetic.s.checkpoint_interval_s)
    )
    whole = metrics.latency_ms.count or 0
    assert whole + during.count + after.count == pytest.approx(tuples * one.synthetic.window.duration_s, abs=tuples)
    assert after.p50 == pytest.approx(metrics.latency_ms.p50, rel=0.02)
    assert during.max is not None and after.max is not None and during.max > after.max


def test_invalid_later_injection_leaves_the_others_valid(one: RepeatedFault) -> None:
    one.edit_journal(edit_outcome(1, outcome="no-effect", detail="it had gone"))
    record = one.checked_record()
    assert record.status == "valid"
    first, second, third = record.metrics.recoveries
    assert (second.note, second.recovered, second.injection) == ("no-effect: it had gone", None, 2)
    assert first.recovered and third.recovered and third.macro_s is not None and first.macro_s is not None
    assert record.metrics.recovery.macro_s == pytest.approx((first.macro_s + third.macro_s) / 2)
    one.edit_journal(lambda lines: [line for line in lines if (line["event"], line.get("fault")) != ("end_offsets", 2)])
    third = one.checked_record().metrics.recoveries[2]
    assert third.recovered is None and (third.note or "").startswith("timeline-incomplete: missing")


@pytest.mark.parametrize(
    ("fault", "outcome", "code"), [(0, "no-effect", "no-effect"), (1, "unknown", "fault-outcome-unknown")]
)
def test_invalid_first_injection_or_unknown_outcome_invalidates_the_record(
    one: RepeatedFault, fault: int, outcome: str, code: str
) -> None:
    one.edit_journal(edit_outcome(fault, outcome=outcome))
    one.checked_record(code)


def test_abandoned_injections_are_not_faults(one: RepeatedFault) -> None:
    abandoned = {"event": "not_normal", "fault": 2, "signal": "lag", "value": 900.0, "limit": 500.0, "waited_s": 120.0}
    one.edit_journal(lambda lines: [*(line for line in lines[:-1] if line.get("fault") != 2), abandoned, lines[-1]])
    metrics = one.checked_record().metrics
    assert len(metrics.recoveries) == 2
    made = metrics.injections
    assert made is not None and made.ended_early is not None
    assert (made.planned, made.made, made.ended_early.signal, made.ended_early.limit) == (3, 2, "lag", 500.0)


def test_short_baseline_of_an_injection_is_noted_and_counts(one: RepeatedFault) -> None:
    first_ns, second_ns = one.synthetic.hits[0].t0, one.synthetic.hits[1].t0
    edit_event(one.folder / "conductor.jsonl", "injection", normal_s=(second_ns - first_ns) / NS - 6.0)

    # The first recovery is censored; according to the journal the engine was steady six seconds before.
    def slowed(tuples: pd.DataFrame) -> pd.DataFrame:
        slow = tuples["produced_ms"].between(first_ns // 10**6 + 1, second_ns // 10**6 - 6001)
        return tuples.assign(emitted_ms=tuples["emitted_ms"] + 5000 * slow)

    edit_table(one.folder / "harvest" / "tuples.parquet", slowed)
    record = one.checked_record()
    first, second, third = record.metrics.recoveries
    assert first.recovered is False
    assert (second.note or "").startswith("baseline-too-short: 3 commits") and second.recovered is not None
    assert third.note is None and record.metrics.recovery.recovered is not None


def test_window_bounds_are_read_from_the_scheduler_journal(tmp_path: Path) -> None:
    one = repeated_fault(tmp_path, warmup_s=16.0)
    begin, end = T0_NS + 10 * NS, one.synthetic.hits[2].t7 + 20 * NS
    values = {"event": "measured_from", "wall_ns": begin, "steady": True, "waited_s": 10.0, "commits": 4}
    one.edit_journal(lambda lines: [values, *lines, {"event": "measured_until", "wall_ns": end}])
    record = one.checked_record()
    at = {event.name: event for event in record.timeline}
    assert (at["measured_from"].wall_ns, at["measured_until"].wall_ns) == (begin, end)
    assert at["measured_from"].source.startswith("conductor.jsonl")
    assert record.metrics.warmup is not None and record.metrics.warmup.waited_s == 10.0
    series = json.loads((one.folder / "series.json").read_text())
    assert (series["warmup_s"], series["duration_s"]) == (10.0, pytest.approx((end - begin) / NS))
    assert record.metrics.source_rps == pytest.approx(one.synthetic.s.rate, rel=0.01)
