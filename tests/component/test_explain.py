"""The plot page of one experiment in a real browser, opened from disk with the network off."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from playwright.sync_api import Browser

from faultline.records.judge.judge import judge
from faultline.records.store import Store
from faultline.reports.terminal import explain
from faultline.system.settings import load_settings
from tests.component.test_report import FAULT_RGB, opened
from tests.unit.synthetic import Scenario, Synthetic


def test_the_page_shows_the_curves_and_the_fault(browser: Browser, tmp_path: Path, artefacts: Path) -> None:
    settings = replace(load_settings(), results=tmp_path)
    record = judge(Synthetic(Scenario()).write(tmp_path))
    Store(tmp_path).write(record)
    page_path = tmp_path / "page.html"
    text = explain("last", settings, plot=page_path)
    assert str(page_path) in text
    seen = opened(browser, page_path, "light")
    plot = seen.page.locator("article [data-figure]")
    plot.scroll_into_view_if_needed()
    plot.locator(".shapelayer path").first.wait_for()
    for row in ("xy", "xy2", "xy3", "xy4"):
        assert plot.locator(f".cartesianlayer .subplot.{row} .trace path").count() > 0, f"row {row} holds a curve"
    strokes = plot.locator(".shapelayer path").evaluate_all("paths => paths.map(p => getComputedStyle(p).stroke)")
    assert strokes.count(FAULT_RGB) == 1
    seen.page.locator("article").screenshot(path=artefacts / "experiment.png")
    assert seen.page.title() == f"Attempt {record.attempt} · Faultline"
    assert seen.requests == [page_path.as_uri()]
    assert seen.problems == []
    seen.page.context.close()
