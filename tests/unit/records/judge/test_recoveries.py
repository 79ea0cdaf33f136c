"""Several injections of one fault in one run: each against its own baseline, and what spoils one of them alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from faultline.experiment.attempt import Attempt, write_json
from faultline.experiment.plan import read_plan
from faultline.records.judge import recoveries
from faultline.records.judge.judge import judge
from faultline.records.record import Record, committed_schema
from faultline.system.journal import Line, read_ended
from tests.unit.synthetic import NS, T0_NS, Scenario, Synthetic, write_lines

THREE = ("executor",) * 3
PARTS = ("detection_s", "redeploy_s", "load_s", "reload_s", "replay_s", "catchup_s", "macro_s")


@dataclass(frozen=True)
class Repeated:
    """A synthetic attempt whose fault was injected several times, and where it lies."""

    made: Synthetic
    folder: Path

    def journal(self, change: Callable[[list[Line]], Sequence[Line]]) -> None:
        """Changes the conductor's journal."""
        path = self.folder / "conductor.jsonl"
        write_lines(path, list(change(list(read_ended(path)))))

    def judged(self) -> Record:
        record = judge(self.folder)
        jsonschema.validate(record.as_dict(), committed_schema())
        return record


def repeated(results: Path, **values: Any) -> Repeated:
    """Three injections, as the short form of a fault with `injections=3` leaves them."""
    made = Synthetic(Scenario(victims=THREE, **values))
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


def test_each_injection_gives_back_what_was_planted(tmp_path: Path) -> None:
    one = repeated(tmp_path)
    record = one.judged()
    metrics, hits = record.metrics, one.made.hits
    assert (record.status, record.reasons) == ("valid", [])
    for number, found in enumerate(metrics.recoveries):
        for name in PARTS:
            assert getattr(found, name) == pytest.approx(one.made.truth_of(number)[name], abs=1e-6), (number, name)
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


def test_what_was_slow_is_the_time_of_all_recoveries_and_of_nothing_else(tmp_path: Path) -> None:
    one = repeated(tmp_path)
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


def test_a_later_injection_that_went_wrong_says_nothing_against_the_others(tmp_path: Path) -> None:
    one = repeated(tmp_path)

    def without_effect(lines: list[Line]) -> list[Line]:
        settled = {"event": "settled", "fault": 1, "outcome": "no-effect", "detail": "it had gone"}
        return [settled if line["event"] == "settled" and line["fault"] == 1 else line for line in lines]

    one.journal(without_effect)
    record = one.judged()
    assert (record.status, record.reasons) == ("valid", [])
    first, second, third = record.metrics.recoveries
    assert (second.note, second.recovered, second.injection) == ("no-effect: it had gone", None, 2)
    assert first.recovered and third.recovered and third.macro_s is not None and first.macro_s is not None
    assert record.metrics.recovery.macro_s == pytest.approx((first.macro_s + third.macro_s) / 2)


@pytest.mark.parametrize(("fault", "outcome", "code"), [(0, "no-effect", "no-effect"), (1, "unknown", "fault-unknown")])
def test_the_first_injection_must_hold_and_no_effect_be_unknown(
    tmp_path: Path, fault: int, outcome: str, code: str
) -> None:
    one = repeated(tmp_path)
    one.journal(
        lambda lines: [
            {**line, "outcome": outcome} if line["event"] == "settled" and line["fault"] == fault else line
            for line in lines
        ]
    )
    assert [reason.partition(":")[0] for reason in one.judged().reasons] == [code]


def test_a_broken_timeline_of_a_later_injection_is_its_own(tmp_path: Path) -> None:
    one = repeated(tmp_path)
    one.journal(lambda lines: [one for one in lines if not (one["event"] == "end_offsets" and one["fault"] == 2)])
    record = one.judged()
    assert record.reasons == []
    third = record.metrics.recoveries[2]
    assert third.recovered is None and (third.note or "").startswith("timeline-broken: missing")


def test_injections_that_were_never_made_are_no_faults(tmp_path: Path) -> None:
    one = repeated(tmp_path)
    gone = {"event": "not_normal", "fault": 2, "signal": "lag", "value": 900.0, "limit": 500.0, "waited_s": 120.0}

    def gave_up(lines: list[Line]) -> list[Line]:
        return [*(line for line in lines[:-1] if line.get("fault") != 2), gone, lines[-1]]

    one.journal(gave_up)
    record = one.judged()
    assert record.reasons == []
    assert len(record.metrics.recoveries) == 2
    made = record.metrics.injections
    assert made is not None and made.ended_early is not None
    assert (made.planned, made.made, made.ended_early.signal, made.ended_early.limit) == (3, 2, "lag", 500.0)


def test_a_baseline_of_its_own_that_is_too_short_is_noted_and_counts(tmp_path: Path) -> None:
    one = repeated(tmp_path)
    late_s = (one.made.hits[1].t0 - one.made.hits[0].t0) / NS - 6.0

    def late(lines: list[Line]) -> list[Line]:
        return [{**line, "normal_s": late_s} if line["event"] == "injection" else line for line in lines]

    one.journal(late)
    # The first recovery is not seen to end, so the journal tells when the engine was back: six seconds before.
    tuples = one.made.tuples
    slow = (tuples["produced_ms"] > one.made.hits[0].t0 // 10**6) & (
        tuples["produced_ms"] < one.made.hits[1].t0 // 10**6 - 6000
    )
    tuples.loc[slow, "emitted_ms"] += 5000
    tuples.to_parquet(one.folder / "harvest" / "tuples.parquet")
    record = one.judged()
    first, second, third = record.metrics.recoveries
    assert first.recovered is False
    assert (second.note or "").startswith("baseline-too-short: 3 bins") and second.recovered is not None
    assert third.note is None and record.metrics.recovery.recovered is not None


def test_two_state_epochs_that_commit_at_one_instant_are_too_short_a_baseline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only bin since the last recovery has no length: nothing is divided by it."""
    monkeypatch.setattr(recoveries, "between", lambda bins, *_: bins.tail(1).assign(start_ns=bins["end_ns"].iloc[-1]))
    _, second, third = repeated(tmp_path).judged().metrics.recoveries
    for found in (second, third):
        assert (found.note or "").startswith("baseline-too-short: 1 bins") and found.recovered


def test_the_window_begins_and_ends_where_the_conductor_says(tmp_path: Path) -> None:
    one = repeated(tmp_path, warmup_s=16.0)
    begin, end = T0_NS + 10 * NS, one.made.hits[2].t7 + 20 * NS
    told = {"wall_ns": begin, "steady": True, "waited_s": 10.0, "commits": 4}

    def moved(lines: list[Line]) -> list[Line]:
        return [{"event": "measured_from", **told}, *lines, {"event": "measured_until", "wall_ns": end}]

    one.journal(moved)
    record = one.judged()
    at = {event.name: event for event in record.timeline}
    assert (at["measured_from"].wall_ns, at["measured_until"].wall_ns) == (begin, end)
    assert at["measured_from"].source.startswith("conductor.jsonl")
    assert record.metrics.warmup is not None and record.metrics.warmup.waited_s == 10.0
    series = json.loads((one.folder / "series.json").read_text())
    assert (series["warmup_s"], series["duration_s"]) == (10.0, pytest.approx((end - begin) / NS))
    assert record.metrics.source_rps == pytest.approx(one.made.s.rate, rel=0.01)
