"""Results pages in a real browser, at common widths and in both colour schemes."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, expect

from faultline.cli.site_writer import publish
from faultline.records.record import Record
from faultline.reports.report import write_report
from faultline.system.settings import ROOT, load_settings
from tests.support.airflow_ui import STEP_MS
from tests.support.browser import artefact_folder
from tests.support.nightly_results import SLOWER_CELL, write_nightly_runs
from tests.support.pages_server import served
from tests.unit.hostile import PIECES, hostile_store
from tests.unit.pages_store import grid, put, record
from tests.unit.reports.test_pages_experiment import two
from tests.unit.reports.test_pages_live import begin, measure

WIDTHS = (1440, 900, 390)
# Pages that every run opens; all others require --thorough.
ALWAYS = ("sweep", "experiment", "nights", "kept overview", "site")
LIVE = "20261121T061500Z-000001"
LONG = "not-steady: batches took 1,033 ms at T0 and 690 ms 20 s later, so the window did not begin in a steady state"


@pytest.fixture(scope="module")
def measured() -> list[Record]:
    """Published records of two matrices."""
    files = [ROOT / "docs" / "results" / "records" / f"{name}.json.gz" for name in ("topology_latency", "nexmark")]
    return [Record.model_validate(one) for file in files for one in json.loads(gzip.decompress(file.read_bytes()))]


@pytest.fixture(scope="module")
def pages(measured: list[Record], tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Addresses of all kinds of pages by name, over synthetic and published records."""
    results, real, empty = (tmp_path_factory.mktemp(name) for name in ("results", "real", "empty"))
    put(real, *measured)
    put(results, *grid(), *grid(sweep="s2", factor=1.1))
    put(results, record("u1", status="invalid", reasons=[LONG], state_mb=64.0, sweep="s2"))
    first, second = two(results)
    made = tmp_path_factory.mktemp("made")
    report = write_report([first, second, *measured[:6]], results, made / "report.html", title="Faultline results")
    settings = replace(load_settings(), results=results)
    # In a separate thread, since the browser has an event loop in this one.
    with ThreadPoolExecutor(1) as other:
        site = other.submit(publish, settings, made / "site", lambda text: None).result().parent
    write_nightly_runs(results)
    measure(begin(results, LIVE, sweep=None), 40, killed_at=22)
    with served(results) as address, served(real) as kept, served(empty) as before:
        yield {
            "overview": address,
            "sweep": f"{address}/sweeps/s2",
            "matrix": f"{address}/matrices/m",
            "experiment": f"{address}/experiments/{first.attempt}",
            "nights": f"{address}/nights",
            "commits": f"{address}/nights?by=commit",
            "compare": f"{address}/compare?a=s1&b=s2",
            "overlay": f"{address}/overlay?a={first.attempt}&b={second.attempt}",
            "live": f"{address}/live/{LIVE}",
            "unknown": f"{address}/sweeps/nothing",
            "empty overview": before,
            "setup": f"{before}/nights",
            "compare form": f"{address}/compare",
            "overlay form": f"{address}/overlay",
            "kept overview": kept,
            "kept sweep": f"{kept}/sweeps/{measured[0].sweep_id}",
            "kept matrix": f"{kept}/matrices/nexmark",
            "kept experiment": f"{kept}/experiments/{measured[-1].attempt}",
            "kept compare": f"{kept}/compare?a={measured[0].sweep_id}&b={measured[-1].sweep_id}",
            "report": report.as_uri(),
            "site": (site / "index.html").as_uri(),
            "site's sweep": (site / "sweeps" / "s2.html").as_uri(),
            "site's experiment": (site / "experiments" / f"{first.attempt}.html").as_uri(),
        }


@pytest.fixture(scope="module")
def pictures() -> Path:
    return artefact_folder("pages")


def opened(browser: Browser, address: str, width: int = WIDTHS[0], height: int = 900) -> tuple[Page, list[str]]:
    """Return a window with the first plot of a page, and its console errors."""
    page = browser.new_context(viewport={"width": width, "height": height}).new_page()
    page.set_default_timeout(STEP_MS)
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(address)
    if page.locator("[data-figure]").count():
        page.locator("[data-figure] .main-svg").first.wait_for()
    return page, problems


def test_no_page_exceeds_its_window_and_no_table_scrolls_on_a_desktop(
    browser: Browser, pages: dict[str, str], pictures: Path, share: int
) -> None:
    found = []
    for name in pages if share == 1 else ALWAYS:
        page, problems = opened(browser, pages[name])
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            if page.evaluate("document.documentElement.scrollWidth") > width:
                found.append(f"{name}: wider than {width}")
            for scheme in ("light", "dark")[: 2 if width == WIDTHS[0] else 1]:
                page.emulate_media(color_scheme=scheme)
                if share == 1:  # for manual inspection
                    page.screenshot(path=pictures / f"{name}-{width}-{scheme}.png", full_page=True)
            if width == WIDTHS[0]:
                found += [f"{name}: {table} scrolls" for table in scrolling(page)]
        assert [one for one in problems if "404" not in one] == [], name
        page.context.close()
    assert not found, "; ".join(found)


def test_a_static_site_has_no_element_that_needs_a_server(browser: Browser, pages: dict[str, str]) -> None:
    for name in ("site", "site's sweep", "site's experiment"):
        page, _ = opened(browser, pages[name])
        for hidden in ("Compare sweeps", "Overlay experiments", "CSV", "Show", "Active runs"):
            assert not page.get_by_text(hidden, exact=True).locator("visible=true").count(), (name, hidden)
        expect(page.get_by_role("link", name="Nightly runs", exact=True).first).to_be_visible()
        page.context.close()


def scrolling(page: Page) -> list[str | None]:
    """Return the labels of tables that do not fit."""
    return [
        table.get_attribute("aria-label")
        for table in page.locator(".scroll:has(table)").all()
        if table.evaluate("place => place.scrollWidth > place.clientWidth + 1")
    ]


def test_the_nightly_page_reports_a_regression(browser: Browser, pages: dict[str, str], pictures: Path) -> None:
    page, _ = opened(browser, f"{pages['nights']}?metric=latency_ms.p50&cell={SLOWER_CELL}", 1200, 1240)
    newest = page.locator("tbody tr", has_text="2026-11-10").first
    expect(newest).to_contain_text("red: ")
    expect(newest).to_contain_text("since 2026-11-09")
    page.screenshot(path=pictures / "morning.png")
    page.get_by_label("Horizontal axis").select_option("commit")
    page.wait_for_url("**by=commit**")
    expect(page.locator(".xtick").first).to_have_text("1a5be8840c72")
    page.context.close()


def test_an_overlay_is_selected_from_a_list(browser: Browser, pages: dict[str, str]) -> None:
    page, _ = opened(browser, pages["experiment"])
    page.get_by_label("From the same sweep").select_option(index=1)
    page.get_by_role("button", name="Show").last.click()
    page.wait_for_url("**/overlay?**")
    page.locator("[data-figure=overlay] .main-svg").first.wait_for()
    page.get_by_role("link", name="Overlay experiments").click()
    expect(page.locator("select[name=a] option").nth(1)).to_be_attached()
    page.context.close()


def test_texts_of_records_are_drawn_as_text(browser: Browser, tmp_path: Path) -> None:
    """Plotly interprets links and styles in texts."""
    hostile = [*(one for one in PIECES if "<" in one or "&" in one), "<b>hx</b>", '<a href="https://hx.invalid">hx</a>']
    first, *_ = hostile_store(tmp_path, lambda number: f"w{number}{hostile[number % len(hostile)]}")
    with served(tmp_path) as address:
        for page_address in ("/sweeps/s1?view=curves", f"/experiments/{quote(first.attempt, safe='')}"):
            page, problems = opened(browser, address + page_address)
            drawn = page.locator("[data-figure] .main-svg")
            assert "<hx>" in " ".join(drawn.all_text_contents()) or page_address.startswith("/experiments")
            assert page.locator("hx, [onhx], .main-svg a, [href^='javascript:'], [href*='hx.invalid']").count() == 0
            assert page.evaluate("typeof window.hx") == "undefined" and problems == []
            page.context.close()
