"""The story of one record: right facts in plain words, from whatever evidence is still there."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from faultline.experiment.config import parse_configuration
from faultline.records.format import EDGES, LABELS, WORDS, split_name, title_of
from faultline.records.judge.timeline import CHAIN
from faultline.records.record import Record
from faultline.reports.figures.attempt import MARKS
from faultline.reports.terminal import BAR_WIDTH, bar_text, explain, explain_json, render_run
from faultline.reports.views.experiment_report import RecoverySpan, recovery_lines, repeated_parts
from faultline.reports.views.run import run_view
from faultline.reports.views.runs import load_parts, rerun_command
from faultline.system.errors import ConfigError
from faultline.system.settings import Settings, load_settings
from tests.unit.sample_records import CENSORED, GATE_NS, NS, RECOVERED, sample
from tests.unit.synthetic import write_lines

IMPACT = {"dip_depth": 1.0, "silence_s": 7.8123, "lag_area_record_s": 12_345.6}
START = {"gate": (0.0, "gate.json: T0"), "measured_from": (20.0, "T0 + warmup_s")}
ESCAPE = re.compile(r"\x1b\[")
TIMELINE = {
    "gate": (0.0, "gate.json: T0"),
    "measured_from": (20.0, "T0 + warmup_s"),
    "snapshot": (38.0, "log of executor 1: snapshot 17 of partition 0"),
    "t1": (40.2, "harvest/tuples.parquet: last output before the silence"),
    "t0": (41.0004, "conductor.jsonl: signal delivered"),
    "t2": (41.148, "recorder.jsonl: removeTime of executor 0 (REST)"),
    "replacement_up": (44.1, "recorder.jsonl: addTime of executor 2 (REST)"),
    "t3": (46.242, "log of executor 2: Running task 0 in stage 9, TID 90"),
    "t4": (47.252, "log of executor 2: Loaded 17, partition 0, TID 90"),
    "t5": (48.84, "batches.json: commit of batch 19"),
    "t6": (52.84, "batches.json: lag back in band and held from batch 21"),
    "t7": (54.84, "batches.json: throughput and latency back in band and held from batch 22"),
    "measured_until": (75.0, "T0 + warmup_s + duration_s"),
}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return replace(load_settings(), results=tmp_path / "results")


def stored(settings: Settings, record: Record) -> Record:
    path = settings.records / record.config_id / f"{record.attempt}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(record.as_json())
    return record


def raw(settings: Settings, record: Record, **files: Any) -> Path:
    """Write raw files of the attempt: lists as JSON lines, anything else as JSON."""
    folder = settings.attempts / record.attempt
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        if isinstance(content, list):
            write_lines(folder / f"{name}.jsonl", content)
        else:
            (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def at(t_s: float, event: str, **fields: Any) -> dict[str, Any]:
    """Return a journal line `t_s` seconds after T0."""
    return {"wall_ns": GATE_NS + round(t_s * NS), "mono_ns": round(t_s * NS), "event": event, **fields}


def kill_journal() -> list[dict[str, Any]]:
    planned = {"planned_wall_ns": GATE_NS + 41 * NS, "planned_mono_ns": 41 * NS}
    victim = {"fault": 0, "pid": 200, "role": "executor", "host": "", "command": ["java", "--executor-id", "0", "x"]}
    return [
        at(-1.0, "victims", victims=[{**victim, "pid": 199}]),
        at(-0.3, "gate", t0_wall_ns=GATE_NS, t0_mono_ns=0),
        at(40.1, "victims", fault=0, reason="replaced", victims=[victim]),
        at(40.9, "end_offsets", fault=0, offsets={"0": 7}, before_signal=True),
        at(40.99, "invoked", fault=0, victim=200, planned_wall_ns=GATE_NS + 41 * NS),
        at(41.0004, "delivered", fault=0, victim=200, role="executor", action="kill", acknowledged=True, **planned),
        at(41.02, "settled", fault=0, outcome="effective", detail="executor 0 gone within 0.004 s"),
        at(75.0, "done"),
    ]


def kill(settings: Settings, **changes: Any) -> Record:
    record = stored(settings, sample(recovery=RECOVERED | IMPACT, timeline=TIMELINE, **changes))
    raw(settings, record, conductor=kill_journal())
    return record


def text_of(settings: Settings, reference: str = "last") -> str:
    """Return the text with collapsed white space."""
    return re.sub(r"\s+", " ", explain(reference, settings))


def test_the_report_of_a_kill_covers_plan_events_evidence_and_recovery(settings: Settings) -> None:
    record = kill(settings, state_mb=8)
    text = text_of(settings)
    for expected in (
        f"{record.attempt} valid",
        "word_count · 500 records/s · state 8 MB · interval 2 s · aligned · 2 × 1 cores",
        "Fault 1: executor kill at T0 + 41 s",
        "Recovered in 13.84 s (not before 11.84 s)",
        "victim: executor 0 (pid 200)",
        "planned: T0 + 41.000 s (actual +0.40 ms)",
        "outcome: effective: executor 0 gone within 0.004 s",
        "dip: 100 % ",
        "longest silence: 7.81 s",
        "lag area: 12,346 record·s",
        "snapshot: 3.0 s old at the fault",
        "396,357 expected · 0 lost · 12,345 overcounted · 0 unexpected · 7 re-emitted · 0 sends unknown",
        "the Spark Master: an executor",
        f"41.148 +0.148 t2 {WORDS['t2']}",
        f"40.200 −0.800 t1 {WORDS['t1']}",
    ):
        assert expected in text, expected
    assert not ESCAPE.search(text), "no colours where there is no terminal"
    for name, (t_s, source) in TIMELINE.items():
        for expected in (f"{t_s:,.3f}", WORDS[name], source.split(" ")[0]):
            assert expected in text, name
    order = [text.index(WORDS[name]) for name in CHAIN]
    assert order == sorted(order)


@pytest.mark.parametrize("width", [60, 80, 109, 110, 200])
def test_no_text_is_truncated_at_any_width(settings: Settings, width: int) -> None:
    view = run_view(kill(settings), settings.results)
    console = Console(width=width, no_color=True)
    with console.capture() as capture:
        console.print(render_run(view, width))
    text = capture.get()
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    assert "…" not in text
    whole = re.sub(r"\s+", "", text)
    if width < 110:  # wider output wraps the evidence in a column of its own
        assert all(re.sub(r"\s+", "", source) in whole for _, source in TIMELINE.values())


def test_the_parts_are_consecutive_bars(settings: Settings) -> None:
    record = kill(settings)
    (fault,) = run_view(record, settings.results).report.faults
    names = ["detection", "redeploy", "load", "replay", "catch-up", "stabilization"]
    assert [span.name for span in fault.spans] == names
    for before, after in zip(fault.spans, fault.spans[1:], strict=False):
        assert after.start_s == pytest.approx(before.start_s + before.length_s)
    last = fault.spans[-1]
    assert last.start_s + last.length_s == pytest.approx(RECOVERED["macro_s"])
    bars = [bar_text(span, 13.84) for span in fault.spans]
    for span, bar in zip(fault.spans, bars, strict=True):
        assert abs(bar.count("█") - BAR_WIDTH * span.length_s / 13.84) <= 1
        assert len(bar) <= BAR_WIDTH
    assert [bar.rstrip() for bar in bars if bar.rstrip() in explain("last", settings)] == bars


@pytest.mark.parametrize(
    ("span", "drawn"),
    [
        (RecoverySpan("x", 0.0, 10.0), "█" * 10),
        (RecoverySpan("x", 5.0, 5.0, seen=False), "     ░░░░░"),
        (RecoverySpan("x", 9.99, 0.01), "         ▏"),
        (RecoverySpan("x", 3.0, 0.0), "   "),
    ],
)
def test_a_bar_matches_position_and_length_of_its_part(span: RecoverySpan, drawn: str) -> None:
    assert bar_text(span, 10.0, width=10) == drawn
    assert bar_text(span, 0.0) == ""


def test_a_censored_recovery_is_marked_and_a_gap_ends_the_bars(settings: Settings) -> None:
    record = stored(settings, sample(recovery=CENSORED, timeline={k: TIMELINE[k] for k in ("gate", "t0", "t2")}))
    text = text_of(settings)
    assert "Censored: not recovered 33.9 s after the fault" in text and "ecovered in" not in text
    (fault,) = run_view(record, settings.results).report.faults
    last = fault.spans[-1]
    assert (last.name, last.seen) == ("not recovered", False)
    assert last.start_s + last.length_s == pytest.approx(33.94)
    recovery = {**CENSORED, "redeploy_s": None, "load_s": None, "replay_s": None}
    (fault,) = run_view(stored(settings, sample(recovery=recovery)), settings.results).report.faults
    assert [span.name for span in fault.spans] == ["detection", "not recovered"]


def test_a_control_run_has_no_fault_and_a_topology_names_its_stages(settings: Settings) -> None:
    stored(settings, sample(fault="none", timeline=START))
    text = text_of(settings)
    assert "No fault (control run)" in text
    assert "Fault 1" not in text and "ecovered" not in text
    assert explain_json("last", settings)["faults"] == []
    stored(settings, sample(workload="topology", parallelism="1-2-2", mechanisms="replay", attempt="20261122T0-0"))
    assert "topology · 1-2-2 · replay · " in text_of(settings)


@pytest.mark.parametrize("status", ["failed", "cancelled", "invalid"])
def test_an_unmeasured_attempt_has_no_recovery(settings: Settings, status: str) -> None:
    stored(settings, sample(status=status, reasons=["recorder: died [before] the end", "second"]))
    text = text_of(settings)
    for expected in ("recorder: died [before] the end", "second", f"No recovery measured: the attempt is {status}"):
        assert expected in text
    assert ("Audit" in text) is (status == "invalid")


def test_a_fault_without_effect_is_reported(settings: Settings) -> None:
    record = stored(settings, sample(status="invalid", reasons=["no-effect: it was idle"], timeline={}))
    lines = [line for line in kill_journal() if line["event"] not in ("delivered", "settled")]
    raw(settings, record, conductor=[*lines, at(41.1, "settled", fault=0, outcome="no-effect", detail="was idle")])
    text = text_of(settings)
    for expected in ("No recovery: the fault had no effect", "outcome: no-effect: was idle", "planned: T0 + 41.000 s"):
        assert expected in text


PLAN = {
    "faults": [
        {"victim": "driver", "action": "kill", "at_s": 41.0},
        {"victim": "kafka", "action": "delay", "at_s": 71.0, "duration_s": 5.0, "delay_ms": 150.0},
    ]
}


def test_several_faults_have_separate_sections(settings: Settings) -> None:
    """A driver restarted by the supervisor, then a delay undone by the fault scheduler."""
    later = {"t0#2": (71.0, "c"), "t2#2": (71.5, "driver-1.log: disconnected"), "fault_undone#2": (76.0, "c")}
    both = {"recovery": RECOVERED, "recoveries": [RECOVERED, CENSORED], "timeline": {**TIMELINE, **later}}
    record = stored(settings, sample(duration_s=100, fault_plan=PLAN, **both))
    delivered = {"planned_wall_ns": GATE_NS + 71 * NS, "planned_mono_ns": 71 * NS}
    conductor = [
        at(-1.0, "victims", victims=[{"fault": 0, "pid": 300, "role": "driver", "host": "node1", "command": []}]),
        at(71.0013, "delivered", fault=1, victim=None, role="kafka_connection", action="delay", **delivered),
        at(71.1, "settled", fault=1, outcome="effective", detail="delay: 7 connections"),
        at(76.0, "undone", fault=1, undo="heal the proxy", error="healing by x failed"),
    ]
    supervisor = [
        at(-20.0, "start", incarnation=0, pid=300),
        at(41.1, "exit", incarnation=0, returncode=-9, signal=9),
        at(41.1, "restart", delay_s=2.0),
        at(41.2, "lineage", lineage=1, reason="the driver was lost"),
        at(43.1, "start", incarnation=1, pid=301),
    ]
    services = [at(72.0, "started", service="kafka", pid=77, waited_s=2.004)]
    raw(settings, record, conductor=conductor, supervisor=supervisor, services=services)
    text = text_of(settings)
    first, second, restarts = (text[text.index(one) :] for one in ("Fault 1", "Fault 2", "Restarts"))
    for part, expected in (
        (first.partition("Fault 2")[0], "Fault 1: driver kill at T0 + 41 s"),
        (first.partition("Fault 2")[0], "Recovered in 13.84 s"),
        (first.partition("Fault 2")[0], "driver (pid 300 on node1)"),
        (second, "Fault 2: kafka delay of 150 ms for 5 s at T0 + 71 s"),
        (second, "Censored: not recovered 33.9 s after the fault"),
        (second, "planned: T0 + 71.000 s (actual +1.30 ms)"),
        (second, "undo: heal the proxy 5.00 s after the fault, but failed: healing by x failed"),
        (second, f"71.500 +0.500 t2 {WORDS['t2']}"),  # relative to the t0 of this fault
        (
            restarts,
            "+43.100 s: the workload supervisor: the driver, incarnation 1 (pid 301), 2.0 s after the previous one",
        ),
        (restarts, "T0 +41.200 s: the workload supervisor: state epoch 1: the driver was lost"),
        (restarts, "T0 +72.000 s: supervisord: kafka (pid 77), delayed by 2.004 s"),
    ):
        assert expected in part, expected
    assert "incarnation 0" not in restarts
    instants = [float(one) for one in re.findall(r"T0 \+([\d.]+) s:", restarts)]
    assert instants == sorted(instants)


def test_mismatched_keys_are_shown_and_the_rest_counted(settings: Settings) -> None:
    record = kill(settings)
    offenders = [{"kind": "lost", "key": f"[bold]{n}", "expected": 12_345, "final": None} for n in range(13)]
    raw(settings, record, audit={"offenders": offenders})
    text = text_of(settings)
    assert "lost [bold]0 12,345 —" in text
    assert "[bold]10" not in text
    assert "3 more in audit.json" in text
    raw(settings, record, audit={"offenders": [{"kind": "unexpected", "key": "x" * 1000, "expected": 0, "final": 1}]})
    assert f"unexpected {'x' * 40}… (1,000 characters) 0 1" in text_of(settings)


@pytest.mark.parametrize("content", ["{", '{"offenders": 3}', "[]"])
def test_broken_raw_files_add_remarks(settings: Settings, content: str) -> None:
    folder = settings.attempts / kill(settings).attempt
    (folder / "audit.json").write_text(content)
    (folder / "supervisor.jsonl").write_text("not JSON\n")
    text = text_of(settings)
    for expected in ("Remarks", "audit.json: ", "supervisor.jsonl: "):
        assert expected in text
    assert "Recovered in 13.84 s" in text


def test_clock_offsets_of_other_hosts_are_shown(settings: Settings) -> None:
    content = sample().as_dict()
    content["environment"]["clock_offsets"] = {"node1": {"offset_s": -0.0021, "round_trip_s": 0.0004}}
    stored(settings, Record.model_validate(content))
    assert "node1 −2.1 ms (round trip 0.4 ms)" in text_of(settings)


def test_the_same_facts_as_json(settings: Settings) -> None:
    record = kill(settings)
    facts = explain_json("last", settings)
    facts_read = json.loads(json.dumps(facts, allow_nan=False))
    assert facts_read["attempt"] == record.attempt
    assert facts_read["config"] == record.config
    (fault,) = facts_read["faults"]
    assert fault["verdict"] == "recovered in 13.84 s (not before 11.84 s)"
    assert fault["recovery"]["dip_depth"] == 1.0
    assert fault["injection"]["late_ms"] == pytest.approx(0.4)
    assert fault["injection"]["planned_at_s"] == 41.0
    assert fault["snapshot_age_s"] == pytest.approx(3.0004)
    assert [event["name"] for event in facts_read["attempt_events"]] == ["gate", "measured_from", "measured_until"]
    assert {event["name"] for event in fault["events"]} == set(TIMELINE) - {"gate", "measured_from", "measured_until"}
    assert facts_read["plot"] is None
    assert facts_read["metrics"]["audit"]["expected"] == 396_357


def test_the_plot_page(settings: Settings, tmp_path: Path) -> None:
    record = kill(settings)
    assert "No plot: attempts/20261121T061500Z-3fa9c1/series.json is missing" in text_of(settings)
    curves: dict[str, Any] = {name: [] for name in ("latency", "throughput", "lag", "cpu")}
    curves |= {"events": [{"name": "t0", "t_s": 41.0, "source": "c"}], "warmup_s": 20, "duration_s": 55}
    raw(settings, record, series=curves)
    page = settings.results / "reports" / f"{record.attempt}.html"
    assert f"Plot: {page}" in text_of(settings)
    assert LABELS["t0"] in page.read_text()
    mine = tmp_path / "deep" / "mine.html"
    assert explain_json("last", settings, plot=mine)["plot"] == str(mine) and mine.exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--plot .*file"):
        explain("last", settings, plot=tmp_path / "file" / "x.html")


def test_the_rerun_command_is_one_line(settings: Settings) -> None:
    record = sample(state_mb=8, checkpoint_interval_s=5, repetition=2)
    assert rerun_command(record) == ("./faultline run word_count state_mb=8 checkpoint_interval_s=5 repetition=2")
    faults = [{"victim": "executor", "action": "kill", "at_s": 41.0 + 25 * number} for number in range(6)]
    record = stored(settings, sample(fault_plan={"faults": faults}, duration_s=300))
    command = rerun_command(record)
    assert len(command) > 300 and f"rerun: {command}" in explain(record.attempt, settings).splitlines()
    assert "fault_at_s" not in command and "'fault_plan={" in command


@pytest.mark.parametrize(
    "given",
    [
        {"workload": "topology", "executors": 2, "shuffle_partitions": 2, "checkpoint_interval_s": 2, "warmup_s": 7},
        {"workload": "topology", "mechanisms": "replay", "rate": 500},
        {"workload": "nexmark", "query": "q5", "rate": 500, "watermark_s": 10},
        {"workload": "nexmark", "query": "q5", "source": "kafka", "fault": "executor"},
        {"workload": "known_truth"},
        {"workload": "pi"},
        {"workload": "word_count", "duration_s": 100, "fault_plan": PLAN},
    ],
)
def test_the_rerun_command_omits_defaults_of_each_workload(given: dict[str, Any]) -> None:
    planned = parse_configuration(given)
    record = sample().model_copy(update={"config": planned.model_dump(mode="json")})
    words = dict(word.split("=", 1) for word in shlex.split(rerun_command(record))[3:])
    words.pop("repetition", None)
    assert parse_configuration({**words, "workload": given["workload"]}).config_id == planned.config_id
    assert set(words) <= set(given) | {"state_mb", "fault_at_s", "truth"}, "only given parameters"


def test_every_event_has_one_name() -> None:
    assert set(MARKS) == set(LABELS) == set(WORDS) - EDGES
    assert [split_name(name) for name in ("t2#3", "t2", "a#b")] == [("t2", 3), ("t2", 1), ("a#b", 1)]


def test_a_single_recovery_has_no_number_and_a_control_run_no_line() -> None:
    (line,) = recovery_lines(sample(recovery=RECOVERED))
    assert line.startswith("detected after 0.1 s; state loaded after ") and line.endswith("recovered after 13.8 s")
    assert recovery_lines(sample(fault="none")) == []


def test_several_recoveries_have_numbers_and_excluded_ones_a_reason() -> None:
    parts = [
        {**RECOVERED, "injection": 1},
        {"injection": 2, "note": "the baseline was not steady"},
        {**CENSORED, "injection": 3},
    ]
    record = sample(recovery=RECOVERED, recoveries=parts, injections=3, duration_s=600.0)
    first, third, note = recovery_lines(record)
    assert first.startswith("recovery 1: ") and third.startswith("recovery 3: ")
    assert third.endswith("not recovered after 33.9 s")
    assert note == "recovery 2 does not count: the baseline was not steady"
    assert len(repeated_parts(record)) == 2


def test_different_faults_of_a_plan_are_not_repetitions() -> None:
    assert repeated_parts(sample(recovery=RECOVERED, recoveries=[RECOVERED, CENSORED])) == []


def test_a_title_names_an_engine_that_is_not_the_default() -> None:
    config = {"workload": "word_count", "state_mb": 1, "checkpoint_interval_s": 2, "fault": "none"}
    assert " on " not in title_of({**config, "engine": "spark"}) + load_parts(config)[0]
    assert " on flink" in title_of({**config, "engine": "flink"}) and load_parts({**config, "engine": "flink"})[
        0
    ].endswith("flink")
