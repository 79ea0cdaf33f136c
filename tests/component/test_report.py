"""The report in a real browser, opened from disk with the network off."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route

from faultline.records.judge.judge import judge
from faultline.records.record import Record
from faultline.reports.figures.style import FAULT_COLOUR
from faultline.reports.report import write_report
from tests.unit.sample_records import CENSORED, matrix, sample
from tests.unit.synthetic import Scenario, Synthetic

EVIL = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
# An orange as Chromium writes it in a computed style.
FAULT_RGB = "rgb({}, {}, {})".format(*(int(FAULT_COLOUR[i : i + 2], 16) for i in (1, 3, 5)))


@dataclass
class LoadedPage:
    """Loaded page with its console errors and failed requests."""

    page: Page
    problems: list[str]
    requests: list[str]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kill and a control with curves, and records without."""
    root = tmp_path_factory.mktemp("report")
    kill, control = (_attempt(root, name, fault) for name, fault in (("kill", True), ("control", False)))
    failed = sample(status="failed", reasons=[EVIL], attempt="gone", raw_config={"corpus": EVIL})
    return write_report([kill, control, failed, *matrix()], root, root / "report.html", title="Word count under a kill")


def _attempt(root: Path, name: str, fault: bool) -> Record:
    folder = root / name
    folder.mkdir()
    directory = Synthetic(Scenario(fault=fault)).write(folder)
    record = judge(directory).model_copy(update={"attempt": name})
    target = root / "attempts" / name
    target.mkdir(parents=True)
    for file in ("series.json", "audit.json"):
        (directory / file).rename(target / file)
    return record


def opened(browser: Browser, report: Path, scheme: str) -> LoadedPage:
    context = browser.new_context(offline=True, color_scheme=scheme, viewport={"width": 1280, "height": 900})  # type: ignore[arg-type]
    page = context.new_page()
    loaded = LoadedPage(page, [], [])

    def guard(route: Route) -> None:
        loaded.requests.append(route.request.url)
        route.continue_() if route.request.url == report.as_uri() else route.abort()

    page.route("**/*", guard)
    page.on("console", lambda message: loaded.problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: loaded.problems.append(str(error)))
    page.goto(report.as_uri())
    return loaded


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_opens_without_a_network(browser: Browser, report: Path, artefacts: Path, scheme: str) -> None:
    loaded = opened(browser, report, scheme)
    page = loaded.page
    page.locator("#overview").scroll_into_view_if_needed()
    page.locator("[data-figure=parts] .main-svg").first.wait_for()
    page.evaluate("scrollTo(0, 0)")
    page.screenshot(path=artefacts / "top.png")
    with_curves = page.locator("article:has([data-figure])")
    assert with_curves.count() == 2
    for index in range(2):
        article = with_curves.nth(index)
        plot = article.locator("[data-figure]")
        plot.scroll_into_view_if_needed()
        plot.locator(".main-svg").first.wait_for()
        for row in ("xy", "xy2", "xy3", "xy4"):
            panel = plot.locator(f".cartesianlayer .subplot.{row}")
            assert panel.locator(".trace path").count() > 0, f"row {row} holds a curve"
        article.screenshot(path=artefacts / f"experiment-{index + 1}.png")
    assert loaded.requests == [report.as_uri()]
    assert loaded.problems == []
    assert page.title() == "Word count under a kill · Faultline", "no text of a record ran as a script"
    page.context.close()


def test_the_table_fits_the_page_with_an_invalid_row(browser: Browser, tmp_path: Path) -> None:
    reason = "schedule-lag: p99 of how late records were sent is 2,345 ms, more than 50 ms; measure again " * 2
    wide = sample(status="invalid", reasons=[reason], attempt="a-wide", recovery=CENSORED, latency={"p50": 98_765.0})
    written = write_report([*matrix(), wide], tmp_path, tmp_path / "wide.html", title="Wide")
    loaded = opened(browser, written, "light")
    table = loaded.page.locator(".scroll:has(.results)")
    assert table.evaluate("e => e.scrollWidth <= e.clientWidth")
    loaded.page.context.close()


def test_the_page_fits_all_window_widths(browser: Browser, report: Path) -> None:
    loaded = opened(browser, report, "light")
    for width in (1440, 900, 390):
        loaded.page.set_viewport_size({"width": width, "height": 900})
        assert loaded.page.evaluate("document.documentElement.scrollWidth") <= width
    loaded.page.context.close()


def test_the_fault_is_a_line_through_all_rows(browser: Browser, report: Path) -> None:
    loaded = opened(browser, report, "light")
    kill = loaded.page.locator("article", has_text="Attempt kill,").locator("[data-figure]")
    kill.scroll_into_view_if_needed()
    kill.locator(".shapelayer path").first.wait_for()
    boxes = kill.locator(".shapelayer path").evaluate_all(
        "(paths, colour) => paths.filter(p => getComputedStyle(p).stroke === colour).map(p => p.getBBox())"
        ".map(b => ({x: b.x, width: b.width, top: b.y, bottom: b.y + b.height}))",
        FAULT_RGB,
    )
    assert len(boxes) == 1
    # plotly's own axis says where t0 (28.199 s) lies
    expected = kill.evaluate("p => p._fullLayout.xaxis._offset + p._fullLayout.xaxis.l2p(28.199)")
    assert boxes[0]["x"] == pytest.approx(expected, abs=1)
    rows = kill.evaluate(
        "p => ['yaxis', 'yaxis4'].map(a => p._fullLayout[a]).map(a => [a._offset, a._offset + a._length])"
    )
    assert boxes[0]["top"] <= rows[0][0]
    assert boxes[0]["bottom"] >= rows[1][1] - 1
    control = loaded.page.locator("article", has_text="Attempt control,").locator("[data-figure]")
    control.scroll_into_view_if_needed()
    control.locator(".main-svg").first.wait_for()
    strokes = control.locator(".shapelayer path").evaluate_all("paths => paths.map(p => getComputedStyle(p).stroke)")
    assert FAULT_RGB not in strokes
    loaded.page.context.close()


def test_the_page_follows_the_theme_and_offers_no_sharing(browser: Browser, report: Path) -> None:
    loaded = opened(browser, report, "light")
    plot = loaded.page.locator("[data-figure=parts]")
    plot.scroll_into_view_if_needed()
    plot.locator(".main-svg").first.wait_for()
    light = plot.evaluate("p => p.layout.font.color")
    loaded.page.emulate_media(color_scheme="dark")
    changed = "before => document.querySelector('[data-figure=parts]').layout.font.color !== before"
    loaded.page.wait_for_function(changed, arg=light)
    titles = loaded.page.locator(".modebar-btn").evaluate_all("buttons => buttons.map(b => b.dataset.title)")
    assert titles
    assert not [title for title in titles if title and ("share" in title.lower() or "cloud" in title.lower())]
    assert loaded.problems == []
    loaded.page.context.close()


def test_printing_draws_every_figure(browser: Browser, report: Path, tmp_path: Path) -> None:
    loaded = opened(browser, report, "dark")
    loaded.page.pdf(path=tmp_path / "report.pdf", format="A4")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
    drawn = loaded.page.locator("[data-figure] .main-svg:first-child").count()
    assert drawn == loaded.page.locator("[data-figure]").count()
    loaded.page.context.close()
