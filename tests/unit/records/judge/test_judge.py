"""A synthetic attempt, judged end to end: a kill, a control, and what makes records unsound."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema
import pandas as pd
import pytest
from hdrh.histogram import HdrHistogram
from hdrh.log import HistogramLogReader

from faultline.engines.batches import write_batches
from faultline.experiment.config import parse_configuration
from faultline.records.judge.evidence import read_attempt
from faultline.records.judge.judge import failed_record, judge, judged
from faultline.records.judge.parts import lag_area_of_bins
from faultline.records.judge.signals import Schedule
from faultline.records.record import GarbagePart, Record, committed_schema
from faultline.system.journal import read_ended
from tests.unit.synthetic import CORES, NS, PRIMER, Scenario, Synthetic, write_lines

SHORT_NEXMARK = {"workload": "nexmark", "fault": "none", "warmup_s": 6.0, "checkpoint_interval_s": 2.0}


def test_a_kill_gives_back_what_was_planted(tmp_path: Path) -> None:
    made = Synthetic(Scenario())
    directory = made.write(tmp_path)
    record = judge(directory)
    jsonschema.validate(record.as_dict(), committed_schema())
    assert record.reasons == []
    assert record.status == "valid"
    recovery = record.metrics.recovery
    for name, value in made.truth.items():
        assert getattr(recovery, name) == pytest.approx(value, abs=1e-6), name
    assert recovery.recovered is True
    assert recovery.censored_at_s is None
    # The commit before t6 was the last thing that was seen out of its bound.
    assert recovery.resolution_s == pytest.approx((made.t7 - made.t6) / 1e9 + 2.0)
    assert (recovery.recovered_within, recovery.hold_s) == (0.25, 10)
    assert recovery.latency_limit_ms == pytest.approx(1.25 * 2580, rel=0.01)
    assert recovery.lag_limit == pytest.approx(160, rel=0.02)  # 120 records, and those of a tenth of an interval
    assert recovery.plateau_ratio == pytest.approx(1, rel=0.01)
    assert recovery.replacement_up_s == pytest.approx(0.35 + 3, abs=0.001)
    names = [event.name for event in record.timeline]
    assert {"gate", *(f"t{n}" for n in range(8)), "replacement_up", "snapshot", "last_out"} <= set(names)
    instants = [event.wall_ns for event in record.timeline]
    assert instants == sorted(instants)
    assert len({event.wall_ns - event.mono_ns for event in record.timeline}) == 1


def test_the_figures_of_a_control(tmp_path: Path) -> None:
    made = Synthetic(Scenario(fault=False, lost=3))
    directory = made.write(tmp_path)
    record = judge(directory)
    assert record.status == "valid", record.reasons
    metrics = record.metrics
    assert set(metrics.recovery.model_dump().values()) == {None}
    assert metrics.recoveries == []
    # The rule of the end finds nothing wrong with an engine that nothing happened to.
    assert metrics.placebo is not None and metrics.placebo.recovered is True
    assert metrics.placebo.macro_s is not None and 0 <= metrics.placebo.macro_s <= 2.0
    assert (metrics.placebo.reload_s, metrics.placebo.recovered_within) == (None, 0.25)
    assert metrics.throughput_rps == pytest.approx(200, rel=0.01)
    assert metrics.sustained is True
    assert metrics.effective_interval_s == pytest.approx(2.0, rel=0.01)
    for role, cores in CORES.items():
        assert getattr(metrics.cpu_cores, role) == pytest.approx(cores, abs=1e-3), role
    assert metrics.rss_mb.executors == pytest.approx(200)
    # two executors, each 10 ms per second; the driver's own collection is not theirs
    assert metrics.gc_s == pytest.approx(2 * 0.01 * (made.window.duration_s + 3), rel=0.05)
    assert metrics.state_bytes.logical == round(3 * ((10 + 9) / 2 + 8))
    assert metrics.state_bytes.checkpoint == 1024
    assert metrics.audit.lost == 3
    audit = json.loads((directory / "audit.json").read_text())
    assert [(line["kind"], line["expected"] - line["final"]) for line in audit["offenders"]] == [("lost", 3)]
    assert metrics.cpu_nodes == {"h": pytest.approx(sum(CORES.values()) - CORES["generator"], abs=1e-3)}
    working = CORES["executors"] + CORES["python_workers"]
    assert metrics.rps_per_core == pytest.approx(metrics.throughput_rps / working, rel=1e-3)
    latency = metrics.latency_ms
    assert latency.count == 2 * 200 * made.window.duration_s
    assert latency.max is not None and 2500 <= latency.max <= 2620
    assert latency.p50 is not None and latency.p99 is not None and latency.p50 < latency.p99 <= latency.max
    assert record.artifacts["series"] == f"attempts/{directory.name}/series.json"


def test_series_and_histogram_lie_beside_the_raw_files(tmp_path: Path) -> None:
    made = Synthetic(Scenario())
    directory = made.write(tmp_path)
    record = judge(directory)
    assert record.metrics.latency_during_ms and record.metrics.latency_after_ms
    series = json.loads((directory / "series.json").read_text())
    assert set(series) == {"latency", "throughput", "lag", "cpu", "events", "warmup_s", "duration_s"}
    assert {event["name"] for event in series["events"]} >= {"t0", "t7"}
    assert set(series["cpu"][0]) == {"t_s", *CORES}
    assert set(series["latency"][0]) == {"t_s", "p50_ms", "p99_ms", "max_ms", "n"}
    log = HistogramLogReader(str(directory / "latency.hlog"), HdrHistogram(1, 3_600_000, 3))
    read = log.get_next_interval_histogram()
    log.close()
    parts = (record.metrics.latency_ms, record.metrics.latency_during_ms, record.metrics.latency_after_ms)
    assert read.get_total_count() == sum(part.count or 0 for part in parts), "the histogram is the whole window's"
    assert read.get_max_value() == pytest.approx(max(part.max or 0 for part in parts), rel=0.002)


def test_judging_twice_gives_the_same_record(tmp_path: Path) -> None:
    directory = Synthetic(Scenario()).write(tmp_path)
    first = judge(directory)
    assert judge(directory).model_copy(update={"artifacts": {}}) == first.model_copy(update={"artifacts": {}})
    assert judge(directory) == judge(directory)


def test_a_recovery_that_never_comes_is_censored_and_valid(tmp_path: Path) -> None:
    made = Synthetic(Scenario(recovers=False))
    record = judge(made.write(tmp_path))
    recovery = record.metrics.recovery
    assert record.status == "valid", record.reasons
    assert recovery.recovered is False
    assert recovery.macro_s is None and recovery.catchup_s is None
    assert recovery.replay_s == pytest.approx(3.0)
    # The lag was out of its bound at every commit that was watched.
    assert recovery.censored_at_s == pytest.approx((made.window.end_ns - made.t0) / 1e9, abs=2.0)


def _edit(path: Path, event: str, **changes: Any) -> None:
    lines = [dict(line, **changes) if line.get("event") == event else line for line in read_ended(path)]
    write_lines(path, lines)


def _drop(path: Path, key: str, value: str) -> None:
    write_lines(path, [line for line in read_ended(path) if line.get(key) != value])


def _judged(directory: Path, status: str = "unsound") -> Record:
    record = judge(directory)
    assert record.status == status
    return record


def _late_generator(directory: Path, made: Synthetic) -> None:
    _edit(directory / "generator.jsonl", "done", schedule_lag_ms={"p50": 1, "p99": 73.2, "max": 90})


def _no_delivery(directory: Path, made: Synthetic) -> None:
    _drop(directory / "conductor.jsonl", "event", "delivered")


def _no_executor_logs(directory: Path, made: Synthetic) -> None:
    (directory / "spark-logs").rename(directory / "elsewhere")


def _idle_worker(directory: Path, made: Synthetic) -> None:
    lines = list(read_ended(directory / "conductor.jsonl"))
    lines[0]["victims"][0]["executors"] = []
    write_lines(directory / "conductor.jsonl", lines)


def _no_latency_before(directory: Path, made: Synthetic) -> None:
    made.tuples[made.tuples["batch"] > made.hit].to_parquet(directory / "harvest" / "tuples.parquet")


def _loss_in_control(directory: Path, made: Synthetic) -> None:
    lines = list(read_ended(directory / "recorder.jsonl"))
    lines[-2]["executors"][1]["removeTime"] = "2026-11-21T06:15:30.000GMT"
    write_lines(directory / "recorder.jsonl", lines)


@pytest.mark.parametrize(
    ("spoil", "scenario", "alone", "reason"),
    [
        (_late_generator, Scenario(), True, "schedule-lag: p99 73 ms > 50 ms"),
        (_no_delivery, Scenario(), False, "timeline-broken: missing: t0, no delivery was journalled"),
        (
            _no_executor_logs, Scenario(), True,
            "timeline-broken: missing: t3, though t7 was seen; missing: t4, though t7 was seen",
        ),
        (
            _idle_worker, Scenario(victims=("worker",)), True,
            "no-effect: the fault changed nothing (the worker hosted no executor of the run)",
        ),
        (
            _no_latency_before, Scenario(), False,
            "timeline-broken: missing: what is normal, no tuple was emitted before the fault",
        ),
        (_loss_in_control, Scenario(fault=False), True, "fault-in-control: executor 0 was lost"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_the_evidence_is_a_reason(
    tmp_path: Path, spoil: Callable[[Path, Synthetic], None], scenario: Scenario, alone: bool, reason: str
) -> None:
    made = Synthetic(scenario)
    directory = made.write(tmp_path)
    spoil(directory, made)
    record = _judged(directory)
    assert record.reasons == [reason] if alone else reason in record.reasons
    if spoil is _no_executor_logs:
        assert record.metrics.recovery.reload_s is None, "a gap is no recovery"


@pytest.mark.parametrize(
    ("name", "key", "value", "code"),
    [
        ("generator.jsonl", "event", "done", "generator-died"),
        ("recorder.jsonl", "kind", "stop", "recorder-died"),
        ("conductor.jsonl", "event", "done", "conductor-died"),
    ],
)
def test_what_nobody_watched_to_its_end_is_never_a_recovery(
    tmp_path: Path, name: str, key: str, value: str, code: str
) -> None:
    directory = Synthetic(Scenario()).write(tmp_path)
    _drop(directory / name, key, value)
    record = _judged(directory)
    assert [reason.split(":")[0] for reason in record.reasons] == [code]
    assert set(record.metrics.recovery.model_dump().values()) == {None}
    assert len(record.metrics.recoveries) == 1
    assert [event.name for event in record.timeline] == ["gate", "measured_from", "measured_until"]


@pytest.mark.parametrize("victim", ["worker", "driver", "python_worker", "kafka"])
@pytest.mark.parametrize("recovers", [True, False])
def test_every_victim_ends_as_recovered_or_censored(tmp_path: Path, victim: str, recovers: bool) -> None:
    made = Synthetic(Scenario(victims=(victim,), recovers=recovers))
    record = judge(made.write(tmp_path))
    assert (record.status, record.reasons) == ("valid", [])
    recovery = record.metrics.recovery
    assert record.metrics.recoveries == [recovery]
    assert recovery.recovered is recovers
    assert (recovery.censored_at_s is None) is recovers
    for name, value in made.truth.items():
        if recovers or name not in ("catchup_s", "macro_s"):
            assert getattr(recovery, name) == pytest.approx(value, abs=1e-6), name
    assert recovery.dip_depth is not None and 0.5 < recovery.dip_depth <= 1
    assert recovery.silence_s is not None and recovery.silence_s > recovery.reload_s
    assert recovery.lag_area_record_s is not None and recovery.lag_area_record_s > 0


def test_several_faults_are_told_apart(tmp_path: Path) -> None:
    made = Synthetic(Scenario(victims=("executor", "driver")))
    directory = made.write(tmp_path)
    record = judge(directory)
    assert (record.status, record.reasons) == ("valid", [])
    jsonschema.validate(record.as_dict(), committed_schema())
    assert record.metrics.recovery == record.metrics.recoveries[0]
    for number, recovery in enumerate(record.metrics.recoveries):
        for name, value in made.truth_of(number).items():
            assert getattr(recovery, name) == pytest.approx(value, abs=1e-6), (number, name)
    at = {event.name: event.wall_ns for event in record.timeline}
    assert [at[name] for name in ("t0#2", "t2#2", "t7#2")] == [made.hits[1].t0, made.hits[1].t2, made.hits[1].t7]
    assert "driver_restarted#2" in at and "driver_restarted" not in at
    series = json.loads((directory / "series.json").read_text())
    assert {event["name"] for event in series["events"]} == set(at)


def test_a_fault_that_changed_nothing_among_others_spoils_the_record_and_not_the_others(tmp_path: Path) -> None:
    made = Synthetic(Scenario(victims=("executor", "python_worker")))
    directory = made.write(tmp_path)
    (directory / "spark-logs" / "driver-0.log").unlink()
    record = _judged(directory)
    # without a lost task the worker was idle
    assert record.reasons == ["no-effect: fault 2 changed nothing (no task was lost)"]
    assert record.metrics.recoveries[0].reload_s == pytest.approx(made.truth["reload_s"])
    assert set(record.metrics.recoveries[1].model_dump().values()) == {None}


def test_what_throw_away_state_lost_is_a_number_and_no_defect(tmp_path: Path) -> None:
    made = Synthetic(Scenario(commit_mode="none", lost=400))
    record = judge(made.write(tmp_path))
    assert (record.status, record.reasons) == ("valid", [])
    assert record.metrics.audit.lost == 400
    assert record.metrics.recovery.load_s == 0
    assert record.metrics.recovery.reload_s == pytest.approx(made.truth["reload_s"])
    assert record.metrics.latency_ms.unreflected > 0
    # what the new lineage skipped is in nobody's throughput
    assert record.metrics.throughput_rps < 199


@pytest.mark.parametrize(
    ("workload", "final", "known"),
    [("word_count", 0, True), ("word_count", -3, True), ("word_count", 1, False), ("pi", 1, True)],
)
def test_ranks_tell_nothing_once_a_word_was_counted_twice(
    tmp_path: Path, workload: str, final: int, known: bool
) -> None:
    """Unless outputs name the tuple that they are of; a loss leaves outputs late, and later ones in step."""
    made = Synthetic(Scenario(fault=False))
    directory = made.write(tmp_path)
    write_batches(directory, made.commits, method="rank", reached={})
    counts = directory / "harvest" / "counts.parquet"
    pd.read_parquet(counts).assign(final=lambda rows: rows["expected"] + final).to_parquet(counts)
    _configure(directory, workload=workload, state_mb=0)
    metrics = judge(directory).metrics
    assert metrics.latency_ms.method == "rank"
    figures = metrics.latency_ms.model_dump(exclude={"method", "batches"})
    assert all((value is not None) is known for value in figures.values())
    assert (metrics.throughput_rps is not None) is (metrics.rps_per_core is not None) is known
    assert metrics.effective_interval_s is not None and metrics.cpu_cores.executors is not None
    jsonschema.validate(judge(directory).as_dict(), committed_schema())


def test_collection_of_garbage_is_read_from_the_logs_where_there_are_any(tmp_path: Path) -> None:
    made = Synthetic(Scenario(fault=False))
    directory = made.write(tmp_path)
    assert judge(directory).metrics.gc is None
    at = datetime.fromtimestamp((made.window.start_ns + NS) / NS, UTC)
    line = f"[{at:%Y-%m-%dT%H:%M:%S}.000+0000] GC(0) Pause Young (Normal) 9M->3M(64M) 250.000ms\n"
    logs = ["gc-driver-7.log", *(f"app-1/{executor}/gc.log" for executor in (0, 1))]
    for name in logs:
        (directory / "spark-logs" / name).write_text(f"[{at:%Y-%m-%dT%H:%M:%S}.000+0000] Using G1\n{line}")
    attempt = json.loads((directory / "attempt.json").read_text())
    roles = ("driver", "executors", "kafka")
    attempt["environment"]["jvm"] = {role: {"options": ["-Xmx1g"], "heap_mb": 1024} for role in roles}
    (directory / "attempt.json").write_text(json.dumps(attempt))
    record = judge(directory)
    assert (record.metrics.gc_s, record.metrics.gc) == (
        0.5, GarbagePart(driver_s=0.25, executors_s=0.5, pauses=3, longest_ms=250.0)
    )  # fmt: skip
    assert record.environment.jvm is not None
    assert {role: jvm.collector for role, jvm in record.environment.jvm.items()} == {
        "driver": "G1", "executors": "G1", "kafka": None
    }  # fmt: skip
    (directory / "spark-logs" / logs[-1]).unlink()
    assert judge(directory).metrics.gc_s is None


def _configure(directory: Path, **config: Any) -> None:
    attempt = json.loads((directory / "attempt.json").read_text())
    attempt["config"] |= config
    (directory / "attempt.json").write_text(json.dumps(attempt))


def test_the_clocks_of_other_hosts_stand_in_the_environment(tmp_path: Path) -> None:
    directory = Synthetic(Scenario()).write(tmp_path)
    assert judge(directory).environment.clock_offsets is None
    lines = list(read_ended(directory / "conductor.jsonl"))
    clocks = [
        {"event": "clock", "host": "node-2", "offset_s": 0.5, "round_trip_s": 0.2},
        {"event": "clock", "host": "node-2", "offset_s": 0.003, "round_trip_s": 0.001},
    ]
    write_lines(directory / "conductor.jsonl", [*clocks, *lines])
    record = judge(directory)
    jsonschema.validate(record.as_dict(), committed_schema())
    offsets = record.as_dict()["environment"]["clock_offsets"]
    assert offsets == {"node-2": {"offset_s": 0.003, "round_trip_s": 0.001}}


@pytest.mark.parametrize(
    ("end_s", "uncertain_ms", "unsure"), [(0.0105, 1.0, False), (0.010500001, 1.000001, True), (None, None, True)]
)
def test_by_whose_clock_latencies_end_stands_in_the_environment(
    tmp_path: Path, end_s: float | None, uncertain_ms: float | None, unsure: bool
) -> None:
    directory = Synthetic(Scenario()).write(tmp_path)
    assert judge(directory).environment.latency_clock is None
    (directory / "harvest_config.json").write_text(json.dumps({"emitted_ahead_ms": 10}))
    clocks = [{"kind": "clock", "host": "kafka", "offset_s": one, "round_trip_s": 0.001} for one in (0.01, end_s)]
    lines = list(read_ended(directory / "recorder.jsonl"))
    asked = [one for one in clocks if one["offset_s"] is not None]
    write_lines(directory / "recorder.jsonl", [*asked, *lines])
    record = judge(directory)
    jsonschema.validate(record.as_dict(), committed_schema())
    assert record.environment.latency_clock is not None
    assert record.environment.latency_clock.model_dump() == {
        "host": "kafka", "ahead_ms": 10, "uncertain_ms": uncertain_ms, "unsure": unsure
    }  # fmt: skip


@pytest.mark.parametrize(
    ("target", "host", "uncertain_ms", "unsure"), [("embedded", "h", 0.0, False), ("lab", "kafka", None, True)]
)
def test_a_clock_that_nobody_asked_is_exact_only_where_it_is_this_machines(
    tmp_path: Path, target: str, host: str, uncertain_ms: float | None, unsure: bool
) -> None:
    directory = Synthetic(Scenario()).write(tmp_path)
    _configure(directory, target=target)
    (directory / "harvest_config.json").write_text(json.dumps({"emitted_ahead_ms": 0}))
    found = judge(directory).environment.latency_clock
    assert found is not None
    assert found.model_dump() == {"host": host, "ahead_ms": 0, "uncertain_ms": uncertain_ms, "unsure": unsure}


@pytest.mark.parametrize(
    ("outcome", "code"), [("no-effect", "no-effect"), ("missed-window", "missed-window"), ("unknown", "fault-unknown")]
)
def test_a_fault_without_proven_effect_has_no_timeline(tmp_path: Path, outcome: str, code: str) -> None:
    directory = Synthetic(Scenario()).write(tmp_path)
    _edit(directory / "conductor.jsonl", "settled", outcome=outcome)
    record = _judged(directory)
    assert record.reasons[0].startswith(f"{code}:")
    assert set(record.metrics.recovery.model_dump().values()) == {None}
    assert not [event for event in record.timeline if event.name.startswith("t")]


def test_nothing_to_load_sets_t3_and_t4_to_the_first_launch(tmp_path: Path) -> None:
    made = Synthetic(Scenario(nothing_to_load=True))
    recovery = judge(made.write(tmp_path)).metrics.recovery
    assert recovery.load_s == 0
    assert recovery.reload_s == pytest.approx(made.truth["reload_s"])


def test_a_failed_record_keeps_every_key(tmp_path: Path) -> None:
    directory = Synthetic(Scenario()).write(tmp_path)
    record = failed_record(read_attempt(directory), "failed", ["driver: it never came up"], directory)
    jsonschema.validate(record.as_dict(), committed_schema())
    assert record.status == "failed"
    assert record.metrics.recovery.model_dump().keys() == judge(directory).metrics.recovery.model_dump().keys()
    assert "recorder" in record.artifacts


def test_the_last_word_of_a_generator_counts(tmp_path: Path) -> None:
    directory = Synthetic(Scenario()).write(tmp_path)
    lines = list(read_ended(directory / "generator.jsonl"))
    (done,) = (line for line in lines if line.get("event") == "done")
    early = {**done, "schedule_lag_ms": {"p50": 1, "p99": 900, "max": 900}, "end_offsets": {"0": 10**6, "1": 10**6}}
    write_lines(directory / "generator.jsonl", [*lines[: lines.index(done)], early, *lines[lines.index(done) :]])
    assert judge(directory).reasons == []
    write_lines(directory / "generator.jsonl", [*lines, early])
    codes = [reason.split(":")[0] for reason in _judged(directory).reasons]
    assert codes == ["schedule-lag", "drain-incomplete"]


def test_a_partition_that_is_ahead_makes_up_for_none_that_is_behind(tmp_path: Path) -> None:
    directory = Synthetic(Scenario()).write(tmp_path)
    _edit(directory / "generator.jsonl", "done", end_offsets={"0": 5, "7": 9})  # of 0 far more is committed than that
    found = _judged(directory, "unmet")
    assert found.reasons == ["drain-incomplete: 9 offsets not committed after the drain"]
    audit = found.metrics.audit
    assert (audit.undrained, audit.lost, audit.overcounted) == (9, None, 0), "a harvest from before cannot tell"


def test_what_was_not_processed_is_not_lost(tmp_path: Path) -> None:
    directory = Synthetic(Scenario()).write(tmp_path)
    _edit(directory / "generator.jsonl", "done", end_offsets={"7": 9})
    path = directory / "harvest" / "counts.parquet"
    counts = pd.read_parquet(path).assign(undrained=0)
    more = pd.DataFrame([{**dict.fromkeys(counts.columns, 0), "key": "beyond", "expected": 40, "undrained": 40}])
    pd.concat([counts, more.astype(counts.dtypes.to_dict())]).to_parquet(path)
    audit = _judged(directory, "unmet").metrics.audit
    assert (audit.undrained, audit.lost, audit.wrong) == (9, 0, 0)
    pd.concat([counts, more.assign(undrained=30).astype(counts.dtypes.to_dict())]).to_parquet(path)
    assert _judged(directory, "unmet").metrics.audit.lost == 10, "ten of them were committed"


@pytest.mark.parametrize(("sent", "dropped"), [(0, 0), (3, 0), (0, 2), (3, 2)])
def test_late_records_are_told_when_there_were_any(tmp_path: Path, sent: int, dropped: int) -> None:
    directory = Synthetic(Scenario()).write(tmp_path)
    path = directory / "harvest" / "records.parquet"
    records = pd.read_parquet(path)
    records["late"] = [number < sent for number in range(len(records))]
    records.to_parquet(path)
    _edit(directory / "listener.jsonl", "progress", state={"rows": 3, "rows_dropped": dropped})
    late = judge(directory).metrics.late
    told = None if late is None else (late.sent, late.dropped_rows)
    assert told == ((sent, dropped) if sent or dropped else None)


def test_what_others_had_of_the_machine_is_read_from_the_samples_of_the_machine(tmp_path: Path) -> None:
    made = Synthetic(Scenario(fault=False))
    directory = made.write(tmp_path)
    assert judge(directory).metrics.cpu_besides.others is None  # type: ignore[union-attr]
    spent_s = (sum(CORES.values()) + 0.25) * made.window.duration_s
    machine = [
        {"kind": "machine", "wall_ns": made.window.start_ns, "busy_s": 70.0, "stolen_s": 3.0},
        {"kind": "machine", "wall_ns": made.window.end_ns, "busy_s": 70.0 + spent_s, "stolen_s": 3.0},
    ]
    write_lines(directory / "recorder.jsonl", [*machine, *read_ended(directory / "recorder.jsonl")])
    besides = judge(directory).metrics.cpu_besides
    assert besides is not None and (besides.others, besides.stolen) == (pytest.approx(0.25, abs=0.01), 0.0)


@pytest.mark.parametrize(("late_ns", "backlog"), [(0, 0), (1, 2 * PRIMER)])
def test_the_primer_must_be_committed_when_the_gate_opens(tmp_path: Path, late_ns: int, backlog: int) -> None:
    """The newest commit at T0 tells, and one at T0 is one of them."""
    made = Synthetic(Scenario())
    directory = made.write(tmp_path)
    content = json.loads((directory / "batches.json").read_text())
    first = content["batches"][0]
    assert first["end_offsets"] == {"0": PRIMER, "1": PRIMER}
    first["committed_wall_ns"] = made.window.t0_ns + late_ns
    (directory / "batches.json").write_text(json.dumps(content))
    assert judge(directory).reasons == (
        [f"backlog-at-t0: {backlog} offsets of the primer not committed at T0"] if backlog else []
    )
    earlier = {**first, "batch": -1, "end_offsets": {"0": 0, "1": 0}, "committed_wall_ns": made.window.t0_ns - NS}
    content["batches"].insert(0, earlier)
    (directory / "batches.json").write_text(json.dumps(content))
    assert len(judge(directory).reasons) == bool(backlog)


@pytest.mark.parametrize("after", [0, 1, 2])
def test_without_a_schedule_the_last_batch_is_to_be_committed_after_the_window(tmp_path: Path, after: int) -> None:
    """Else what it used was measured, and what it did counts for nothing."""
    made = Synthetic(Scenario(fault=False))
    directory = made.write(tmp_path)
    own = parse_configuration({**SHORT_NEXMARK, "duration_s": made.s.duration_s})
    assert not own.paced
    _configure(directory, **own.model_dump(mode="json"))
    write_lines(directory / "generator.jsonl", [])
    inside = sum(commit.committed_ns < made.end_ns for commit in made.commits)
    write_batches(directory, made.commits[: inside + after], method="id", reached={})
    lost = [
        reason for reason in judge(directory).reasons if reason.startswith("drain-incomplete: nothing was committed")
    ]
    assert len(lost) == (not after)


def test_the_lag_of_an_engine_with_records_is_that_between_its_bins(tmp_path: Path) -> None:
    """Whose commits, if it has any, say nothing of what it has done."""
    made = Synthetic(Scenario())
    directory = made.write(tmp_path)
    assert judged(directory).record.metrics.recovery.lag_area_record_s == pytest.approx(by_commits(made))
    write_batches(directory, made.commits, method="rank", reached={})
    found = judged(directory)
    at = {event.name: event.wall_ns for event in found.record.timeline}
    area = lag_area_of_bins(found.signals.bins, at["t0"], at["t7"])
    assert area is not None and area != pytest.approx(by_commits(made), rel=0.01)
    assert found.record.metrics.recovery.lag_area_record_s == pytest.approx(area)


def by_commits(made: Synthetic) -> float:
    """Of a planted recovery, from the schedule and the commits."""
    return Schedule(made.records).lag_area(made.commits, made.t0, made.t7)


def test_of_a_job_whose_outputs_tell_nothing_lag_says_when_it_is_over(tmp_path: Path) -> None:
    """And what is not known is null, with the reason beside it."""
    made = Synthetic(Scenario())
    directory = made.write(tmp_path)
    before = judge(directory)
    tuples = pd.read_parquet(directory / "harvest" / "tuples.parquet")
    tuples.iloc[:0].to_parquet(directory / "harvest" / "tuples.parquet")
    (directory / "harvest" / "notes.json").write_text(
        json.dumps({"latency_ms": "no output tells", "audit": "no batch"})
    )
    document = json.loads((directory / "batches.json").read_text())
    (directory / "batches.json").write_text(json.dumps({**document, "method": "none"}))
    record = judge(directory)
    jsonschema.validate(record.as_dict(), committed_schema())
    assert record.status == "valid", record.reasons
    recovery, metrics = record.metrics.recovery, record.metrics
    assert recovery.recovered is True and recovery.latency_limit_ms is None and recovery.plateau_ratio is None
    assert recovery.macro_s == pytest.approx((made.t6 - made.t0) / 1e9)
    assert recovery.reload_s == before.metrics.recovery.reload_s
    latency = metrics.latency_ms.model_dump()
    assert latency.pop("method") == "none" and set(latency.values()) == {None}
    assert set(metrics.audit.model_dump().values()) == {None}
    assert metrics.not_measured == {"latency_ms": "no output tells", "audit": "no batch"}
    assert metrics.throughput_rps == before.metrics.throughput_rps


def test_what_is_out_of_sight_on_a_target_is_null_with_its_reason_and_not_0(tmp_path: Path) -> None:
    directory = Synthetic(Scenario(fault=False)).write(tmp_path)
    path = directory / "attempt.json"
    why = {f"{figure}.{role}": "far" for figure in ("cpu_cores", "rss_mb") for role in ("kafka", "executors")}
    path.write_text(json.dumps({**json.loads(path.read_text()), "not_measured": why}))
    record = judge(directory)
    jsonschema.validate(record.as_dict(), committed_schema())
    metrics = record.metrics
    assert (metrics.cpu_cores.kafka, metrics.cpu_cores.executors, metrics.rss_mb.executors) == (None, None, None)
    assert metrics.cpu_cores.driver == pytest.approx(CORES["driver"], abs=1e-3)
    assert metrics.cpu_s_per_million is None
    assert metrics.not_measured == why and metrics.audit.lost == 0
