"""Pages about running experiments, from the files that they write."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from faultline.experiment.config import parse_configuration
from faultline.experiment.matrix import PlannedCell
from faultline.records.store import Store
from faultline.records.sweep_plan import SweepPlan, SweepPlans, cells_of
from faultline.reports.pages import live
from faultline.reports.pages.live import LiveSeries, lag_of, live_page, rates
from faultline.reports.pages.overview import active_runs, overview_page
from faultline.reports.pages.site import PageNotFound
from faultline.reports.prometheus import prometheus_text
from tests.support.attempts import prepared
from tests.unit.pages_store import put, record, site
from tests.unit.sample_records import sample

GATE = 1_795_241_000 * 10**9
FIRST, SECOND = "20261121T061500Z-000001", "20261121T061501Z-000002"
CONFIG = parse_configuration({"workload": "word_count"})


def begin(results: Path, attempt: str, *, sweep: str | None = "s1") -> Path:
    """Return the folder of a queued attempt."""
    folder = results / "attempts" / attempt
    prepared(folder, CONFIG, facts={"prepared_wall_ns": GATE - 30 * 10**9}, series="b1", sweep_id=sweep)
    (folder / "ledger.jsonl").write_text(json.dumps({"role": "recorder"}) + "\n")
    return folder


def measure(folder: Path, seconds: int, *, killed_at: int | None = None) -> None:
    """Write `seconds` of journals: 100 records/s, committed every 2 s until the kill."""
    recorder, listener = [], []
    for second in range(seconds + 1):
        at = GATE + second * 10**9
        recorder.append({"kind": "offsets", "topic": "input", "end": {"0": 1000 + 100 * second}, "wall_ns": at})
        process = {"role": "executors", "pid": 7, "create_time": GATE / 1e9 - 50, "rss_bytes": 1, "final": False}
        recorder.append({"kind": "proc", **process, "wall_ns": at + 1, "cpu_s": 10 + 0.5 * second})
        if second % 2 == 0 and (killed_at is None or second < killed_at):
            listener.append({"event": "progress", "end_offsets": {"0": 1000 + 100 * second}, "wall_ns": at + 2})
    conductor = [{"event": "gate", "t0_wall_ns": GATE, "wall_ns": GATE}]
    if killed_at is not None:
        conductor.append({"event": "delivered", "action": "kill", "victim": 12, "wall_ns": GATE + killed_at * 10**9})
    for name, lines in (("recorder", recorder), ("listener", listener), ("conductor", conductor)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture(autouse=True)
def _half_a_minute_after_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("faultline.lifecycle.progress.time.time_ns", lambda: GATE + 40 * 10**9)


def test_the_overview_shows_running_and_queued_experiments_with_progress(tmp_path: Path) -> None:
    assert "./faultline sweep recovery preset=smoke" in overview_page(site(tmp_path)), "first steps"
    cells = [PlannedCell(CONFIG, number, "b1") for number in range(4)]
    plan = SweepPlan(
        sweep_id="s1", matrix="recovery", run_id="s1", series="b1", build="b1", logical_date=None,
        planned_at="2026-11-21T06:00:00+00:00", cells=cells_of(cells),
    )  # fmt: skip
    SweepPlans(tmp_path).write(plan)
    made = sample(attempt="20261121T060000Z-000009", **CONFIG.model_dump(mode="json"))
    Store(tmp_path).write(made.model_copy(update={"series": "b1", "sweep_id": "s1", "matrix": "recovery"}))
    begin(tmp_path, SECOND)
    measure(begin(tmp_path, FIRST), 30)
    pages = site(tmp_path)
    pages.index.refresh()
    now, next_one = active_runs(pages)
    assert (now.attempt, now.phase, now.progress) == (FIRST, "measuring", "1 of 4")
    assert (next_one.attempt, next_one.phase, next_one.detail) == (SECOND, "waiting", f"for {now.title}")
    text = overview_page(pages)
    assert f'href="{pages.link("live", FIRST)}"' in text and "1 of 4 cells" in text and 'data-refresh="' in text
    (tmp_path / "attempts" / FIRST / "closed.json").write_text("{}")
    (alone,) = active_runs(pages)
    assert (alone.attempt, alone.detail) == (SECOND, "for the machine")


def test_the_overview_lists_failures_with_reasons(tmp_path: Path) -> None:
    for number, status in enumerate(("valid", "failed", "invalid")):
        made = sample(attempt=f"20261121T06000{number}Z-000009", status=status, reasons=["why" * (status != "valid")])
        Store(tmp_path).write(made if status != "valid" else made.model_copy(update={"reasons": []}))
    text = overview_page(site(tmp_path))
    assert text.index("invalid</span> <a") < text.index("failed</span> <a"), "the newest first"
    assert "without usable figures" in text and ": why" in text


def test_a_running_experiment_shows_lag_and_fault(tmp_path: Path) -> None:
    folder = begin(tmp_path, FIRST)
    pages = site(tmp_path)
    assert "No samples yet" in live_page(pages, FIRST)
    measure(folder, 40, killed_at=21)
    series = series_of(folder)
    assert series.faults == ((21.0, "kill"),)
    assert {round(rate) for _, rate in rates(series.produced)} == {100}
    lag = dict(lag_of(series))
    assert lag[20.0] <= 200 and lag[40.0] == 2000, "nothing is committed after the kill"
    assert {round(one["executors"], 1) for one in series.cores} == {0.5}
    text = live_page(pages, FIRST)
    assert "killed pid 12" in text and "input 100 records/s" in text and "lag 2,000 records" in text
    assert "engine 0.50 cores" in text and 'data-every="5"' in text and '"kill"' in text
    (folder / "closed.json").write_text("{}")
    assert "data-refresh" not in live_page(pages, FIRST), "a finished attempt is not polled"


def series_of(folder: Path) -> LiveSeries:
    series = live.read_live_series(live.Attempt(folder))
    assert series is not None
    return series


def test_an_incomplete_line_is_ignored(tmp_path: Path) -> None:
    folder = begin(tmp_path, FIRST)
    measure(folder, 10)
    with (folder / "recorder.jsonl").open("a") as file:
        file.write('{"kind": "offsets", "topic": "inp')
    assert series_of(folder).produced[-1][0] == 10.0


def test_only_the_end_of_a_long_journal_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = begin(tmp_path, FIRST)
    measure(folder, 400)
    monkeypatch.setattr(live, "READ_BYTES", 20_000)
    produced = series_of(folder).produced
    assert produced[-1][0] == 400.0 and produced[0][0] > 250
    assert {round(rate) for _, rate in rates(produced)} == {100}


def test_without_commits_there_is_no_lag() -> None:
    assert lag_of(LiveSeries(0, False, ((0.0, 1.0), (1.0, 2.0)), (), (), ())) == []
    assert rates([(1.0, 5.0), (1.0, 6.0)]) == []


@pytest.mark.parametrize("name", ["nothing", "..", ".", "../records"])
def test_invalid_attempts_are_not_found(tmp_path: Path, name: str) -> None:
    (tmp_path / "attempts").mkdir(parents=True)
    with pytest.raises(PageNotFound):
        live_page(site(tmp_path), name)


def test_prometheus_reads_counts_and_the_newest_figures(tmp_path: Path) -> None:
    assert prometheus_text(site(tmp_path)).count("# TYPE") == 5, "even without records"
    evil = 'm"\n\\'
    nightly = record("b1", sweep="nightly", matrix="nightly_regression").model_copy(
        update={"logical_date": "2026-11-21"}
    )
    put(tmp_path, record("a1", matrix=evil), record("a2", matrix=evil, status="failed"), nightly)
    put(tmp_path, *(record(f"c{n}", sweep="s2", latency={"p50": 1000.0 * n}, build=f"b{n}") for n in (1, 3)))
    lines = prometheus_text(site(tmp_path)).splitlines()
    for line in (
        'faultline_records{matrix="m\\"\\n\\\\",status="valid"} 1',
        'faultline_records{matrix="m\\"\\n\\\\",status="failed"} 1',
        "faultline_experiments_running 0",
        'faultline_night_valid_records{night="nightly_regression"} 1',
    ):
        assert line in lines
    figures = [line for line in lines if line.startswith("faultline_figure{") and 'sweep="nightly"' in line]
    assert any('figure="latency_ms.p50"} 1607' in line for line in figures)
    assert len(figures) == len(set(figures)) and all('build="' in line for line in figures)
    of_builds = [line for line in lines if 'sweep="s2"' in line and 'figure="latency_ms.p50"' in line]
    medians = sorted((re.findall('build="([^"]*)"', line)[0], line.rsplit(" ", 1)[1]) for line in of_builds)
    assert medians == [("b1", "1000"), ("b3", "3000")], "one line per build, such as a reference build"
    shape = re.compile(r'[a-z_]+(\{[a-z]+="([^"\\]|\\.)*"(,[a-z]+="([^"\\]|\\.)*")*\})? -?[0-9.e+-]+')
    assert all(line.startswith("# ") or shape.fullmatch(line) for line in lines)
