"""Two sides by their names, compared: which records they are, what is refused, and what the table says."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from faultline.base.errors import ConfigError
from faultline.base.settings import Settings
from faultline.comparison import compare as comparing
from faultline.comparison.compare import (
    as_json,
    compare_named,
    compare_sides,
    metrics_named,
    print_comparison,
    sample_of,
    side_text,
)
from faultline.comparison.selection import side_of
from faultline.comparison.statistics.comparison import Verdict
from faultline.comparison.statistics.sample import Sample
from faultline.records.index import Index
from faultline.records.record import Record
from faultline.records.summary import Entry
from tests.unit.pages_store import put, record

NUMBERS = iter(range(10_000))


def measured(sweep: str, p99: float, *, reload_s: float | None = 4.0, commit: str = "", **named: Any) -> Record:
    """A record whose p99 and reload are as given; a `reload_s` of None: not recovered within 30 s."""
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


def entries(settings: Settings, sweep: str) -> list[Entry]:
    index = Index(settings.results)
    index.refresh()
    return index.of_sweep(sweep)


def test_a_slower_sweep_is_told(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    two_sweeps(settings)
    compared = compare_named("before", "after", ["latency_ms.p99", "recovery.reload_s"])
    assert [row.comparison.verdict for row in compared.rows] == [Verdict.WORSE, Verdict.SAME]
    print_comparison(compared, "before", "after")
    said = capsys.readouterr().out
    assert "1,002 (n=5)" in said
    assert "1,502 (n=5)" in said
    assert "+49.9%" in said
    assert "worse" in said
    rows = json.loads(json.dumps(as_json(compared)))
    assert rows[0]["verdict"] == "worse"
    assert rows[0]["before"] == {"median": 1002.0, "n": 5, "censored": 0}
    assert rows[0]["change"]["low"] > 0.4


def test_recoveries_that_nobody_saw_end_are_censored_not_left_out(settings: Settings) -> None:
    two_sweeps(settings, reload_s=None)
    sample = sample_of(entries(settings, "after"), "recovery.reload_s")
    assert (sample.values, sample.censored) == ((30.0,) * 5, (True,) * 5)
    row = compare_named("before", "after", ["recovery.reload_s"]).rows[0]
    assert row.comparison.verdict is Verdict.WORSE
    assert as_json(compare_named("before", "after", ["recovery.reload_s"]))[0]["after"]["median"] is None


def test_a_day_means_its_night_before_it_means_what_was_measured_on_it(settings: Settings) -> None:
    late = measured("late", 1.0, measured_at="2026-11-30T01:00:00+00:00")
    put(settings.results, late.model_copy(update={"logical_date": "2026-11-20T02:00:00+00:00"}))
    put(settings.results, measured("adhoc", 1.0, measured_at="2026-11-30T09:00:00+00:00"))
    index = Index(settings.results)
    index.refresh()
    assert [entry.sweep_id for entry in side_of(index, "2026-11-20", settings.root).entries] == ["late"]
    assert [entry.sweep_id for entry in side_of(index, "2026-11-30", settings.root).entries] == ["adhoc"]


def test_a_revision_is_what_git_takes_for_one(settings: Settings) -> None:
    git = ["git", "-C", str(settings.root), "-c", "user.name=x", "-c", "user.email=x@x"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "one"], check=True)
    subprocess.run([*git, "tag", "release"], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout[:12]
    put(settings.results, measured("clean", 1.0, commit=head), measured("changed", 1.0, commit=f"{head}-dirty"))
    index = Index(settings.results)
    index.refresh()
    for name in ("release", "HEAD", head[:7]):
        assert [entry.sweep_id for entry in side_of(index, name, settings.root).entries] == ["clean"]
    with pytest.raises(ConfigError, match="no-such-tag: has no record; give a sweep, a day or a revision"):
        side_of(index, "no-such-tag", settings.root)
    with pytest.raises(ConfigError, match="--output=x: has no record"):
        side_of(index, "--output=x", settings.root)


def test_sides_that_cannot_be_compared_are_refused_by_name(settings: Settings) -> None:
    two_sweeps(settings)
    put(settings.results, measured("broken", 1.0, status="invalid"), measured("other", 1.0, state_mb=8.0))
    put(settings.results, measured("mixed", 1.0), measured("mixed", 1.0, build="b2"))
    refused = {
        ("before", "afer"): "afer: has no record; give a sweep, a day or a revision; did you mean after",
        ("before", "broken"): "broken: none of its 1 records is valid; choose others",
        ("before", "mixed"): "mixed: records of the builds b1, b2 are never averaged; write mixed@b1, say",
        ("before", "before"): "before: is on both sides; name two that differ",
        ("before", "before@b3"): "before@b3: before has no record of the build b3; it has b1",
        ("before", "2026-99-99"): "2026-99-99: is no date",
        ("before", "other"): "other: no configuration of it was measured by before too",
    }
    for (a, b), words in refused.items():
        with pytest.raises(ConfigError, match=words):
            compare_named(a, b, [])
    with pytest.raises(ConfigError, match="before: none of its 5 records is valid and of matrix x; choose others"):
        compare_named("before", "after", [], matrix="x")
    assert compare_named("before", "mixed@b2", ["latency_ms.p99"]).rows
    for name in ("latency_ms.p98", "work.tasks"):
        with pytest.raises(ConfigError, match=f"--metric {name}: no figure of which less or more is better"):
            metrics_named([name])


def test_how_much_controls_differ_is_the_noise_floor(settings: Settings) -> None:
    two_sweeps(settings)
    for sweep in ("before", "after"):
        put(settings.results, *(measured(sweep, p99, fault="none") for p99 in (500, 1000, 1500, 2000, 4000)))
    metric = metrics_named(["latency_ms.p99"])
    index = Index(settings.results)
    index.refresh()
    compared = compare_sides(*(side_of(index, name, settings.root) for name in ("before", "after")), metric)
    fault, control = (row.comparison for row in compared.rows)
    assert fault.floor == pytest.approx(control.before.spread)
    # 50 % more, where the controls vary by 75 %: that is not to be believed, and not the same either.
    assert fault.verdict is Verdict.CANNOT_TELL
    assert fault.detectable is None or fault.detectable >= fault.floor
    assert control.floor == 0


def test_the_table_says_what_was_left_out_and_what_would_have_shown(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    put(settings.results, *(measured("before", 1000 + 100 * n) for n in range(5)))
    put(settings.results, *(measured("after", 1040 + 100 * n) for n in range(5)))
    put(settings.results, measured("before", 1.0, state_mb=8.0), measured("before", 1.0, state_mb=16.0))
    put(settings.results, measured("after", 1.0, state_mb=32.0))
    compared = compare_named("before", "after", ["latency_ms.p99"])
    assert compared.only == (2, 1)
    (row,) = as_json(compared)
    assert row["verdict"] == "cannot tell"
    assert row["remark"] == f"{row['detectable']:.0%} or more would have shown"
    print_comparison(compared, "before", "after")
    assert "Configurations left out: 2 only in before, 1 only in after." in " ".join(capsys.readouterr().out.split())


def test_with_too_many_cells_no_difference_would_show(settings: Settings) -> None:
    for state in range(1, 9):
        put(settings.results, *(measured("before", 1000 + 100 * n, state_mb=float(state)) for n in range(5)))
        put(settings.results, *(measured("after", 1040 + 100 * n, state_mb=float(state)) for n in range(5)))
    rows = as_json(compare_named("before", "after", ["latency_ms.p99"]))
    assert len(rows) == 8
    assert {row["remark"] for row in rows} == {"no difference would show with so few repetitions"}


def test_nights_of_one_side_that_differ_make_a_floor(settings: Settings) -> None:
    for night, level in enumerate((900, 1000, 1100)):
        records = (measured("before", level, series=f"night-{night}") for _ in range(2))
        put(settings.results, *records)
    put(settings.results, *(measured("after", 1300 + n) for n in range(5)))
    (row,) = as_json(compare_named("before", "after", ["latency_ms.p99"]))
    assert row["noise_floor"] == pytest.approx(4.3027 * 100 * (4 / 3) ** 0.5 / 1000, rel=1e-3)
    assert row["verdict"] == "cannot tell"


def test_a_side_is_its_median_and_how_many_did_not_end() -> None:
    (metric,) = metrics_named(["latency_ms.p99"])
    assert side_text(metric, Sample.of([1.0, 2.0, 6.0])) == "2.0 (n=3)"
    assert side_text(metric, Sample((1.0, 2.0, 6.0), (False, False, True))) == "2.0 (n=3, 1 censored)"
    assert side_text(metric, Sample((4.0, 5.0, 3.0), (True, True, True))) == "> 5.0 (n=3, 3 censored)"
