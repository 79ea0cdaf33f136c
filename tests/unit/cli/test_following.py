"""Progress of a sweep: a rewritten line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.cli import sweep_progress
from faultline.cli.sweep_progress import CLEAR, ProgressLine, ProgressState, SweepProgress, follow, minutes_text
from faultline.experiment.config import parse_configuration
from faultline.experiment.matrix import PlannedCell
from faultline.records.store import Store
from faultline.system.locks import RECORDER
from faultline.system.settings import ROOT, Settings
from tests.support.attempts import prepared
from tests.unit.sample_records import sample

BUDGET_S = 60.0
BEGAN_S = 1_795_241_000.0


# Holds the machine lock for an attempt, as its recorder does, until its input ends.
HOLDER = """
import sys
from faultline.system.locks import MachineLock

MachineLock(sys.argv[-1]).take()
print("held", flush=True)
sys.stdin.read()
"""


class Sweep:
    """Sweep of two cells whose attempts are written file by file."""

    def __init__(self, folder: Path, *configs: dict[str, Any]) -> None:
        self.settings = Settings(root=ROOT, home=folder / "home", results=folder / "results", machine=str(folder))
        self.lines: list[str] = []
        chosen = configs or [{"workload": "word_count", "state_mb": state} for state in (1, 8)]
        self.cells = [PlannedCell(parse_configuration(one), 0, "b1") for one in chosen]
        self.line = ProgressLine(self.lines.append)
        self.course = SweepProgress(self.settings, "s1", self.cells, self.line, budget_s=BUDGET_S)

    def begin(self, attempt: str, cell: int, *, at_s: float = 0.0, sweep: str = "s1") -> None:
        values = {"prepared_wall_ns": int((BEGAN_S + at_s) * 1e9)}
        config = self.cells[cell].config
        prepared(self.settings.attempts / attempt, config, facts=values, series="b1", sweep_id=sweep)

    def started(self, attempt: str, role: str) -> None:
        with (self.settings.attempts / attempt / "ledger.jsonl").open("a") as ledger:
            ledger.write(json.dumps({"role": role}) + "\n")

    def measured(self, attempt: str, cell: int, began_s: float, end_s: float, **what: Any) -> None:
        self.begin(attempt, cell, at_s=began_s)
        self.end(attempt, cell, at_s=end_s, **{"status": "valid", **what})

    def write(self, attempt: str, **files: list[dict[str, Any]]) -> None:
        for name, lines in files.items():
            path = self.settings.attempts / attempt / f"{name}.jsonl"
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def end(self, attempt: str, cell: int, status: str | None, *, at_s: float = 0.0, **what: Any) -> None:
        if status:
            config = self.cells[cell].config
            record = sample(status=status, attempt=attempt, state_mb=config.state_mb, workload="word_count", **what)
            Store(self.settings.results).write(record)
        closed = self.settings.attempts / attempt / "closed.json"
        closed.write_text("{}")
        os.utime(closed, (BEGAN_S + at_s, BEGAN_S + at_s))

    def progress(self, done: int = 0) -> list[str]:
        """Return the lines printed by one update, with `done` of the two experiments finished."""
        before = len(self.lines)
        self.course.show(2, done)
        return self.lines[before:]


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    return Sweep(tmp_path)


FIRST, SECOND, THIRD = (f"20261121T06150{number}Z-000001" for number in (1, 2, 3))
INVALID: dict[str, Any] = {"status": "invalid", "reasons": ["why"]}


def test_an_invalid_attempt_is_reported_and_retried(sweep: Sweep) -> None:
    sweep.begin(FIRST, 0)
    (line,) = sweep.progress()
    assert line.startswith("experiment 1 of 2 (state 1 MB, interval 2 s, executor kill): starting, creating topics")
    sweep.end(FIRST, 0, "invalid", reasons=["schedule-lag: p99 is 80 ms"], at_s=60)
    outcome, line = sweep.progress()
    assert outcome.endswith("kill): invalid (schedule-lag: p99 is 80 ms); retrying, attempt 2 of at most 3")
    assert line.startswith("0 of 2 experiments done; preparing the next, about 3 min left")
    sweep.begin(SECOND, 0)
    (line,) = sweep.progress()
    assert "experiment 1 of 2" in line and "kill, attempt 2): starting" in line
    sweep.end(SECOND, 0, "valid")
    valid, line = sweep.progress()
    assert valid.endswith("kill, attempt 2): valid")
    assert line.startswith("1 of 2 experiments done"), "though Airflow does not know it yet"
    sweep.begin(THIRD, 1)
    (line,) = sweep.progress(1)
    assert line.startswith("experiment 2 of 2 (state 8 MB")
    assert sweep.progress(1) == [], "nothing new"
    assert sweep.progress(2) == ["aggregating results, about 1 min left"]


def test_earlier_attempts_are_reported_by_their_numbers(sweep: Sweep) -> None:
    for attempt in (FIRST, SECOND, THIRD):
        sweep.measured(attempt, 0, 0, 60, **INVALID)
    first, second, third, line = sweep.progress(1)
    assert first.endswith("executor kill): invalid (why); retrying, attempt 2 of at most 3")
    assert second.endswith("attempt 2): invalid (why); retrying, attempt 3 of at most 3")
    assert third.endswith("attempt 3): invalid (why); giving up after 3 attempts")
    assert line.startswith("1 of 2 experiments done")


def test_failed_and_aborted_attempts_do_not_count_as_invalid(sweep: Sweep) -> None:
    sweep.measured(FIRST, 0, 0, 60, status=None)
    assert sweep.progress()[0].endswith("kill): aborted without a record; retrying")
    sweep.measured(SECOND, 0, 0, 60, status="failed", reasons=["InfrastructureError: kafka"])
    assert sweep.progress()[0].endswith("attempt 2): failed (InfrastructureError: kafka)")
    sweep.begin(THIRD, 0)
    assert "attempt 3): starting" in sweep.progress()[0]
    sweep.end(THIRD, 0, at_s=60, **INVALID)
    assert sweep.progress()[0].endswith("attempt 3): invalid (why); retrying, attempt 2 of at most 3")


def test_new_attempts_are_found_and_other_sweeps_ignored(sweep: Sweep) -> None:
    sweep.begin(FIRST, 0, sweep="other")
    assert sweep.progress() == ["0 of 2 experiments done; preparing the next, about 3 min left"]
    (sweep.settings.attempts / SECOND).mkdir()
    assert sweep.progress() == []
    (sweep.settings.attempts / SECOND).rmdir()
    sweep.begin(SECOND, 1)
    assert sweep.progress()[0].startswith("experiment 1 of 2 (state 8 MB")


DAY = 86_400  # for which the services were down


@pytest.mark.parametrize(
    ("measured", "left"),
    [
        ([(0, 0, 60, {}), (1, 60, 120, INVALID)], 2),  # what is measured again makes the others no slower
        ([(0, 0, 200, INVALID), (0, 240, 600, {}), (1, DAY, DAY + 40, {"status": None})], 6),  # 200, 360, 40 s for two
        ([(0, 0, 120, {}), (1, 100, 200, INVALID)], 2),  # 100 s each: it starts while another is judged
    ],
)
def test_the_time_left_follows_the_pace(sweep: Sweep, measured: list[Any], left: int) -> None:
    for attempt, (cell, began_s, end_s, how) in zip((FIRST, SECOND, THIRD), measured, strict=False):
        sweep.measured(attempt, cell, began_s, end_s, **how)
    assert f"about {left} min left" in sweep.progress(1)[-1]
    if began_s == 60:
        sweep.begin(THIRD, 1, at_s=120)
        (line,) = sweep.progress(1)
        assert "attempt 2): starting" in line and line.endswith(", about 3 min left")


@pytest.mark.parametrize(
    ("roles", "awaited"),
    [
        ([], "creating topics"),
        (["recorder"], "launching processes"),
        (["recorder", "generator"], "waiting for the generator's primer"),
        (["generator", "supervisor"], "waiting for the engine's first commits"),
        (["generator", "supervisor", "conductor"], "waiting for the start barrier"),
    ],
)
def test_the_phase_of_a_starting_experiment(sweep: Sweep, roles: list[str], awaited: str) -> None:
    sweep.begin(FIRST, 0)
    for role in roles:
        sweep.started(FIRST, role)
    if roles:
        sweep.write(FIRST, recorder=[])
    assert f": starting, {awaited}, about" in sweep.progress()[0]


def test_the_measured_experiment_is_shown(sweep: Sweep) -> None:
    for number, attempt in enumerate((FIRST, SECOND)):
        sweep.begin(attempt, number)
        sweep.started(attempt, "recorder")
    assert ": waiting for the machine lock, about" in sweep.progress()[-1]
    sweep.write(FIRST, recorder=[{"kind": "start", "wall_ns": int(BEGAN_S * 1e9)}])
    (line,) = sweep.progress()
    assert line.startswith("experiment 1 of") and ": starting, launching processes" in line


@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_holder_of_the_machine_lock_is_shown(sweep: Sweep, tmp_path: Path, elsewhere: bool) -> None:
    other = "20261121T061400Z-000009"
    attempts = tmp_path / "other" / "attempts" if elsewhere else sweep.settings.attempts
    sweep.begin(FIRST, 0)
    sweep.started(FIRST, "recorder")
    sweep.begin(other, 1, sweep="s2")
    words = [sys.executable, "-c", HOLDER, "-m", RECORDER, "--attempt-dir", str(attempts / other), "--machine"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([*words, sweep.settings.machine], **pipes) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        shown = sweep.progress()[-1]
        holder.communicate(b"")
    if elsewhere:
        expected = (f"): waiting for {other} of ", f", {tmp_path / 'other'}), another installation, about")
    else:
        expected = (f"): waiting for {other} (state 8 MB", "s2), about 3 min left after that")
    assert all(one in shown for one in expected), shown
    assert ": waiting for the machine lock, about" in sweep.progress()[-1]


def test_a_duration_is_at_least_one_minute() -> None:
    assert [minutes_text(seconds) for seconds in (0, 5, 74, 76, 119 * 60, 125 * 60)] == [
        "1 min", "1 min", "1 min", "2 min", "119 min", "2 h 5 min"
    ]  # fmt: skip


@pytest.fixture
def two_seconds_on(monkeypatch: pytest.MonkeyPatch) -> int:
    """Instant of a start barrier that opened two seconds ago."""
    gate = int(BEGAN_S * 1e9)
    monkeypatch.setattr("faultline.lifecycle.progress.time.time_ns", lambda: gate + 2 * 10**9)
    return gate


def test_records_are_counted_from_the_start_barrier(sweep: Sweep, two_seconds_on: int) -> None:
    offsets = [(-1, 9_815), (1, 9_900), (2, 10_015)]
    lines = [
        {"kind": "offsets", "topic": "input", "end": {"0": end}, "wall_ns": two_seconds_on + second * 10**9}
        for second, end in offsets
    ]
    sweep.begin(FIRST, 0)
    sweep.write(FIRST, conductor=[{"event": "gate", "t0_wall_ns": two_seconds_on}], recorder=lines)
    assert "T0 + 2 s; 200 records in" in sweep.progress()[0]


def test_events_of_the_engine_are_counted_by_offset(tmp_path: Path, two_seconds_on: int) -> None:
    sweep = Sweep(tmp_path, {"workload": "nexmark", "query": "q8"})
    lines: list[dict[str, Any]] = [{"event": "started", "wall_ns": two_seconds_on - 3 * 10**9}]
    for second, end in ((-1, 500), (1, 1000), (2, 1500)):
        progress = {"event": "progress", "num_input_rows": 1000, "end_offsets": {"0": end}}
        lines.append({**progress, "wall_ns": two_seconds_on + second * 10**9})
    sweep.begin(FIRST, 0)
    sweep.write(FIRST, conductor=[{"event": "gate", "t0_wall_ns": two_seconds_on}], listener=lines)
    assert "(query q8, control): warm-up, T0 + 2 s; 1,000 events done" in sweep.progress()[0]


def test_stopped_services_end_the_watch(sweep: Sweep) -> None:
    ended = follow(None, sweep.settings, "d", "demo_1", sweep.cells, sweep.lines.append, budget_s=1)  # type: ignore[arg-type]
    assert not ended
    assert len(sweep.lines) == 1 and "services stopped" in sweep.lines[0]


STATE = ProgressState("experiment 1 of 6: measuring", ", T0 + 33 s", "about 5 min left", "1 of 6 measuring")
COLUMNS = 60


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def line_on(out: io.StringIO, environment: Mapping[str, str]) -> tuple[ProgressLine, list[str]]:
    lines: list[str] = []
    return ProgressLine(lines.append, out, environment), lines


@pytest.fixture(autouse=True)
def _width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_progress.shutil, "get_terminal_size", lambda: os.terminal_size((COLUMNS, 24)))


def test_a_terminal_line_is_rewritten() -> None:
    out = Terminal()
    line, lines = line_on(out, {"TERM": "xterm"})
    line.show(STATE)
    line.show(STATE)
    assert lines == [] and out.getvalue().count(CLEAR) == 2 and "\n" not in out.getvalue()
    shown = out.getvalue().rpartition(CLEAR)[2]
    assert shown == "0:00 elapsed, about 5 min left: 1 of 6 measuring, T0 + 33 s"
    line.print_above("killed executor 1")
    assert lines == ["killed executor 1"] and out.getvalue().endswith(CLEAR)
    line.show(STATE)
    line.clear()
    assert out.getvalue().endswith(CLEAR), "what comes next begins on an empty line"


@pytest.mark.parametrize(
    ("out", "environment"),
    [
        (io.StringIO(), {"TERM": "xterm"}),
        (Terminal(), {"TERM": "dumb"}),
        (Terminal(), {"TERM": "xterm", "NO_COLOR": "1"}),
        (Terminal(), {}),
    ],
)
def test_a_log_gets_a_line_per_change(
    out: io.StringIO, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    line, lines = line_on(out, environment)
    line.show(STATE)
    line.show(ProgressState(STATE.head, ", T0 + 34 s", STATE.left))
    assert lines == ["experiment 1 of 6: measuring, T0 + 33 s, about 5 min left"] and out.getvalue() == ""
    line.show(ProgressState("experiment 1 of 6: draining"))
    assert lines[1:] == ["experiment 1 of 6: draining"]
    monkeypatch.setattr(sweep_progress, "REPEAT_S", -1.0)
    line.show(ProgressState("experiment 1 of 6: draining"))
    assert len(lines) == 3, "long unchanged"


@given(st.text(alphabet=st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=200), st.integers(20, 200))
def test_a_line_never_wraps(head: str, columns: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep_progress.shutil, "get_terminal_size", lambda: os.terminal_size((columns, 24)))
        out = Terminal()
        line, _ = line_on(out, {"TERM": "xterm"})
        line.show(ProgressState(head))
    assert len(out.getvalue().removeprefix(CLEAR)) < columns
