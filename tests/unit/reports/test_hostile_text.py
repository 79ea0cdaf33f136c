"""Texts of records, job files and raw files are escaped in all outputs."""

from __future__ import annotations

import csv
import io
import re
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from faultline.cli.site_writer import crawl
from faultline.experiment.nightly_file import NIGHTLY
from faultline.records.record import Record
from faultline.reports.html import figures_json
from faultline.reports.markdown.page import results_page
from faultline.reports.notes import experiment_note, sweep_note
from faultline.reports.pages.compare import ComparePageQuery, compare_page
from faultline.reports.pages.experiment import experiment_page, overlay_page
from faultline.reports.pages.live import LiveSeries, live_figure
from faultline.reports.pages.overview import overview_page
from faultline.reports.pages.sweep import matrix_page, nightly_page, sweep_page
from faultline.reports.prometheus import prometheus_text
from faultline.reports.report import render
from faultline.reports.tables import as_cell
from faultline.reports.views.nightly import NightlyPageQuery
from faultline.reports.views.sweep import SweepPageQuery
from faultline.system.settings import ROOT, Settings
from tests.unit.hostile import PIECES, TEXTS, Skeleton, hostile_store
from tests.unit.pages_store import app, ask, figures, put, site

# Each page contains several texts; its twin has harmless ones.
DRAWN = st.lists(TEXTS, min_size=1, max_size=6)


def hostile_texts(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test with drawn `texts`, all pieces in sequence, and texts that are unlikely to be drawn."""
    for texts in (list(PIECES), ["|"], [" _hx_ "], ["=1+1", "-1+1", "a\r=1"]):
        test = example(texts=texts)(test)
    drawn = settings.default.max_examples // 12
    return settings(max_examples=drawn, suppress_health_check=[HealthCheck.too_slow])(given(texts=DRAWN)(test))


def named(texts: list[str]) -> Callable[[int], str]:
    """Return a function of n to the n-th text, with a prefix that sorts like its harmless twin."""
    return lambda number: f"w{number}{texts[number % len(texts)]}"


HARMLESS = named([""])


@contextmanager
def stores(texts: list[str]) -> Iterator[list[tuple[Path, list[Record], Callable[[int], str]]]]:
    """Yield a hostile results folder, and a harmless one that differs in texts only."""
    with tempfile.TemporaryDirectory() as folder:
        made = []
        for name, of in (("hostile", named(texts)), ("harmless", HARMLESS)):
            results = Path(folder) / name
            made.append((results, hostile_store(results, of), of))
        yield made


def pages_of(results: Path, records: list[Record]) -> dict[str, str]:
    """Return every page with these records, by name."""
    one, matrix = site(results), str(records[0].matrix)
    first, last = records[0].attempt, records[-1].attempt
    unknown = quote(f"x{first}", safe="")
    return {
        "overview": overview_page(one),
        "sweep": sweep_page(one, "s1"),
        "curves": sweep_page(one, "s1", SweepPageQuery(view="curves", metric="recovery.macro_s")),
        "matrix": matrix_page(one, matrix),
        "experiment": experiment_page(one, first),
        "invalid": experiment_page(one, records[3].attempt),
        "compare": compare_page(one, ComparePageQuery("s1", "s2")),
        "overlay": overlay_page(one, first, last),
        "unknown experiment": ask(app(results), f"/experiments/{unknown}").text,
        "unknown sweep": ask(app(results), f"/sweeps/{unknown}").text,
        "nothing": ask(app(results), f"/{unknown}").text,
    }


def assert_alike(hostile: str, harmless: str, name: str) -> Skeleton:
    """Assert equal markup and plain figures."""
    found = Skeleton(hostile)
    assert found.parts == Skeleton(harmless).parts, name
    for place, figure in figures(hostile).items():
        assert_plain(figure, f"{name} {place}")
    assert [*figures(hostile)] == [*figures(harmless)], name
    return found


@hostile_texts
def test_a_page_has_the_markup_of_its_harmless_twin(texts: list[str]) -> None:
    with stores(texts) as both:
        hostile, harmless = (pages_of(results, records) for results, records, _ in both)
        for name, html in hostile.items():
            found = assert_alike(html, harmless[name], name)
            assert all(one.startswith(("/", "#", "data:,")) for one in found.addresses), name


@pytest.mark.parametrize("dated", [True, False])
@hostile_texts
def test_nightly_pages_and_metrics_have_the_markup_of_their_harmless_twins(dated: bool, texts: list[str]) -> None:
    """Also for records with invalid dates."""
    date = "2026-11-20T02:00:00+00:00"
    with stores(texts) as both:
        found = []
        for results, records, _ in both:
            known = {"matrix": NIGHTLY, **({"logical_date": date, "measured_at": date} if dated else {})}
            put(results, *(record.model_copy(update=known) for record in records))
            one = site(results)
            found.append([nightly_page(one), nightly_page(one, NightlyPageQuery(axis="commit")), prometheus_text(one)])
        for hostile, harmless in zip(*(pages[:2] for pages in found), strict=True):
            assert_alike(hostile, harmless, "nights")
        assert found[0][2].count("\n") == found[1][2].count("\n")


def assert_plain(content: Any, where: str) -> None:
    """Assert that texts contain line breaks only, and templates the project's own markup only."""
    if isinstance(content, dict):
        for name, value in content.items():
            if name in ("hovertemplate", "texttemplate") and isinstance(value, str):
                marks = set(re.findall(r"<[^>]*>", value))
                assert "hx" not in value and marks <= {"<br>", "<extra>", "</extra>"}, where
            else:
                assert_plain(value, f"{where}.{name}")
    elif isinstance(content, list):
        for value in content:
            assert_plain(value, where)
    elif isinstance(content, str):
        assert "<" not in content.replace("<br>", ""), f"{where}: {content}"
        assert not re.search(r"&(?!amp;|lt;|gt;)", content), f"{where}: {content}"


@hostile_texts
def test_a_report_and_a_static_site_have_the_markup_of_their_harmless_twins(texts: list[str]) -> None:
    with stores(texts) as both:
        reports, sites = [], []
        for results, records, of in both:
            reports.append(render(records, results, title=of(1)))
            crawled = crawl(Settings(ROOT, results.parent / "home", results))
            sites.append([answer.body.decode() for _, answer in crawled if answer.media_type.startswith("text/html")])
        assert_alike(*reports, "report")
        assert len(sites[0]) == len(sites[1]) >= 8
        for hostile, harmless in zip(*sites, strict=True):
            for one in assert_alike(hostile, harmless, "site").addresses:
                assert re.match(r"[\w.#/-]|data:,", one) and ":" not in one.removeprefix("data:"), one


@hostile_texts
def test_a_table_as_csv_holds_no_formula_and_every_text(texts: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder)
        # Here the text comes first.
        records = hostile_store(results, lambda number: f"{texts[number % len(texts)]}{number}")
        table = list(csv.reader(io.StringIO(ask(app(results), "/experiments.csv").body.decode(), newline="")))
        assert len(table) == 1 + len(records) and {len(row) for row in table} == {len(table[0])}
        for cell in (cell for row in table for cell in row):
            assert not re.match(r"\s*[=+@＝＋－＠]|[\t\r\n]", cell) or is_number(cell), cell
            assert not re.match(r"\s*-", cell) or is_number(cell), cell
        place = table[0].index("build")
        assert sorted(row[place] for row in table[1:]) == sorted(as_cell(record.build) for record in records)


def is_number(text: str) -> bool:
    with suppress(ValueError):
        return isinstance(float(text), float)
    return False


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ("=1+1", "'=1+1"), ("+SUM(1)", "'+SUM(1)"), ("-2+3", "'-2+3"), ("@SUM(1)", "'@SUM(1)"), ("\t=1", "'\t=1"),
        ("\rx", "'\rx"), ("\nx", "'\nx"), (" =1", "' =1"), ("＝1", "'＝1"), ("-", "'-"), ("-4.2\n", "'-4.2\n"),
        ("-inf", "'-inf"), ("-4.2", "-4.2"), ("+1e-3", "+1e-3"), ("-.5", "-.5"), (-4.2, -4.2), (7, 7), (True, True),
        (None, None), ("", ""), ("a=b", "a=b"), ("1-2", "1-2"), ("2026-11-21", "2026-11-21"), ("'=1", "'=1"),
    ],
)  # fmt: skip
def test_a_text_that_begins_like_a_formula_is_no_formula_and_a_number_stays_one(value: Any, cell: Any) -> None:
    assert as_cell(value) == cell


def cells_of(text: str) -> list[int]:
    """Return the number of cells of each table line."""
    return [len(re.split(r"(?<!\\)(?:\\\\)*\|", line)) for line in text.splitlines() if line.startswith("|")]


def markdown(text: str) -> list[tuple[str, ...]]:
    """Return the elements that a Markdown parser makes of the text."""
    return Skeleton(MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(text)).parts


@pytest.mark.parametrize("matrix", ["recovery", "state_size_x_checkpoint_interval", "executor_cores"])
@hostile_texts
def test_a_page_in_markdown_has_the_elements_of_its_harmless_twin(matrix: str, texts: list[str]) -> None:
    with stores(texts) as both:
        hostile, harmless = (
            results_page([one.model_copy(update={"build": "b1"}) for one in records], matrix, name="n", evidence=())
            for _, records, _ in both
        )
        assert markdown(hostile.text) == markdown(harmless.text)
        assert cells_of(hostile.text) == cells_of(harmless.text), "excess cells would be dropped"
        assert [*hostile.images] == [*harmless.images]
        for one, other in zip(hostile.images.values(), harmless.images.values(), strict=True):
            tags = [[part.tag for part in ET.fromstring(svg).iter()] for svg in (one, other)]
            assert tags[0] == tags[1]


@hostile_texts
def test_notes_in_airflow_have_the_elements_of_their_harmless_twins(texts: list[str]) -> None:
    with stores(texts) as both:
        (_, hostile, _), (_, harmless, _) = both
        for one, other in zip(hostile, harmless, strict=True):
            # A long reason is cut before the link.
            assert set(markdown(experiment_note(one))) <= set(markdown(experiment_note(other)))
        assert set(markdown(sweep_note(hostile, "s1", 2))) <= set(markdown(sweep_note(harmless, "s1", 2)))


@given(TEXTS)
def test_the_name_of_a_fault_is_plotted_as_text_and_cannot_end_its_script(text: str) -> None:
    series = LiveSeries(0, True, ((0.0, 1.0),), ((0.0, 1.0),), (), ((1.0, f"w{text}"),))
    drawn = str(figures_json({"live": live_figure(series)}))
    assert not set(drawn) & set("<>&'"), "nothing that looks like a link"
    assert_plain(figures(f'<script type="application/json" id="figures">{drawn}</script>'), "live")
