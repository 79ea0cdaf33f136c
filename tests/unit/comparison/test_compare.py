"""Comparison of two named sides: their records, refusals, and the table."""

from __future__ import annotations

import gzip
import json
import math
import subprocess
from pathlib import Path
from typing import Any

import pytest

from faultline.comparison import compare as comparing
from faultline.comparison.compare import (
    ComparisonVerdict,
    as_json,
    compare_named,
    compare_sides,
    metrics_named,
    print_comparison,
    row_texts,
    side_text,
)
from faultline.comparison.config_points import values_of
from faultline.comparison.selection import RecordGroup, require_disjoint, select_group, shared_records
from faultline.comparison.statistics.estimate import ValueRange, exact_values, spread_of
from faultline.records.index import Index
from faultline.records.index_entry import IndexEntry
from faultline.records.record import Record
from faultline.system.errors import ConfigError
from faultline.system.settings import Settings
from tests.unit.pages_store import put, record

NUMBERS = iter(range(10_000))


def measured(sweep: str, p99: float, *, reload_s: float | None = 4.0, commit: str = "", **named: Any) -> Record:
    """Return a record with this p99 and reload; None: not recovered within 30 s."""
    recovery = {"reload_s": reload_s, "recovered": bool(reload_s), "censored_at_s": None if reload_s else 30.0}
    attempt = f"20261121T061500Z-{next(NUMBERS):06x}"
    made = record(attempt, sweep=sweep, latency={"p99": p99}, recovery=recovery, **named)
    environment = made.environment.model_copy(update={"git_commit": commit or made.environment.git_commit})
    return made.model_copy(update={"environment": environment})


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """An installation in a checkout of its own."""
    found = Settings(tmp_path, tmp_path / "home", tmp_path / "results")
    monkeypatch.setattr(comparing, "load_settings", lambda: found)
    return found


def two_sweeps(settings: Settings, **after: Any) -> None:
    put(settings.results, *(measured("before", 1000 + n) for n in range(5)))
    put(settings.results, *(measured("after", 1500 + n, **after) for n in range(5)))


def index_of(settings: Settings) -> Index:
    index = Index(settings.results)
    index.refresh()
    return index


def sweeps_of(settings: Settings, name: str, **narrowed: Any) -> list[str | None]:
    """Return the sweeps of the named side."""
    return [entry.sweep_id for entry in select_group(index_of(settings), name, settings.root, **narrowed).entries]


def committed(settings: Settings, *tags: str) -> str:
    """Make the checkout a repository with one commit; return the commit."""
    git = ["git", "-C", str(settings.root), "-c", "user.name=x", "-c", "user.email=x@x"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "one"], check=True)
    for tag in tags:
        subprocess.run([*git, "tag", tag], check=True)
    return subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()


def test_a_slower_sweep_is_reported(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    two_sweeps(settings)
    compared = compare_named("before", "after", ["latency_ms.p99", "recovery.reload_s"])
    assert [row.comparison.verdict for row in compared.rows] == [ComparisonVerdict.WORSE, ComparisonVerdict.EQUIVALENT]
    print_comparison(compared, "before", "after")
    output = capsys.readouterr().out
    heads = next(line for line in output.splitlines() if "Configuration" in line)
    assert heads.split() == ["Configuration", "Metric", "before", "after", "Change", "p", "Verdict"]
    assert "Configurations omitted" not in output
    assert "1,002 (n=5)" in output
    assert "1,502 (n=5)" in output
    assert "+49.9%" in output
    assert "worse" in output
    rows = json.loads(json.dumps(as_json(compared)))
    assert rows[0]["verdict"] == "worse"
    assert rows[0]["before"] == {"median": 1002.0, "n": 5, "censored": 0}
    assert rows[0]["change"]["low"] > 0.4


def test_unfinished_recoveries_are_censored(settings: Settings) -> None:
    two_sweeps(settings, reload_s=None)
    assert values_of(index_of(settings).of_sweep("after"), "recovery.reload_s") == (ValueRange(30.0, math.inf),) * 5
    row = compare_named("before", "after", ["recovery.reload_s"]).rows[0]
    assert row.comparison.verdict is ComparisonVerdict.WORSE
    assert as_json(compare_named("before", "after", ["recovery.reload_s"]))[0]["after"]["median"] is None


def test_a_day_selects_its_nightly_run_first(settings: Settings) -> None:
    late = measured("late", 1.0, measured_at="2026-11-30T01:00:00+00:00")
    put(settings.results, late.model_copy(update={"logical_date": "2026-11-20T02:00:00+00:00"}))
    put(settings.results, measured("adhoc", 1.0, measured_at="2026-11-30T09:00:00+00:00"))
    assert sweeps_of(settings, "2026-11-20") == ["late"] and sweeps_of(settings, "2026-11-30") == ["adhoc"]


def test_a_revision_is_what_git_takes_for_one(settings: Settings) -> None:
    head = committed(settings, "release")[:12]
    put(settings.results, measured("clean", 1.0, commit=head), measured("changed", 1.0, commit=f"{head}-dirty"))
    for name in ("release", "HEAD", head[:7]):
        assert sweeps_of(settings, name) == ["clean"]
    with pytest.raises(ConfigError, match="no-such-tag: no records; expected a sweep"):
        sweeps_of(settings, "no-such-tag")
    with pytest.raises(ConfigError, match="--output=x: no records"):
        sweeps_of(settings, "--output=x")


def test_a_file_of_saved_records_is_a_side(settings: Settings, tmp_path: Path) -> None:
    two_sweeps(settings)
    saved = tmp_path / "before.json.gz"
    kept = [json.loads(path.read_text()) for path in sorted((settings.results / "records").rglob("*.json"))]
    saved.write_bytes(gzip.compress(json.dumps([one for one in kept if one["sweep_id"] == "before"]).encode()))
    (found,) = compare_named(str(saved), "after", ["latency_ms.p99"]).rows
    (known,) = compare_named("before", "after", ["latency_ms.p99"]).rows
    assert found.comparison == known.comparison and found.comparison.verdict is ComparisonVerdict.WORSE
    saved.write_bytes(b"x")
    with pytest.raises(ConfigError, match="before.json.gz: cannot be read"):
        compare_named(str(saved), "after", [])


def test_sides_that_cannot_be_compared_are_refused_by_name(settings: Settings) -> None:
    two_sweeps(settings)
    put(settings.results, measured("broken", 1.0, status="invalid"), measured("other", 1.0, state_mb=8.0))
    put(settings.results, measured("mixed", 1.0), measured("mixed", 1.0, build="b2"))
    refused = {
        ("before", "afer"): "afer: no records; expected a sweep.* did you mean after",
        ("before", "broken"): "broken: none of its 1 records is usable",
        ("before", "mixed"): "mixed: got builds b1, b2",
        ("before", "before"): "before: got the same name",
        ("before", "before@b3"): "before@b3: got build b3; expected one of b1",
        ("before", "2026-99-99"): "2026-99-99: expected a date",
        ("before", "other"): "other: no configuration in common",
    }
    for (a, b), words in refused.items():
        with pytest.raises(ConfigError, match=words):
            compare_named(a, b, [])
    with pytest.raises(ConfigError, match="before: none of its 5 records is usable and of matrix x"):
        compare_named("before", "after", [], matrix="x")
    assert compare_named("before", "mixed@b2", ["latency_ms.p99"]).rows
    for name in ("latency_ms.p98", "work.tasks"):
        with pytest.raises(ConfigError, match=f"--metric: got {name}; expected"):
            metrics_named([name])


def test_how_much_controls_differ_is_the_noise_floor(settings: Settings) -> None:
    two_sweeps(settings)
    for sweep in ("before", "after"):
        put(settings.results, *(measured(sweep, p99, fault="none") for p99 in (500, 1000, 1500, 2000, 4000)))
    metric = metrics_named(["latency_ms.p99"])
    index = index_of(settings)
    compared = compare_sides(*(select_group(index, name, settings.root) for name in ("before", "after")), metric)
    fault, control = (row.comparison for row in compared.rows)
    assert fault.floor == pytest.approx(spread_of(control.before))
    # 50 % more, where the controls vary by 75 %: that is not to be believed, and not the same either.
    assert fault.verdict is ComparisonVerdict.INCONCLUSIVE
    assert fault.detectable is None or fault.detectable >= fault.floor
    assert control.floor == 0


def test_the_table_reports_omissions_and_detectable_effects(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    put(settings.results, *(measured("before", 1000 + 100 * n) for n in range(5)))
    put(settings.results, *(measured("after", 1040 + 100 * n) for n in range(5)))
    put(settings.results, measured("before", 1.0, state_mb=8.0), measured("before", 1.0, state_mb=16.0))
    put(settings.results, measured("after", 1.0, state_mb=32.0))
    compared = compare_named("before", "after", ["latency_ms.p99"])
    assert compared.unmatched == (2, 1)
    (row,) = as_json(compared)
    assert row["verdict"] == "inconclusive"
    assert row["remark"] == f"minimum detectable effect {row['detectable']:.0%}"
    print_comparison(compared, "before", "after")
    assert "Configurations omitted: 2 only in before, 1 only in after." in " ".join(capsys.readouterr().out.split())


def test_with_many_cells_less_would_show(settings: Settings) -> None:
    for state in range(1, 9):
        put(settings.results, *(measured("before", 1000 + 100 * n, state_mb=float(state)) for n in range(5)))
        put(settings.results, *(measured("after", 1040 + 100 * n, state_mb=float(state)) for n in range(5)))
    rows = as_json(compare_named("before", "after", ["latency_ms.p99"]))
    assert len(rows) == 8
    (alone,) = as_json(compare_named("before", "after", ["latency_ms.p99"]))[:1]
    assert {row["remark"] for row in rows} == {f"minimum detectable effect {alone['detectable']:.0%}"}


def test_nights_of_one_side_that_differ_make_a_floor(settings: Settings) -> None:
    for number, level in enumerate((900, 1000, 1100)):
        records = (measured("before", level, series=f"night-{number}") for _ in range(2))
        put(settings.results, *records)
    put(settings.results, *(measured("after", 1300 + n) for n in range(5)))
    (row,) = as_json(compare_named("before", "after", ["latency_ms.p99"]))
    assert row["noise_floor"] == pytest.approx(4.3027 * 100 * (4 / 3) ** 0.5 / 1000, rel=1e-3)
    assert row["verdict"] == "inconclusive"


def test_a_side_is_its_median_and_how_many_did_not_end() -> None:
    (metric,) = metrics_named(["latency_ms.p99"])
    assert side_text(metric, exact_values([1.0, 2.0, 6.0])) == "2.0 (n=3)"
    assert side_text(metric, [*exact_values([1.0, 2.0]), ValueRange(6.0, math.inf)]) == "2.0 (n=3, 1 censored)"
    assert side_text(metric, [ValueRange(low, math.inf) for low in (4.0, 5.0, 3.0)]) == "> 5.0 (n=3, 3 censored)"


def two_sides(before: list[Record], after: list[Record], key: str = "latency_ms.p99") -> comparing.ComparisonTable:
    sides = (RecordGroup(name, tuple(map(IndexEntry.of, records))) for name, records in (("A", before), ("B", after)))
    return compare_sides(*sides, metrics_named([key]))


def test_a_row_has_texts() -> None:
    """The cell by its axes, or by its identity where nothing else was measured."""
    before, after = ([measured("s", p99 + n) for n in range(5)] for p99 in (1000, 1500))
    (row,) = two_sides(before, after).rows
    cells = row_texts(row, ())
    assert (cells["cell"], cells["metric"], cells["verdict"], cells["remark"]) == (
        row.point.config_id, "Latency p99 (ms)", "worse", ""
    )  # fmt: skip
    assert (cells["before"], cells["after"], cells["p"]) == ("1,002 (n=5)", "1,502 (n=5)", cells["p"])
    assert cells["change"].startswith("+49.9% [+49.") and cells["change"].endswith("%]")
    more = [measured("s", 10.0, state_mb=8.0, rate=1000) for _ in range(5)]
    compared = two_sides([*before, *more], [*after, *more])
    assert [row_texts(row, compared.axes)["cell"] for row in compared.rows] == [
        "rate 500 records/s, state 1 MB", "rate 1,000 records/s, state 8 MB"
    ]  # fmt: skip
    nothing = two_sides([measured("s", 0.0)], [measured("s", 5.0)]).rows[0]
    assert (row_texts(nothing, ())["change"], row_texts(nothing, ())["p"]) == ("—", "1")
    assert row_texts(nothing, ())["remark"] == "1 of 5 repetitions"


def test_a_verdict_stands_on_one_line_however_narrow_its_column(capsys: pytest.CaptureFixture[str]) -> None:
    compared = two_sides([measured("s", 1.0)], [measured("s", 1.0)])
    print_comparison(compared, "the run before the upgrade of the broker", "the run after the upgrade of the broker")
    assert "inconclusive" in capsys.readouterr().out


def test_rows_stand_cell_by_cell_with_the_metrics_in_the_order_that_was_asked_for() -> None:
    sides = [
        RecordGroup(name, tuple(IndexEntry.of(measured("s", 1.0, state_mb=state)) for state in (8.0, 1.0)))
        for name in ("A", "B")
    ]
    rows = compare_sides(*sides, metrics_named(["recovery.reload_s", "latency_ms.p99"])).rows
    assert [(row.point.config["state_mb"], row.metric.key) for row in rows] == [
        (1.0, "recovery.reload_s"), (1.0, "latency_ms.p99"), (8.0, "recovery.reload_s"), (8.0, "latency_ms.p99")
    ]  # fmt: skip


def test_a_figure_that_one_side_does_not_know_makes_no_row() -> None:
    known, unknown = [measured("s", 1.0)], [measured("s", 1.0, status="failed")]
    sides = (
        RecordGroup("A", tuple(map(IndexEntry.of, known))),
        RecordGroup("B", tuple(map(IndexEntry.of, [*known, *unknown]))),
    )
    assert [len(row.comparison.after) for row in compare_sides(*sides, metrics_named(["latency_ms.p99"])).rows] == [1]
    assert compare_sides(*sides, metrics_named(["recovery.replay_s"])).rows == ()


def test_the_noise_floor_is_that_of_controls_with_the_same_settings_else_of_the_noisiest() -> None:
    def controls(state: float, *levels: float) -> list[Record]:
        return [measured("s", level, state_mb=state, fault="none") for level in levels]

    # The second of each pair differs by sqrt(2) times its half distance: 10 % and 30 % of 100.
    quiet, noisy = controls(1.0, 90.0, 110.0), controls(8.0, 70.0, 130.0)
    kills = [measured("s", 100.0, state_mb=state) for state in (1.0, 8.0, 16.0)]
    # In whatever order a record has its parameters.
    noisy = [one.model_copy(update={"config": dict(reversed(one.config.items()))}) for one in noisy]
    compared = two_sides([*quiet, *kills], [*noisy, *kills])
    floors = {row.point.config["state_mb"]: row.comparison.floor for row in compared.rows}
    assert floors == pytest.approx({1.0: 0.1 * 2**0.5, 8.0: 0.3 * 2**0.5, 16.0: 0.3 * 2**0.5})
    single = two_sides([*kills, *controls(1.0, 100.0)], kills)
    assert {row.comparison.floor for row in single.rows} == {0.0}, "one run says nothing of how much they differ"


def test_only_what_is_counted_from_the_fault_on_is_censored() -> None:
    """A censored recovery has a lower bound if known, and no other figure."""

    def entry(**recovery: Any) -> IndexEntry:
        return IndexEntry.of(record("20261121T061500Z-000001", recovery=recovery))

    unseen, unwatched = entry(recovered=False, censored_at_s=30.0), entry(recovered=False)
    for key in ("recovery.macro_s", "recovery.reload_s"):
        found = values_of([unseen, unwatched, entry(), entry(recovered=True)], key)
        assert found == (ValueRange(30.0, math.inf),)
    for key in ("recovery.replay_s", "recovery.detection_s"):
        assert values_of([unseen], key) == ()
    seen = values_of([entry(recovered=False, censored_at_s=30.0, reload_s=4.0)], "recovery.reload_s")
    assert seen == (ValueRange(4.0, 4.0),), "it was reloaded, though not recovered"


def test_programs_get_shares_as_numbers_and_nothing_that_is_infinite() -> None:
    endless = {"recovered": False, "censored_at_s": 30.0}
    before = [record(f"a{n}", recovery={"recovered": True, "macro_s": 10.0 + n}) for n in range(5)]
    after = [record(f"b{n}", recovery=endless if n else {"recovered": True, "macro_s": 20.0}) for n in range(5)]
    (row,) = as_json(two_sides(before, after, "recovery.macro_s"))
    assert (row["config_id"], row["metric"], row["unit"]) == (before[0].config_id, "recovery.macro_s", "s")
    assert row["config"]["state_mb"] == 1.0
    assert row["before"] == {"median": 12.0, "n": 5, "censored": 0}
    assert row["after"] == {"median": None, "n": 5, "censored": 4}
    assert (row["change"]["value"], row["change"]["high"]) == (None, None) and row["change"]["low"] > 0
    assert (row["verdict"], row["noise_floor"]) == ("worse", 0.0)
    (few,) = as_json(two_sides(before[:1], after[:1], "recovery.macro_s"))
    assert (few["change"], few["p"], few["detectable"], few["remark"]) == (None, 1.0, None, "1 of 5 repetitions")


def test_records_that_stand_on_both_sides_are_counted_and_refused() -> None:
    entries = tuple(IndexEntry.of(measured("s", 1.0)) for _ in range(3))
    a, b = RecordGroup("A", entries[:2]), RecordGroup("B", entries[1:])
    assert (shared_records(a, b), shared_records(a, RecordGroup("C", entries[2:]))) == (1, 0)
    require_disjoint(a, RecordGroup("C", entries[2:]))
    with pytest.raises(ConfigError, match="B: shares 1 records with A"):
        require_disjoint(a, b)


@pytest.mark.parametrize("error", [FileNotFoundError("git"), subprocess.TimeoutExpired("git", 10)])
def test_without_git_no_name_is_a_revision(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(*arguments: Any, **named: Any) -> None:
        raise error

    put(settings.results, measured("before", 1.0))
    index = index_of(settings)
    monkeypatch.setattr(subprocess, "run", fails)
    with pytest.raises(ConfigError, match="HEAD: no records; expected a sweep.* known: before"):
        select_group(index, "HEAD", settings.root)


def test_a_commit_is_known_by_twelve_digits_and_a_build_by_what_follows_the_last_at(settings: Settings) -> None:
    head = committed(settings)
    put(settings.results, *(measured(build, 1.0, commit=head[:12], build=build) for build in ("b1", "b2")))
    put(settings.results, measured("longer", 1.0, commit=head[:13]), measured("user-host", 1.0), measured("none", 1.0))
    assert sweeps_of(settings, "HEAD@b2") == sweeps_of(settings, "HEAD@{0}@b2") == ["b2"]
    assert sweeps_of(settings, "user-host@b1") == ["user-host"]
    with pytest.raises(ConfigError, match=r"HEAD@\{0\}: got builds b1, b2"):
        sweeps_of(settings, "HEAD@{0}")
    for name in ("@b1", "HEAD@"):
        with pytest.raises(ConfigError, match=f"{name}: no records; expected a sweep"):
            sweeps_of(settings, name)


def test_a_matrix_narrows_a_side(settings: Settings) -> None:
    put(settings.results, measured("s", 1.0, matrix="m1"), measured("s", 1.0, matrix="m2"))
    assert len(sweeps_of(settings, "s", matrix="m1")) == 1 and len(sweeps_of(settings, "s", matrix=None)) == 2
