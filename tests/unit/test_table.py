"""The result table: exact texts, order, and every width."""

from __future__ import annotations

import pytest
from rich.console import Console

from faultline.record import Record
from faultline.table import COLUMNS, milliseconds, name_of, plain_rows, result_table, signed
from tests.unit.sample_records import CENSORED, RECOVERED, matrix, sample


def printed(records: list[Record], width: int) -> str:
    console = Console(width=width, no_color=True, file=None)
    with console.capture() as capture:
        console.print(result_table(records))
    return capture.get()


def test_a_kill_gives_exactly_this_row() -> None:
    assert plain_rows([sample(state_mb=8, recovery=RECOVERED)]) == [
        {
            "number": "1",
            "state_mb": "8",
            "interval_s": "2",
            "fault": "executor kill",
            "p50_ms": "1,607",
            "p99_ms": "8,046",
            "cpu_driver": "0.19",
            "cpu_executors": "0.48",
            "cpu_kafka": "0.06",
            "cpu_generator": "0.05",
            "reload_s": "6.3",
            "replay_s": "1.6",
            "macro_s": "13.8",
            "lost": "0",
            "overcounted": "12,345",
            "status": "valid",
            "reason": "",
            "varies": "",
        }
    ]


def test_a_censored_run_is_a_bound_and_a_control_claims_nothing() -> None:
    kill, control = plain_rows([sample(fault="none"), sample(recovery=CENSORED)])
    assert (kill["fault"], kill["macro_s"], kill["reload_s"]) == ("executor kill", "> 33.9", "6.3")
    assert control["fault"] == "control"
    assert {control[key] for key in ("reload_s", "replay_s", "macro_s")} == {"—"}


@pytest.mark.parametrize("status", ["valid", "invalid", "failed", "cancelled"])
def test_every_status_has_its_row_and_its_first_reason(status: str) -> None:
    reasons = [] if status == "valid" else ["schedule-lag: p99 53 ms > 50 ms", "second reason"]
    records = [sample(status=status, reasons=reasons)]
    (row,) = plain_rows(records)
    assert row["status"] == status
    assert row["reason"] == ("" if status == "valid" else reasons[0])
    unmeasured = status in ("failed", "cancelled")
    assert (row["p50_ms"], row["lost"], row["cpu_kafka"]) == (("—",) * 3 if unmeasured else ("1,607", "0", "0.06"))
    text = printed(records, 120)
    assert status in text
    assert ("1 invalid: schedule-lag: p99 53 ms > 50 ms" in text) is (status == "invalid")
    assert "second reason" not in text


def test_rows_follow_the_axes_with_the_control_last_of_its_point() -> None:
    order = [(row["state_mb"], row["interval_s"], row["fault"]) for row in plain_rows(matrix())]
    assert order == [
        ("1", "2", "executor kill"),
        ("1", "2", "control"),
        ("1", "5", "executor kill"),
        ("8", "2", "executor kill"),
        ("8", "5", "executor kill"),
    ]


def test_what_else_differs_is_named() -> None:
    rows = plain_rows([sample(rate=1000), sample(rate=500, repetition=1)])
    assert [row["varies"] for row in rows] == ["rate 500, repetition 1", "rate 1000, repetition 0"]


@pytest.mark.parametrize("width", [120, 100, 80, 50])
def test_all_figures_are_shown_at_every_width(width: int) -> None:
    text = printed(matrix(), width)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    assert "…" not in text
    for row in plain_rows(matrix()):
        for column in COLUMNS:
            assert row[column.key] in text, (column.key, row[column.key])
    # one line for each record where they fit beside each other
    assert text.count("executor kill") == 4 * (text.count("Fault"))
    assert (text.count("Fault") == 1) is (width == 120)


def test_markup_in_a_record_is_shown_as_it_is() -> None:
    text = printed([sample(status="invalid", reasons=["[bold]not bold[/bold]"])], 120)
    assert "[bold]not bold[/bold]" in text


def test_numbers_and_names() -> None:
    assert [milliseconds(value) for value in (None, 0.26, 9.96, 2283.4)] == ["—", "0.3", "10", "2,283"]
    assert [signed(value) for value in (0.0, 0.35, -1.8371)] == ["0.000", "+0.350", "−1.837"]
    assert name_of(sample(state_mb=0.5)) == "state 0.5 MB, interval 2 s, executor kill"


def test_no_records() -> None:
    assert plain_rows([]) == []
    assert "State" in printed([], 120)
