"""Result table: exact texts, order and widths."""

from __future__ import annotations

import re

import pytest
from rich.console import Console

from faultline.records.format import fault_of, milliseconds, signed
from faultline.records.record import Record
from faultline.reports.terminal import ResultTable
from faultline.reports.views.runs import COLUMNS, run_name, table_rows, used_columns
from tests.unit.sample_records import CENSORED, RECOVERED, matrix, sample


def printed(records: list[Record], width: int) -> str:
    console = Console(width=width, no_color=True, file=None)
    with console.capture() as capture:
        console.print(ResultTable(table_rows(records)))
    return capture.get()


def test_the_row_of_a_kill() -> None:
    assert table_rows([sample(state_mb=8, recovery=RECOVERED)]) == [
        {
            "number": "1", "query": "—", "state_mb": "8", "interval_s": "2", "fault": "executor kill",
            "repetition": "—", "throughput_rps": "—", "latency_ms.p50": "1,607", "latency_ms.tail": "8,046",
            "cpu_cores.driver": "0.19", "cpu_cores.executors": "0.48", "cpu_cores.python_workers": "0.00",
            "cpu_cores.kafka": "0.06", "cpu_cores.generator": "0.05", "recovery.reload_s": "6.3",
            "recovery.replay_s": "1.6", "recovery.macro_s": "13.8", "injections.made": "—", "audit.lost": "0",
            "audit.undrained": "—", "audit.overcounted": "12,345", "status": "valid", "reason": "", "varies": "",
        }
    ]  # fmt: skip


def test_a_censored_run_is_a_bound_and_a_control_run_has_no_recovery() -> None:
    kill, control = table_rows([sample(fault="none"), sample(recovery=CENSORED)])
    assert (kill["fault"], kill["recovery.macro_s"], kill["recovery.reload_s"]) == ("executor kill", "> 33.9", "6.3")
    assert control["fault"] == "control"
    assert {control[key] for key in ("recovery.reload_s", "recovery.replay_s", "recovery.macro_s")} == {"—"}


@pytest.mark.parametrize("status", ["valid", "invalid", "failed", "cancelled"])
def test_every_status_has_its_row_and_its_first_reason(status: str) -> None:
    reasons = [] if status == "valid" else ["schedule-lag: p99 53 ms > 50 ms", "second reason"]
    records = [sample(status=status, reasons=reasons)]
    (row,) = table_rows(records)
    assert row["status"] == status
    assert row["reason"] == ("" if status == "valid" else reasons[0])
    unmeasured = status in ("failed", "cancelled")
    assert (row["latency_ms.p50"], row["audit.lost"], row["cpu_cores.kafka"]) == (
        ("—",) * 3 if unmeasured else ("1,607", "0", "0.06")
    )
    text = printed(records, 120)
    assert status in text
    assert ("1 invalid: schedule-lag: p99 53 ms > 50 ms" in text) is (status == "invalid")
    assert "second reason" not in text


def test_rows_follow_the_axes_with_control_runs_last() -> None:
    order = [(row["state_mb"], row["interval_s"], row["fault"]) for row in table_rows(matrix())]
    kills = [(state, interval, "executor kill") for state in "18" for interval in "25"]
    assert order == [kills[0], ("1", "2", "control"), *kills[1:]]
    victims = ["none", "worker", "python_worker", "kafka", "driver", "executor"]
    records = [
        sample(workload="word_count_python", fault=victim, duration_s=99, checkpoint_interval_s=s, attempt=victim,
               recovery=None if victim == "none" else CENSORED)
        for s in (5.0, 2.0)
        for victim in victims
    ]  # fmt: skip
    one = ["driver kill", "executor kill", "kafka kill", "python_worker kill", "worker kill", "control"]
    rows = table_rows(records)
    assert [row["fault"] for row in rows] == one * 2
    assert [row["interval_s"] for row in rows] == ["2"] * 6 + ["5"] * 6
    assert {row["varies"] for row in rows} == {""}, "the victim has a column of its own"
    assert len(re.findall(r"Fault\b", printed(records, 120))) == 1, "one table, not several"


def test_a_plan_is_named_by_its_faults() -> None:
    faults = [
        {"victim": "executor", "action": "kill", "at_s": 41.0, "every_s": 20.0, "times": 3},
        {"victim": "kafka", "action": "pause", "at_s": 101.0, "duration_s": 5.0},
        {"victim": "executor", "action": "kill", "at_s": 120.0},
    ]
    assert fault_of({"fault": "executor", "fault_plan": {"faults": faults}}) == "executor kill ×4, kafka pause"
    assert fault_of({"fault": "driver", "fault_action": "term", "fault_plan": None}) == "driver term"
    assert fault_of({"fault": "none", "fault_action": "kill"}) == "control"
    assert fault_of({"fault": "x", "fault_plan": {"faults": [3]}}) == ""


RECOVERY = {"recovery.reload_s", "recovery.replay_s", "recovery.macro_s", "injections.made"}
USELESS = {"repetition", "cpu_cores.python_workers", "audit.undrained"}


def left_out(rows: list[dict[str, str]]) -> set[str]:
    return {column.key for column in COLUMNS} - {column.key for column in used_columns(rows)}


def test_empty_columns_are_omitted() -> None:
    idle = table_rows([sample(recovery=RECOVERED)])
    expected = USELESS | {"query", "throughput_rps", "injections.made"}
    assert left_out(idle) == expected
    busy = {**idle[0], "cpu_cores.python_workers": "0.31"}
    assert left_out([*idle, busy]) == expected - {"cpu_cores.python_workers"}
    assert left_out(table_rows([sample(fault="none")])) == USELESS | {"query", "throughput_rps"} | RECOVERY
    late = sample(fault="none", repetition=1)
    late = late.model_copy(update={"metrics": late.metrics.model_copy(update={"sustained": False})})
    assert table_rows([late])[0]["throughput_rps"] == "501", "the throughput differs from the offered rate"


def test_a_query_has_columns_for_name_and_throughput() -> None:
    rows = table_rows([sample(workload="nexmark", query=query, repetition=1) for query in ("q10", "q2")])
    assert [(row["query"], row["throughput_rps"], row["varies"]) for row in rows] == [
        ("q2", "501", ""), ("q10", "501", ""),
    ]  # fmt: skip
    # Without a schedule, there is no interval.
    assert left_out(rows) == USELESS | {"state_mb", "interval_s"} | RECOVERY
    kafka = table_rows([sample(workload="nexmark", query="q5", source="kafka")])
    assert left_out(kafka) == USELESS | {"state_mb", "throughput_rps"} | RECOVERY
    text = printed([sample(workload="nexmark", query="q5", repetition=number) for number in range(2)], 120)
    assert all(heading in text for heading in ("Query", "Rep", "Handled"))


def test_other_varying_parameters_are_named() -> None:
    rows = table_rows([sample(rate=1000), sample(rate=500, repetition=1)])
    assert [(row["varies"], row["repetition"]) for row in rows] == [("rate 500", "1"), ("rate 1000", "0")]
    given, without = sample(), sample(attempt="b1")
    given = given.model_copy(update={"config": {**given.config, "data": "/a.jsonl", "data_key": "user"}})
    rows = table_rows([given, without])
    assert sorted(row["varies"] for row in rows) == ["", "data /a.jsonl, data_key user"], "only parameters of the run"


@pytest.mark.parametrize("width", [120, 100, 80, 50])
def test_all_figures_are_shown_at_every_width(width: int) -> None:
    text = printed(matrix(), width)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    assert "…" not in text
    for row in table_rows(matrix()):
        for column in used_columns(table_rows(matrix())):
            assert row[column.key] in text, (column.key, row[column.key])
    # one line per record if all columns fit
    tables = len(re.findall(r"Fault\b", text))
    assert text.count("executor kill") == 4 * tables
    assert (tables == 1) is (width == 120)


def test_markup_is_shown_as_text_and_an_empty_table_has_headings() -> None:
    text = printed([sample(status="invalid", reasons=["[bold]not bold[/bold]"])], 120)
    assert "[bold]not bold[/bold]" in text
    assert table_rows([]) == [] and "State" in printed([], 120)


def test_numbers_and_names() -> None:
    assert [milliseconds(value) for value in (None, 0.26, 9.96, 2283.4)] == ["—", "0.3", "10", "2,283"]
    assert [signed(value) for value in (0.0, 0.35, -1.8371)] == ["0.000", "+0.350", "−1.837"]
    assert run_name(sample(state_mb=0.5)) == "state 0.5 MB, interval 2 s, executor kill"
