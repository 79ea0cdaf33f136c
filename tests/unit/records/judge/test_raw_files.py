"""Raw files: an incomplete last line is dropped, other damage is named."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.engines.protocol import Traces
from faultline.records.judge.cpu import background_load
from faultline.records.judge.evidence import BarrierOpening, _not_measured, read_attempt, read_evidence
from faultline.records.judge.journals import SettledFault, read_generator_log, read_scheduler_log
from faultline.records.judge.judge import judge
from faultline.records.judge.samples import MACHINE_COLUMNS, all_processes
from faultline.system.errors import InfrastructureError
from faultline.system.journal import by_event, log_instant_ns, read_finished
from faultline.system.measured_window import NS
from tests.support.attempts import prepared
from tests.unit.synthetic import Scenario, Synthetic, edit_lines, edit_table

SYNTHETIC = Synthetic(Scenario())


@given(lines=st.lists(st.dictionaries(st.text(max_size=5), st.integers()), max_size=6), cut=st.integers(0, 200))
def test_truncated_file_yields_its_complete_lines(
    tmp_path_factory: pytest.TempPathFactory, lines: list[dict[str, int]], cut: int
) -> None:
    path = tmp_path_factory.mktemp("raw") / "x.jsonl"
    assert read_finished(path) == (), "missing"
    encoded = [json.dumps(line).encode() + b"\n" for line in lines]
    content = b"".join(encoded)[:cut]
    path.write_bytes(content)
    ends = [sum(map(len, encoded[: index + 1])) - 1 for index in range(len(encoded))]
    assert list(read_finished(path)) == [line for line, end in zip(lines, ends, strict=True) if end <= len(content)]


@pytest.fixture
def attempt(tmp_path: Path) -> Path:
    return SYNTHETIC.write(tmp_path)


def test_attempt_is_read_completely(attempt: Path) -> None:
    raw = read_evidence(attempt)
    assert raw.traces.commits == tuple(SYNTHETIC.commits)
    assert raw.recorder_death is None
    assert len(raw.records) == len(SYNTHETIC.records)
    assert raw.attempt.config == SYNTHETIC.s.configuration
    assert [one.wall_ns for one in raw.traces.events_of("lost")] == [SYNTHETIC.t2]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("attempt.json", b"{", r"attempt\.json"),
        ("gate.json", b"{", r"gate\.json"),
        ("batches.json", b"{", r"batches\.json"),
        ("batches.json", None, r"batches\.json: missing"),
        ("stored.json", b"{", r"stored\.json: not JSON"),
        ("stored.json", b"[1]", r"stored\.json: "),
        ("harvest/records.parquet", None, r"records\.parquet"),
        ("harvest/tuples.parquet", None, r"tuples\.parquet"),
        ("harvest/counts.parquet", None, r"counts\.parquet"),
        ("harvest/records.parquet", b"PAR1", r"records\.parquet: "),
    ],
)
def test_broken_or_missing_file_is_named(attempt: Path, file: str, content: bytes | None, message: str) -> None:
    (attempt / file).unlink(missing_ok=True)
    if content is not None:
        (attempt / file).write_bytes(content)
    with pytest.raises(InfrastructureError, match=message):
        judge(attempt)


def test_records_file_without_a_column_is_named(attempt: Path) -> None:
    edit_table(attempt / "harvest" / "records.parquet", lambda rows: rows.drop(columns="primer"))
    with pytest.raises(InfrastructureError, match=r"records\.parquet: "):
        read_evidence(attempt)


def test_foreign_attempt_file_is_named_by_key(tmp_path: Path) -> None:
    prepared(tmp_path)
    (tmp_path / "attempt.json").write_text("{}")
    with pytest.raises(InfrastructureError, match=r"attempt\.json: attempt: "):
        read_attempt(tmp_path)


def test_spark_and_monotonic_instants() -> None:
    assert log_instant_ns("1970-01-01T00:00:01.123GMT") == 1_123_000_000
    assert log_instant_ns("1970-01-01T00:00:01.123Z") == 1_123_000_000
    assert BarrierOpening(1_000, 70).mono_ns(1_500) == 570


def test_harvests_without_event_time_have_no_late_records(attempt: Path) -> None:
    edit_table(attempt / "harvest" / "records.parquet", lambda rows: rows.drop(columns="late", errors="ignore"))
    late = read_evidence(attempt).records["late"]
    assert len(late) and not late.any()


def test_service_restarted_after_a_fault_is_not_background_load() -> None:
    """A replacement worker uses a core for some seconds, which is a cost of the fault."""

    def samples(pid: int, born: float, cores: float) -> list[dict[str, object]]:
        return [
            {"kind": "proc", "wall_ns": round(at * NS), "role": "services", "pid": pid, "create_time": born,
             "cpu_s": cores * (at - born), "rss_bytes": 1, "final": False}
            for at in range(990, 1_032) if at > born
        ]  # fmt: skip

    recorder = (*samples(1, 900.0, 0.05), *samples(7, 1_001.2, 1.2))
    machine = pd.DataFrame(
        [[990 * NS, 0.0, 0.0], [1_001 * NS, 0.55, 0.0], [1_031 * NS, 38.0, 0.0]], columns=MACHINE_COLUMNS
    )
    start = {"event": "started", "service": "spark-worker-1", "pid": 7, "wall_ns": round(1_003 * NS), "waited_s": 1.5}
    own = all_processes(recorder, (start,), ())
    assert set(zip(own["pid"], own["role"], strict=True)) == {(7, "restarted"), (1, "services")}
    found = background_load(machine, own, 1_000 * NS, 1_020 * NS)
    assert found is not None and found.worst < 0.2
    # Processes with another PID or start time remain background load.
    for other in ({**start, "pid": 8}, {**start, "wall_ns": round(1_015 * NS)}):
        found = background_load(machine, all_processes(recorder, (other,), ()), 1_000 * NS, 1_020 * NS)
        assert found is not None and found.worst > 1.0


@pytest.mark.parametrize("apart_s", [-2.1, -1.9, 1.9, 2.1])
def test_service_start_matches_a_process_created_within_two_seconds(apart_s: float) -> None:
    """The restart delay is subtracted from the start line's time."""
    sample = {"kind": "proc", "wall_ns": 1_010 * NS, "role": "services", "pid": 7, "create_time": 1_000.0 + apart_s}
    start = {"event": "started", "pid": 7, "wall_ns": 1_030 * NS, "waited_s": 30.0}
    (role,) = all_processes((sample,), (start,), ())["role"]
    assert role == ("restarted" if abs(apart_s) < 2 else "services")
    (role,) = all_processes(({**sample, "role": "kafka"},), (start,), ())["role"]
    assert role == "kafka", "only services are reassigned"


@pytest.mark.parametrize("kept", [0, -1])
def test_recorder_without_stop_line_died(attempt: Path, kept: int) -> None:
    edit_lines(attempt / "recorder.jsonl", lambda lines: lines[:kept])
    assert read_evidence(attempt).recorder_death == "its last line is not `stop`"


def test_audit_of_a_user_job_is_skipped_after_dropped_late_rows() -> None:
    def not_measured(late_rows: int, *, of_the_user: bool, **known: str) -> dict[str, str]:
        kind = SimpleNamespace(of_the_user=of_the_user)
        attempt: Any = SimpleNamespace(config=SimpleNamespace(kind=kind), not_measured=known)
        return _not_measured(attempt, Traces("batch", late_rows=late_rows), None)

    assert not_measured(1234, of_the_user=False) == {}, "built-in workloads count late rows"
    assert not_measured(0, of_the_user=True) == {}
    found = not_measured(1234, of_the_user=True, latency_ms="no output")
    assert found["latency_ms"] == "no output" and found["audit"].startswith("1,234 rows came later than")
    assert not_measured(1234, of_the_user=True, audit="why") == {"audit": "why"}


def line(event: str, **values: Any) -> dict[str, Any]:
    return {"event": event, **values}


def test_each_planned_fault_has_an_entry_with_its_own_lines() -> None:
    journal = [
        line("victims", victims=[{"pid": 5, "role": "executor"}, {"pid": 6}, {"pid": 7, "fault": 1}]),
        line("end_offsets", offsets={"0": 9}, before_signal=False),
        line("end_offsets", offsets={"0": 5}),
        line("end_offsets", offsets={"0": 6}, before_signal=True),
        line("delivered", victim=5, wall_ns=30),
        line("delivered", victim=6, role="worker", wall_ns=20),
        line("undone", undo="SIGCONT"),
        line("settled", outcome="unknown"),
        line("settled", outcome="effective", detail="gone"),
        line("delivered", victim=7, role="driver", wall_ns=50, fault=1),
        line("end_offsets", offsets={"0": 1}, before_signal=False, fault=1),
        line("settled", outcome="no-effect", detail=None, fault=1),
    ]
    first, second, third = read_scheduler_log(by_event(journal), 3).injected
    assert (first.index, first.t0_ns, first.end_offsets) == (0, 20, {"0": 5})
    assert first.victims == ({"pid": 5, "role": "executor"}, {"pid": 6, "role": "worker"})
    assert [one["undo"] for one in first.undo_lines] == ["SIGCONT"]
    assert first.settled == SettledFault("effective", "gone")
    assert (second.t0_ns, second.end_offsets, second.undo_lines) == (50, None, ())
    assert second.victims == ({"pid": 7, "fault": 1, "role": "driver"},)
    assert second.settled == SettledFault("no-effect")
    assert (third.index, third.t0_ns, third.victims, third.settled) == (2, None, (), SettledFault(None))
    assert [one.name("t2") for one in (first, second, third)] == ["t2", "t2#2", "t2#3"]


def test_last_report_of_a_victim_counts_and_pids_are_per_host() -> None:
    journal = [
        line("victims", victims=[{"pid": 5, "executors": ["1"]}, {"pid": 5, "host": "node1"}, {"pid": 8}]),
        line("victims", victims=[{"pid": 5, "executors": ["2"]}]),
        line("delivered", victim=5, wall_ns=1),
    ]
    (found,) = read_scheduler_log(by_event(journal), 1).injected
    assert found.victims == (
        {"pid": 5, "executors": ["2"], "role": None}, {"pid": 5, "host": "node1", "role": None}
    )  # fmt: skip


def test_only_generator_lines_with_a_schedule_lag_count() -> None:
    found = read_generator_log(
        by_event([line("progress", wall_ns=5, latest_ms=3), line("progress", wall_ns=6, late=0)])
    )
    assert (found.latest, found.unknown, found.end_offsets) == (((5, 3.0),), None, None)
    assert found.death == "it never reported `done`" and found.schedule_lag.p99 is None
    done = [line("done", unknown=9, end_offsets={}, schedule_lag_ms={}), line("failed", message="gone")]
    assert (read_generator_log(by_event(done)).unknown, read_generator_log(by_event(done)).death) == (9, "gone")
