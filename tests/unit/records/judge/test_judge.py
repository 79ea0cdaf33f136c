"""Synthetic attempts judged end to end: figures of their records."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hdrh.histogram import HdrHistogram
from hdrh.log import HistogramLogReader

from faultline.engines.batches import write_batches
from faultline.engines.spark.engine import Spark
from faultline.records.judge.evidence import read_attempt
from faultline.records.judge.judge import failed_record, judge, judge_readonly
from faultline.records.judge.parts import lag_area_of_bins
from faultline.records.judge.signals import TopicSchedule
from faultline.records.store import validator
from tests.support.attempts import add_plan
from tests.unit.synthetic import (
    CONTROL,
    CORES,
    KILL,
    Scenario,
    Synthetic,
    checked,
    configure,
    edit_event,
    edit_json,
    edit_lines,
    edit_table,
    is_unknown,
)


def test_kill_has_limits_timeline_and_companion_events(killed: Path) -> None:
    record = checked(killed)
    assert judge(killed) == judge(killed)
    assert judge(killed).model_copy(update={"artifacts": {}}) == record.model_copy(update={"artifacts": {}})
    recovery = record.metrics.recovery
    # The commit before t6 is the last threshold violation.
    assert recovery.resolution_s == pytest.approx((KILL.t7 - KILL.t6) / 1e9 + 2.0)
    assert (recovery.recovered_within, recovery.hold_s) == (0.25, 10)
    assert recovery.latency_limit_ms == pytest.approx(1.25 * 2580, rel=0.01)
    assert recovery.lag_limit == pytest.approx(160, rel=0.02)  # 120 records plus a tenth of an interval
    assert recovery.plateau_ratio == pytest.approx(1, rel=0.01)
    assert recovery.replacement_up_s == pytest.approx(0.35 + 3, abs=0.001)
    names = [event.name for event in record.timeline]
    assert {"gate", *(f"t{n}" for n in range(8)), "replacement_up", "snapshot", "last_violation"} <= set(names)
    instants = [event.wall_ns for event in record.timeline]
    assert instants == sorted(instants)
    assert len({event.wall_ns - event.mono_ns for event in record.timeline}) == 1


def test_cpu_per_record_has_a_figure_for_each_phase(killed: Path) -> None:
    """The synthetic engine uses as many cores in each phase, without the victim's, at a constant rate."""
    phases = judge(killed).metrics.cpu_by_phase
    assert phases is not None
    engine_s = (CORES["driver"] + CORES["executors"] + CORES["python_workers"]) / 200 * 1e6
    assert phases.model_dump() == dict.fromkeys(("before", "during", "after"), pytest.approx(engine_s, rel=0.05))


def test_figures_of_a_control(tmp_path: Path) -> None:
    synthetic = Synthetic(Scenario(fault=False, lost=3))
    directory = synthetic.write(tmp_path)
    record = checked(directory)
    metrics = record.metrics
    assert is_unknown(metrics.recovery) and metrics.recoveries == [] and metrics.cpu_by_phase is None
    # The placebo test finds no violation in a control.
    assert metrics.placebo is not None and metrics.placebo.recovered is True
    assert metrics.placebo.macro_s is not None and 0 <= metrics.placebo.macro_s <= 2.0
    assert (metrics.placebo.reload_s, metrics.placebo.recovered_within) == (None, 0.25)
    assert metrics.throughput_rps == pytest.approx(200, rel=0.01)
    assert metrics.sustained is True
    assert metrics.effective_interval_s == pytest.approx(2.0, rel=0.01)
    assert metrics.cpu_cores.model_dump() == pytest.approx(CORES, abs=1e-3)
    assert metrics.rss_mb.executors == pytest.approx(200)
    # Two executors collect 10 ms per second each; the driver does not count.
    assert metrics.gc_s == pytest.approx(2 * 0.01 * (synthetic.window.duration_s + 3), rel=0.05)
    assert metrics.state_bytes.logical == round(3 * ((10 + 9) / 2 + 8))
    assert metrics.state_bytes.checkpoint == 1024
    assert metrics.audit.lost == 3
    audit = json.loads((directory / "audit.json").read_text())
    assert [(line["kind"], line["expected"] - line["final"]) for line in audit["offenders"]] == [("lost", 3)]
    assert metrics.cpu_by_host == {"h": pytest.approx(sum(CORES.values()) - CORES["generator"], abs=1e-3)}
    working = CORES["executors"] + CORES["python_workers"]
    assert metrics.rps_per_core == pytest.approx(metrics.throughput_rps / working, rel=1e-3)
    latency = metrics.latency_ms
    assert latency.count == 2 * 200 * synthetic.window.duration_s
    assert latency.max is not None and 2500 <= latency.max <= 2620
    assert latency.p50 is not None and latency.p99 is not None and latency.p50 < latency.p99 <= latency.max
    assert record.artifacts["series"] == f"attempts/{directory.name}/series.json"


def test_series_and_histogram_are_written_next_to_raw_files(killed: Path) -> None:
    metrics = judge(killed).metrics
    series = json.loads((killed / "series.json").read_text())
    assert set(series) == {"latency", "throughput", "lag", "cpu", "events", "warmup_s", "duration_s"}
    assert {event["name"] for event in series["events"]} >= {"t0", "t7"}
    assert set(series["cpu"][0]) == {"t_s", *CORES}
    assert set(series["latency"][0]) == {"t_s", "p50_ms", "p99_ms", "max_ms", "n"}
    log = HistogramLogReader(str(killed / "latency.hlog"), HdrHistogram(1, 3_600_000, 3))
    read = log.get_next_interval_histogram()
    log.close()
    assert metrics.latency_during_ms and metrics.latency_after_ms
    parts = (metrics.latency_ms, metrics.latency_during_ms, metrics.latency_after_ms)
    assert read.get_total_count() == sum(part.count or 0 for part in parts), "the histogram covers the whole window"
    assert read.get_max_value() == pytest.approx(max(part.max or 0 for part in parts), rel=0.002)


@pytest.mark.parametrize("victim", ["executor", "worker", "driver", "python_worker", "kafka"])
@pytest.mark.parametrize("recovers", [True, False])
def test_every_victim_is_recovered_or_censored(tmp_path: Path, victim: str, recovers: bool) -> None:
    synthetic = Synthetic(Scenario(victims=(victim,), recovers=recovers))
    metrics = checked(synthetic.write(tmp_path)).metrics
    recovery = metrics.recovery
    assert metrics.recoveries == [recovery]
    assert recovery.recovered is recovers
    synthetic.assert_given_back(recovery)
    # The lag exceeds its threshold at every observed commit.
    watched_s = pytest.approx((synthetic.window.end_ns - synthetic.t0) / 1e9, abs=2.0)
    assert recovery.censored_at_s == (None if recovers else watched_s)
    assert recovery.dip_depth is not None and 0.5 < recovery.dip_depth <= 1
    assert recovery.silence_s is not None and recovery.silence_s > recovery.reload_s
    assert recovery.lag_area_record_s is not None and recovery.lag_area_record_s > 0


def test_several_faults_have_separate_events(tmp_path: Path) -> None:
    synthetic = Synthetic(Scenario(victims=("executor", "driver")))
    directory = synthetic.write(tmp_path)
    record = checked(directory)
    assert record.metrics.recovery == record.metrics.recoveries[0]
    for number, recovery in enumerate(record.metrics.recoveries):
        synthetic.assert_given_back(recovery, number)
    at = {event.name: event.wall_ns for event in record.timeline}
    assert [at[name] for name in ("t0#2", "t2#2", "t7#2")] == [
        synthetic.hits[1].t0,
        synthetic.hits[1].t2,
        synthetic.hits[1].t7,
    ]
    assert "driver_restarted#2" in at and "driver_restarted" not in at
    series = json.loads((directory / "series.json").read_text())
    assert {event["name"] for event in series["events"]} == set(at)


def test_loss_without_state_is_a_figure_and_valid(tmp_path: Path) -> None:
    synthetic = Synthetic(Scenario(commit_mode="none", lost=400))
    metrics = checked(synthetic.write(tmp_path)).metrics
    assert metrics.audit.lost == 400
    assert metrics.recovery.load_s == 0
    assert metrics.recovery.reload_s == pytest.approx(synthetic.truth["reload_s"])
    assert metrics.latency_ms.unreflected > 0
    # Records skipped by the new state epoch are not throughput.
    assert metrics.throughput_rps < 199


@pytest.mark.parametrize(
    ("workload", "final", "known"),
    [("word_count", 0, True), ("word_count", -3, True), ("word_count", 1, False), ("pi", 1, True)],
)
def test_rank_latencies_are_unknown_after_overcounts(control: Path, workload: str, final: int, known: bool) -> None:
    """Overcounts do not matter if outputs identify their tuples; losses keep later ranks correct."""
    write_batches(control, CONTROL.commits, method="rank", reached={})
    edit_table(control / "harvest" / "counts.parquet", lambda rows: rows.assign(final=rows["expected"] + final))
    configure(control, workload=workload, state_mb=0)
    record = judge(control)
    validator().validate(record.as_dict())
    metrics = record.metrics
    assert metrics.latency_ms.method == "rank"
    figures = metrics.latency_ms.model_dump(exclude={"method", "batches"})
    assert all((value is not None) is known for value in figures.values())
    assert (metrics.throughput_rps is not None) is (metrics.rps_per_core is not None) is known
    assert metrics.effective_interval_s is not None and metrics.cpu_cores.executors is not None


def test_environment_holds_clock_offsets_of_hosts(killed: Path) -> None:
    assert judge(killed).environment.clock_offsets is None
    readings = [(0.5, 0.2), (0.003, 0.001)]
    clocks = [{"event": "clock", "host": "node-2", "offset_s": one, "round_trip_s": trip} for one, trip in readings]
    edit_lines(killed / "conductor.jsonl", lambda lines: [*clocks, *lines])
    offsets = checked(killed).as_dict()["environment"]["clock_offsets"]
    assert offsets == {"node-2": {"offset_s": 0.003, "round_trip_s": 0.001}}


@pytest.mark.parametrize(
    ("target", "readings", "ahead_ms", "expected"),
    [
        ("embedded", [0.01, 0.0105], 10, ("kafka", 1.0, False)),
        ("embedded", [0.01, 0.010500001], 10, ("kafka", 1.000001, True)),
        ("embedded", [0.01], 10, ("kafka", None, True)),
        ("embedded", [], 0, ("h", 0.0, False)),
        ("lab", [], 0, ("kafka", None, True)),
    ],
    ids=["certain", "uncertain", "not read at the end", "local clock", "target clock not read"],
)
def test_environment_holds_the_latency_clock(
    killed: Path, target: str, readings: list[float], ahead_ms: int, expected: tuple[str, float | None, bool]
) -> None:
    assert judge(killed).environment.latency_clock is None
    configure(killed, target=target)
    (killed / "harvest_config.json").write_text(json.dumps({"emitted_ahead_ms": ahead_ms}))
    clocks = [{"kind": "clock", "host": "kafka", "offset_s": one, "round_trip_s": 0.001} for one in readings]
    edit_lines(killed / "recorder.jsonl", lambda lines: [*clocks, *lines])
    record = judge(killed)
    validator().validate(record.as_dict())
    found = record.environment.latency_clock
    assert found is not None and found.ahead_ms == ahead_ms
    assert (found.host, found.uncertain_ms, found.uncertain) == expected


def test_failed_record_keeps_every_key(killed: Path) -> None:
    record = failed_record(read_attempt(killed), "failed", ["driver: it never came up"], killed)
    validator().validate(record.as_dict())
    assert record.status == "failed"
    assert record.metrics.recovery.model_dump().keys() == judge(killed).metrics.recovery.model_dump().keys()
    assert "recorder" in record.artifacts


def test_last_report_of_a_generator_counts(killed: Path) -> None:
    path, late = killed / "generator.jsonl", {"p50": 1, "p99": 900, "max": 900}

    def delayed_report(lines: list[Any]) -> Any:
        return {**lines[-1], "schedule_lag_ms": late, "end_offsets": {"0": 10**6, "1": 10**6}}

    edit_lines(path, lambda lines: [*lines[:-1], delayed_report(lines), lines[-1]])
    checked(killed)
    edit_lines(path, lambda lines: [*lines, delayed_report(lines)])
    assert checked(killed, "unmet", "drain-incomplete:").metrics.schedule_lag_ms.p99 == 900


def test_undrained_tuples_are_not_lost(killed: Path) -> None:
    """A partition that is ahead does not compensate one that is behind."""
    path = killed / "harvest" / "counts.parquet"
    edit_event(killed / "generator.jsonl", "done", end_offsets={"0": 5, "7": 9})  # far more is committed of partition 0
    behind = "drain-incomplete: 9 offsets not committed after the drain"
    audit = checked(killed, "unmet", behind).metrics.audit
    assert (audit.undrained, audit.lost, audit.overcounted) == (9, None, 0), (
        "older harvests do not count undrained tuples"
    )
    uncommitted = {"key": "beyond", "expected": 40, "undrained": 40}

    def with_uncommitted(rows: pd.DataFrame) -> pd.DataFrame:
        more = pd.DataFrame([{**dict.fromkeys(rows.columns, 0), **uncommitted}])
        return pd.concat([rows, more.astype(rows.dtypes.to_dict())])

    edit_table(path, lambda rows: with_uncommitted(rows.assign(undrained=0)))
    audit = checked(killed, "unmet", behind).metrics.audit
    assert (audit.undrained, audit.lost, audit.unexpected) == (9, 0, 0)
    edit_table(path, lambda rows: rows.replace({"undrained": {40: 30}}))
    assert checked(killed, "unmet", behind).metrics.audit.lost == 10, "ten of 40 were committed"


@pytest.mark.parametrize(("sent", "dropped"), [(0, 0), (3, 0), (0, 2), (3, 2)])
def test_late_records_are_reported_if_any(killed: Path, sent: int, dropped: int) -> None:
    edit_table(killed / "harvest" / "records.parquet", lambda rows: rows.assign(late=np.arange(len(rows)) < sent))
    edit_event(killed / "listener.jsonl", "progress", state={"rows": 3, "rows_dropped": dropped})
    late = judge(killed).metrics.late_records
    counts = None if late is None else (late.sent, late.dropped_rows)
    assert counts == ((sent, dropped) if sent or dropped else None)


def test_lag_area_of_a_rank_based_engine_uses_bins(killed: Path) -> None:
    """Commits of such an engine do not show its progress."""
    by_commits = TopicSchedule(KILL.records).lag_area(KILL.commits, KILL.t0, KILL.t7)
    assert judge_readonly(killed).record.metrics.recovery.lag_area_record_s == pytest.approx(by_commits)
    write_batches(killed, KILL.commits, method="rank", reached={})
    found = judge_readonly(killed)
    at = {event.name: event.wall_ns for event in found.record.timeline}
    area = lag_area_of_bins(found.signals.bins, at["t0"], at["t7"])
    assert area is not None and area != pytest.approx(by_commits, rel=0.01)
    assert found.record.metrics.recovery.lag_area_record_s == pytest.approx(area)


def test_commits_of_a_rank_based_engine_are_apart_from_its_bins(killed: Path) -> None:
    """Otherwise every interval would be held, and the phase would be that of a second."""
    by_batch = judge(killed)
    write_batches(killed, KILL.commits, method="rank", reached={})
    found = judge_readonly(killed)
    assert found.signals.resolution_s == 1.0
    assert found.record.metrics.effective_interval_s == by_batch.metrics.effective_interval_s
    assert found.record.metrics.recovery.phase == by_batch.metrics.recovery.phase
    configure(killed, checkpoint_interval_s=1.0)
    assert [one for one in judge(killed).reasons if one.startswith("interval-not-held: 2.0")]


@pytest.mark.parametrize("per_record", [False, True])
def test_recovery_without_latency_ends_by_lag(killed: Path, per_record: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unknown figures are null and have a reason. `per_record`: outputs do not come in batches, as on Flink."""
    before, why = judge(killed).metrics, {"latency_ms": "unidentified outputs", "audit": "no batch"}
    read = Spark.traces
    monkeypatch.setattr(Spark, "traces", lambda self, folder: replace(read(self, folder), per_record=per_record))
    edit_table(killed / "harvest" / "tuples.parquet", lambda rows: rows.iloc[:0])
    (killed / "harvest" / "notes.json").write_text(json.dumps(why))
    edit_json(killed / "batches.json", method="none")
    metrics = checked(killed).metrics
    recovery = metrics.recovery
    assert recovery.recovered is True and recovery.latency_limit_ms is None and recovery.plateau_ratio is None
    assert recovery.macro_s == pytest.approx((KILL.t6 - KILL.t0) / 1e9)
    assert recovery.reload_s == before.recovery.reload_s
    latency = metrics.latency_ms.model_dump()
    assert latency.pop("method") == "none" and set(latency.values()) == {None}
    assert is_unknown(metrics.audit) and metrics.not_measured == why
    assert metrics.throughput_rps == before.throughput_rps


def test_unmeasured_roles_of_a_target_are_null_with_reason(control: Path) -> None:
    why = {f"{figure}.{role}": "far" for figure in ("cpu_cores", "rss_mb") for role in ("kafka", "executors")}
    edit_json(control / "attempt.json", not_measured=why)
    add_plan(control)
    metrics = checked(control).metrics
    assert (metrics.cpu_cores.kafka, metrics.cpu_cores.executors, metrics.rss_mb.executors) == (None, None, None)
    assert metrics.cpu_cores.driver == pytest.approx(CORES["driver"], abs=1e-3)
    assert metrics.cpu_s_per_million is None
    assert metrics.not_measured == why and metrics.audit.lost == 0
