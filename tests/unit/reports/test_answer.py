"""Texts of a sweep summary in the terminal, on its page, in the report and in the note of its run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import typer.testing
from click.testing import Result
from hypothesis import given
from hypothesis import strategies as st

from faultline.cli import main as cli
from faultline.comparison.effects import MIN_FREEDOM, EffectVerdict
from faultline.comparison.recommendation import Objective
from faultline.comparison.sweep_summary import (
    SweepSummary,
    effects_of_axis,
    invalid_runs_of,
    objective_of,
    summary_of,
    summary_of_sweep,
)
from faultline.records.index_entry import IndexEntry
from faultline.records.record import Record
from faultline.reports.console import effects_json, summary_json
from faultline.reports.figures.front import front_figure
from faultline.reports.notes import MAX_NOTE, sweep_note
from faultline.reports.pages.sweep import sweep_page
from faultline.reports.report import render
from faultline.reports.views.sweep_summary import (
    effect_text,
    invalid_text,
    placebo_text,
    recommendation_lines,
    size_text,
    summary_lines,
    unmet_limits_text,
)
from faultline.system.errors import ConfigError
from faultline.system.settings import Settings
from tests.unit.pages_store import app, ask, figures, put, site
from tests.unit.swept_records import swept, with_placebo


def summarize(records: Sequence[Record], objective: Objective | None = None) -> SweepSummary:
    found = summary_of([IndexEntry.of(one) for one in records], objective)
    assert found is not None
    return found


def swept_summary(objective: Objective | None = None, **named: Any) -> SweepSummary:
    return summarize(swept(**named), objective)


def invalid(record: Record, reason: str, **changed: Any) -> Record:
    return record.model_copy(update={"status": "invalid", "reasons": [reason], **changed})


def test_each_step_of_an_axis_is_one_line_with_interval_and_n() -> None:
    lines = summary_lines(swept_summary())
    (line,) = [one for one in lines if one.startswith("Checkpoint interval 5 s instead of 2 s")]
    assert re.search(r"CPU −4\d % \(−4\d … −3\d\), latency p50 × 2\.\d \(2\.\d … 2\.\d\)", line)
    assert line.endswith("n = 10 pairs.")
    assert any(
        one.startswith("Lowest CPU with a completed recovery: checkpoint interval 10 s (CPU 0.4") for one in lines
    )
    assert "Worst case over: state 1 MB; state 8 MB." in lines


def test_inconclusive_effects_name_the_required_repetitions_and_single_runs_prove_nothing() -> None:
    lines = summary_lines(swept_summary(scatter=0.3))
    head = lines.index("Inconclusive, with the additional repetitions required per configuration:")
    assert lines[head + 1].startswith("· ")
    assert re.search(r"about \d+ more repetitions?", " ".join(lines[head:]))
    first, *rest = summary_lines(swept_summary(repetitions=1))
    assert "measured once" in first and "repetitions=5" in first
    seen = [line for line in rest if "instead of" in line]
    assert len(seen) == 3 and all(line.startswith("Single runs: ") for line in seen), "two steps, and one"
    assert any("latency p50 × 2." in line for line in seen)


def test_a_single_step_is_one_line_with_intervals_and_required_runs() -> None:
    found = swept_summary(intervals=(2.0, 5.0), states=(1.0,), repetitions=6)
    line, *rest = summary_lines(found)
    assert re.match(
        r"Checkpoint interval 5 s instead of 2 s: CPU −\d+ % \(−\d+ … −\d+\), latency p50 × 2\.\d \(2\.\d … 2\.\d\), "
        r"recovery \+\d\.\d s \(.+ … .+\), n = 6 runs each\.$",
        line,
    )
    assert not any("latency p50" in other or "recovery +" in other for other in rest), "each figure once"
    few = summary_lines(swept_summary(intervals=(2.0, 5.0), states=(1.0,), repetitions=3, scatter=0.4))
    assert few[1].startswith("Inconclusive: ") and re.search(r"requires about \d+ more runs? of each", few[1])


@pytest.mark.parametrize("usable", [3, 0])
def test_invalid_runs_are_excluded_and_one_line_shows_their_effects(usable: int) -> None:
    sound = swept((2.0, 5.0), (1.0,), 6, controls=False)
    records = [one if one.repetition < usable else invalid(one, "not-steady: lag drifts by 30 %") for one in sound]
    entries = [IndexEntry.of(one) for one in records]
    found, lost = summary_of(entries), invalid_runs_of(entries)
    assert lost is not None and lost.codes == {"not-steady": 2 * (6 - usable)}
    text = invalid_text(lost)
    assert "not-steady" in text and "n = 6 runs each" in text and "\n" not in text
    if usable:
        assert found is not None and "n = 3 runs each" in summary_lines(found)[0]
    else:
        assert found is None and text.startswith("No usable run")
    assert text in unescape(render(records, Path("/nowhere"), title="t"))


def test_a_run_with_a_newer_usable_record_is_not_invalid() -> None:
    sound = swept((2.0, 5.0), (1.0,), 3, controls=False)
    for records in (sound, [*sound, invalid(sound[0], "background-load: why", attempt="z-first")]):
        assert invalid_runs_of([IndexEntry.of(one) for one in records]) is None


def test_recoveries_without_reliable_controls_are_marked() -> None:
    assert "No control run was measured" in summary_lines(swept_summary(controls=False))[-1]
    records = [with_placebo(one, None) if one.config["fault"] == "none" else one for one in swept()]
    text = placebo_text(summarize(records).placebo)
    assert text.endswith("are not reliable.") and "15 of 15 control runs unrecovered (100 %)" in text
    assert "recoveries are not reliable" in sweep_note(records, "s1", 0)


def test_unmet_limits_name_the_nearest_configuration() -> None:
    found = swept_summary(Objective("cpu", {"recovery": 5.0})).recommendation
    assert found is not None
    nearest = r"the nearest is checkpoint interval 2 s: recovery 1\d\.\d\d s, \d\.\d\d s over the limit"
    assert re.fullmatch(f"no configuration has recovery under 5\\.00 s; {nearest}", unmet_limits_text(found))


def test_configurations_without_a_usable_run_are_named() -> None:
    records = [
        invalid(one, "background-load: 0.4 cores lost") if one.config["checkpoint_interval_s"] == 5.0 else one
        for one in swept(intervals=(2.0, 5.0), states=(1.0,))
    ]
    text = recommendation_lines(summarize(records))[0]
    assert "checkpoint interval 5 s" in text


@given(st.floats(0.0, 0.4), st.integers(1, 6), st.integers(0, 5), st.integers(0, 50))
def test_any_records_have_finite_summary_texts(scatter: float, repetitions: int, censored: int, seed: int) -> None:
    found = swept_summary(scatter=scatter, repetitions=repetitions, censored=censored, seed=seed, intervals=(2.0, 5.0))
    values = " ".join(summary_lines(found))
    assert "nan" not in values
    assert "inf" not in values
    json.dumps(summary_json(found), allow_nan=False)
    for effect in found.effects:
        change = effect.found.change
        assert change.low <= change.value <= change.high
        assert effect.verdict is EffectVerdict.INCONCLUSIVE or effect.found.freedom >= MIN_FREEDOM
        assert "nan" not in size_text(effect) + effect_text(effect)


def test_the_front_is_points_without_a_line() -> None:
    figure = front_figure(swept_summary(censored=5))
    assert figure is not None
    assert {trace.mode for trace in figure.data} == {"markers+text", "markers"}
    medians = [trace for trace in figure.data if trace.mode == "markers+text"]
    assert {trace.marker.symbol for trace in medians} == {"circle", "triangle-up-open"}
    assert sorted(text for trace in medians for text in trace.text) == ["10 s", "2 s", "5 s"]


def test_the_front_has_each_run_as_a_small_point_hollow_where_it_is_invalid() -> None:
    sound = swept((2.0, 5.0), (1.0,), 5, controls=False)
    records = [invalid(one, "background-load: <b>") if one.repetition == 4 else one for one in sound]
    figure = front_figure(summarize(records), invalid_runs_of([IndexEntry.of(one) for one in records]))
    assert figure is not None
    runs = {trace.name: trace for trace in figure.data if trace.mode == "markers"}
    assert {name: len(trace.x) for name, trace in runs.items()} == {"one run": 8, "invalid run, does not count": 2}
    hollow = runs["invalid run, does not count"]
    assert hollow.marker.symbol == "circle-open" and all("background-load: <b>" in text for text in hollow.customdata)


def test_the_page_of_a_sweep_starts_with_the_summary_and_takes_objectives(tmp_path: Path) -> None:
    put(tmp_path, *swept())
    html = sweep_page(site(tmp_path), "s1")
    assert html.index("<h2>Summary</h2>") < html.index("Latency p99 (ms)</h2>")
    assert "front" in figures(html)
    html = unescape(ask(app(tmp_path), "/sweeps/s1?minimise=cpu&recovery=15").text)
    assert "Lowest CPU with recovery under 15.00 s: checkpoint interval 5 s" in html
    assert 'name="recovery" value="15"' in html
    assert "latency p99" in unescape(ask(app(tmp_path), "/sweeps/s1?minimise=latency").text)


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("recovery=x", "Recovery under: got 'x'"),
        ("recovery=-1", "Recovery under: got -1"),
        ("minimise=cpus", "--minimise: got cpus"),
        ("recovery=1", "the nearest is checkpoint interval 2 s"),
    ],
)
def test_an_invalid_objective_is_reported_on_the_page(tmp_path: Path, query: str, text: str) -> None:
    put(tmp_path, *swept())
    found = ask(app(tmp_path), f"/sweeps/s1?{query}")
    assert found.status == 200
    assert text in unescape(found.text)
    assert "instead of" in found.text


def test_notes_and_reports_contain_the_summary(tmp_path: Path) -> None:
    note = sweep_note(swept(intervals=(1.0, 2.0, 5.0, 10.0, 20.0, 30.0)), "s1", 0)
    assert len(note) <= MAX_NOTE, "the limit of Airflow"
    assert "Lowest CPU with a completed recovery: checkpoint interval 30 s" in note
    assert "measured once" in sweep_note(swept(repetitions=1), "s1", 0)
    html = render(swept(repetitions=5), tmp_path, title="t")
    assert html.index('id="summary"') < html.index('id="results"') and '"front"' in html


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    put(tmp_path, *swept())
    monkeypatch.setenv("FAULTLINE_RESULTS", str(tmp_path))
    return lambda *words: typer.testing.CliRunner().invoke(cli.app, list(words))


def test_advise_and_compare(command: Callable[..., Result]) -> None:
    text = command("advise", "s1", "--recovery-under", "15", "--minimise", "cpu")
    assert text.exit_code == 0, text.output
    assert text.output.startswith("Lowest CPU with recovery under 15.00 s: checkpoint interval 5 s")
    values = json.loads(command("advise", "s1", "--json").output)
    assert values["told"] is True and values["choose"]["configuration"] == "checkpoint interval 10 s"
    assert {one["beaten_by"] for one in values["front"]} == {None}
    along = ("compare", "s1", "--along", "checkpoint_interval_s")
    assert "5 s instead of 2 s" in command(*along).output
    assert {row["axis"] for row in json.loads(command(*along, "--json").output)} == {"checkpoint_interval_s"}


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        ("compare s1 --along rate", "--along: got rate; expected an axis of s1: state_mb, checkpoint_interval_s"),
        ("compare s1 s2 --along rate", "--along: "),
        ("compare s1", "B: missing"),
        ("advise s1 --recovery-under 5", "s1: no configuration has recovery under 5.00 s; the nearest is"),
        ("advise s1 --cpu-under nan", "--cpu-under: got nan"),
        ("advise s1 --minimise cost", "--minimise: got cost"),
        ("advise s9", "s9: no records"),
    ],
)
def test_invalid_arguments_of_advise_and_compare(command: Callable[..., Result], words: str, refusal: str) -> None:
    failed = command(*words.split())
    assert isinstance(failed.exception, ConfigError), failed.output
    assert refusal in str(failed.exception) and "\n" not in str(failed.exception)


def test_a_sweep_of_one_configuration_has_no_recommendation(tmp_path: Path) -> None:
    put(tmp_path, *swept(intervals=(2.0,), states=(1.0,)))
    settings = Settings(tmp_path, tmp_path, tmp_path)
    with pytest.raises(ConfigError, match="--along: "):
        effects_of_axis("s1", "state_mb", settings)
    found = summary_of_sweep("s1", settings)
    assert not found.has_content and effects_json(found.effects) == []
    assert recommendation_lines(found)[0].startswith("The sweep leaves nothing to choose: it has one configuration")
    assert objective_of(None, {"cpu": ("--cpu-under", None)}) is None
