"""Two experiments over each other."""

from __future__ import annotations

import json
from pathlib import Path

import plotly.graph_objects as go
import pytest

from faultline.records.record import Record
from faultline.reports.pages.experiment import experiment_page, overlay_page
from faultline.reports.pages.site import Unknown
from tests.unit.pages_store import app, ask, figures, put, record, rows, site
from tests.unit.reports.test_pages_experiment import judged
from tests.unit.reports.test_report import Page
from tests.unit.sample_records import RECOVERED
from tests.unit.synthetic import Scenario


def two(results: Path) -> tuple[Record, Record]:
    """A judged attempt, and another of the same sweep with the same curves, moved by 3 s, and half the recovery."""
    first = judged(results, Scenario()).model_copy(update={"sweep_id": "kills", "matrix": "kill"})
    put(results, first)
    second = first.model_copy(update={"attempt": "20261121T070000Z-ffffff", "repetition": 1, "build": "b2"})
    recovery = first.metrics.recovery
    halved = recovery.model_copy(update={"macro_s": (recovery.macro_s or 0) / 2})
    put(results, second.model_copy(update={"metrics": first.metrics.model_copy(update={"recovery": halved})}))
    series = json.loads((results / "attempts" / first.attempt / "series.json").read_text())
    for name in ("latency", "throughput", "lag", "cpu", "events"):
        for point in series[name]:
            point["t_s"] += 3.0
    folder = results / "attempts" / second.attempt
    folder.mkdir()
    (folder / "series.json").write_text(json.dumps(series))
    return first, second


def test_both_begin_at_their_fault_and_their_recoveries_are_marked(tmp_path: Path) -> None:
    first, second = two(tmp_path)
    html = overlay_page(site(tmp_path), first.attempt, second.attempt)
    drawn = go.Figure(figures(html)["overlay"])
    a, b = drawn.data[:4], drawn.data[4:]
    for mine, other in zip(a, b, strict=True):
        assert mine.x == pytest.approx(other.x) and mine.y == other.y and min(mine.x) < 0 < max(mine.x)
    macro = first.metrics.recovery.macro_s
    assert macro is not None
    assert sorted(shape.x0 for shape in drawn.layout.shapes) == pytest.approx([0.0, macro / 2, macro])
    table = rows(html)
    assert ["build", first.build, "b2"] in table
    assert next(row for row in table if row[0] == "Macro recovery (s)")[3] == "0.50"


def test_without_a_fault_both_begin_at_the_gate(tmp_path: Path) -> None:
    made = judged(tmp_path, Scenario(fault=False))
    html = overlay_page(site(tmp_path), made.attempt, made.attempt)
    drawn = go.Figure(figures(html)["overlay"])
    assert not drawn.layout.shapes and drawn.layout.xaxis.title.text.startswith("Seconds after T0")
    assert "they are repetitions of each other" in html


def test_an_experiment_offers_the_others_of_its_sweep(tmp_path: Path) -> None:
    put(
        tmp_path,
        record("a1", recovery=RECOVERED),
        record("a2", state_mb=8.0),
        record("a3"),
        record("other", sweep="s2"),
    )
    one = site(tmp_path)
    asked = Page(experiment_page(one, "a1")).text
    assert asked.index("a3") < asked.index("a2") and "· other" not in asked, "its own configuration first"
    assert 'value="a2"' in overlay_page(one, "a1", "") and 'value="other"' in overlay_page(one, "", "")


@pytest.mark.parametrize("content", ["[cut", "[]", "{}", '{"events": 3}', '{"events": [{"name": "t0", "t_s": "x"}]}'])
def test_curves_that_cannot_be_read_leave_the_figures(tmp_path: Path, content: str) -> None:
    first, second = two(tmp_path)
    (tmp_path / "attempts" / second.attempt / "series.json").write_text(content)
    html = overlay_page(site(tmp_path), first.attempt, second.attempt)
    assert "Macro recovery" in html and not figures(html)
    assert "cannot be read" in html or "does not hold what is expected" in html


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    put(tmp_path, record("a1"))
    with pytest.raises(Unknown, match="No attempt zz has a record"):
        overlay_page(site(tmp_path), "a1", "zz")
    assert ask(app(tmp_path), "/overlay?a=a1&b=zz").status == 404
    assert ask(app(tmp_path), "/overlay").status == 200
