"""A matrix triggered in the Airflow UI: its word count is exact despite two kills."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

import pytest
from playwright.sync_api import Browser, FrameLocator, expect

from faultline.experiment.attempt_plan import read_plan
from faultline.experiment.cell import sweep_id_of
from faultline.installation.supervisord import Supervisor
from faultline.lifecycle.progress import current_attempt
from faultline.orchestration.airflow_api import FINISHED, AirflowApi
from faultline.records.catalogue import metric_for
from faultline.records.record import Record
from faultline.records.store import Store
from faultline.system.background import background_methods, niceness_of, policies_of
from faultline.system.journal import read_journal
from faultline.system.waiting import wait_until
from tests.support import word_count
from tests.support.airflow_ui import PLUGIN, Form, Ui, call, window
from tests.support.browser import artefact_folder
from tests.support.installation import Installation
from tests.support.topics import Found, read_topic

pytestmark = pytest.mark.timeout(3600)

DAG_ID = "state_size_x_checkpoint_interval"
FORM = {
    "preset": "smoke", "workload": "word_count_python", "fault": "executor", "fault_plan": word_count.PLAN,
    "rate": word_count.RATE, "warmup_s": word_count.WARMUP_S, "duration_s": word_count.DURATION_S,
    "state_mb": "0.5", "checkpoint_interval_s": "1",
    # Another cell than that of `test_experiment`, which would be skipped.
    "seed": 7,
    # One attempt, valid or not, to limit the duration on a busy machine.
    "max_measurements": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """Manually triggered run of the matrix, its record, and the input as read by a plain consumer."""

    run_id: str
    record: Record
    folder: Path
    lines: Sequence[Found]

    @property
    def sweep_id(self) -> str:
        return sweep_id_of(self.run_id)

    @property
    def path(self) -> str:
        """Page of the run in Airflow's UI."""
        return f"/dags/{DAG_ID}/runs/{quote(self.run_id, safe='')}"


@pytest.fixture(scope="module")
def measured(ui: Ui) -> Measured:
    """Trigger one cell through the form."""
    installation, folder = ui.installation, artefact_folder("test_ui_trigger")
    api = AirflowApi(installation.settings)
    form = Form(ui, DAG_ID, call(installation, api.token(), "GET", f"/dags/{DAG_ID}/details")["params"])
    form.open()
    form.fill(FORM)
    ui.page.screenshot(path=folder / "form.png")
    status, run = form.send()
    assert status == 200, run
    run_id = str(run["dag_run_id"])
    assert run_id.startswith("manual__"), "the id that Airflow gives to a run of its UI"
    lines: list[Found] = []

    def ended() -> bool:
        attempt = current_attempt(installation.settings, sweep_id_of(run_id))
        if not lines and attempt and (attempt.folder / "end.json").exists():
            # Everything is sent and counted; the topics exist until the record is written.
            lines.extend(read_topic(installation.settings, read_plan(attempt).topics["input"].name))
        return api.run_state(DAG_ID, run_id) in FINISHED

    wait_until(ended, timeout_s=3000, every_s=0.5, what=f"the end of {run_id}")
    states = {task["task_id"]: task["state"] for task in api.tasks(DAG_ID, run_id)}
    (record,) = Store(installation.results).query(sweep=sweep_id_of(run_id))
    assert states["plan"] == states["aggregate"] == "success", states
    ending = "success" if record.is_usable else "failed"
    assert states["run_experiment"] == api.run_state(DAG_ID, run_id) == ending, (states, record.reasons)
    return Measured(run_id, record, installation.settings.attempts / record.attempt, lines)


def test_the_record_is_complete_and_its_counts_are_exact(measured: Measured) -> None:
    word_count.check_record(measured.record.as_dict())


def test_the_kills_were_real_and_the_timeline_has_their_evidence(measured: Measured) -> None:
    word_count.check_kills(measured.record.as_dict(), measured.folder)


def test_an_independent_consumer_counts_the_same_words(measured: Measured) -> None:
    word_count.check_count(measured.record.as_dict(), measured.folder, measured.lines)


def test_the_teardown_left_no_process_of_the_attempt(measured: Measured) -> None:
    word_count.check_teardown(measured.record.as_dict(), measured.folder)


def test_services_had_low_priority_during_the_window(measured: Measured, ui: Ui) -> None:
    if not (background_methods().idle or background_methods().groups):
        pytest.skip("nothing can give way here")
    pids = {
        pid
        for name, pid in Supervisor(ui.installation.settings).pids().items()
        if name.startswith("airflow-") or name == "spark-session"
    }
    assert len(pids) == 5
    conductor = read_journal(measured.folder / "conductor.jsonl")
    (done,) = (line["wall_ns"] for line in conductor if line["event"] == "done")
    samples = [line for line in read_journal(measured.folder / "recorder.jsonl") if line.get("pid") in pids]
    for pid in pids:
        courses = [bool(one.get("lowered")) for one in samples if one["pid"] == pid and one["wall_ns"] < done]
        # From before the end of the window, never before T0; samples in which a process ended are skipped.
        assert True in courses, pid
        window = courses[courses.index(True) :]
        assert sum(window) >= 0.9 * len(window), (pid, window)
        assert not courses[0]
        assert policies_of(pid) == {os.SCHED_OTHER} and niceness_of(pid) in (0, None)


def number(text: str) -> float:
    """Return the leading number of a text such as `23,127 ms`."""
    match = re.match(r"[\d,.]+", text)
    assert match is not None, text
    return float(match[0].replace(",", ""))


def tile(page: FrameLocator, name: str) -> float:
    """Return the figure under a headline."""
    return number(page.locator(f'.figures > div:has(dt:text-is("{name}")) dd').first.inner_text())


def check_experiment(page: FrameLocator, record: Record) -> None:
    """Check figures, curves and status on the page of an experiment."""
    expect(page.locator(".eyebrow")).to_have_text(f"Experiment {record.attempt}")
    expect(page.locator("h1 .status")).to_have_text(record.status)
    metrics = record.metrics
    assert metrics.latency_ms.p50 is not None and metrics.latency_ms.p99 is not None
    assert tile(page, "Latency p50") == pytest.approx(metrics.latency_ms.p50, abs=0.5)
    assert tile(page, "Latency p99") == pytest.approx(metrics.latency_ms.p99, abs=0.5)
    assert tile(page, "Throughput") == pytest.approx(metrics.throughput_rps, abs=0.5)
    assert tile(page, "Lost") == metrics.audit.lost == 0
    rows = [row.split("\t") for row in page.locator("section.narrow tr").all_inner_texts()]
    audit = {name.strip(): number(figure.strip()) for name, figure in rows}
    counted = {name: value for name, value in metrics.audit.model_dump().items() if value is not None}
    assert audit == {metric_for(f"audit.{name}").title: value for name, value in counted.items()}
    assert counted["expected"] > 0 and counted["overcounted"] == counted["unexpected"] == 0
    for reason in record.reasons:
        expect(page.locator(".reasons")).to_contain_text(reason)
    plot = page.locator("[data-figure]")
    plot.scroll_into_view_if_needed()
    plot.locator(".main-svg").first.wait_for()
    for row in ("xy", "xy2", "xy3", "xy4"):
        expect(plot.locator(f".cartesianlayer .subplot.{row} .trace path").first).to_be_attached()
    page.locator("h1").scroll_into_view_if_needed()


def test_the_run_has_a_tab_with_its_results(ui: Ui, measured: Measured, artefacts: Path) -> None:
    record, p99 = measured.record, measured.record.metrics.latency_ms.p99
    ui.open(measured.path)
    note = ui.page.locator("a[target=_blank]", has_text="Results")
    expect(note).to_have_attribute("href", f"{PLUGIN}/faultline/sweeps/{measured.sweep_id}")
    ui.tab.click()
    page = ui.results
    expect(page.locator("h1")).to_have_text(measured.sweep_id)
    expect(page.locator(".counts")).to_have_text(f"1 {record.status}")
    cell = page.locator("table.cells tbody tr")
    expect(cell).to_have_count(1)
    expect(cell).to_have_attribute("title", re.compile(f"^configuration {record.config_id}\\b"))
    assert p99 is not None
    assert number(cell.locator("td.chosen").inner_text()) == pytest.approx(p99, abs=0.5)
    assert (cell.get_attribute("class") == "open") is not record.is_usable, "a row without a usable run is dimmed"
    for reason in record.reasons:
        # The title of a mark repeats it.
        expect(page.get_by_text(reason).first).to_be_visible()
    ui.page.screenshot(path=artefacts / "sweep.png")

    page.locator("table.cells a.attempt").click()
    check_experiment(page, record)
    ui.page.screenshot(path=artefacts / "experiment.png")
    around = f"{ui.root}/dags/{DAG_ID}/runs/{measured.run_id}/plugin/faultline-run"
    assert unquote(ui.page.url) == around, "the tab of the run is still around it"


def test_the_results_have_an_entry_in_the_navigation(ui: Ui, measured: Measured, artefacts: Path) -> None:
    ui.open("/")
    ui.page.get_by_role("link", name="Faultline", exact=True).click()
    page = ui.results
    row = page.locator(f'tr:has(a:text-is("{measured.sweep_id}"))')
    expect(row).to_contain_text(DAG_ID)
    ui.page.screenshot(path=artefacts / "overview.png")
    row.get_by_role("link").click()
    expect(page.locator("h1")).to_have_text(measured.sweep_id)
    with ui.page.expect_download() as download:
        page.get_by_role("link", name="CSV", exact=True).click()
    rows = list(csv.DictReader(io.StringIO(Path(download.value.path()).read_text())))
    assert [row["attempt"] for row in rows] == [measured.record.attempt]
    p99 = measured.record.metrics.latency_ms.p99
    assert p99 is not None and float(rows[0]["latency_ms_p99"]) == pytest.approx(p99)


def test_a_task_leads_to_the_results_and_they_lead_back_to_the_run(ui: Ui, measured: Measured, artefacts: Path) -> None:
    page = ui.results
    ui.open(f"{measured.path}/tasks/run_experiment/mapped/0")
    ui.tab.click()
    expect(page.locator("h1")).to_have_text(measured.sweep_id)
    ui.page.screenshot(path=artefacts / "task.png")
    api = AirflowApi(ui.installation.settings)
    (mapped,) = [one for one in api.tasks(DAG_ID, measured.run_id) if one["task_id"] == "run_experiment"]
    assert str(mapped["rendered_map_index"]).endswith(f", r{measured.record.repetition}"), "the grid names the cell"
    # The same as an extra link of Airflow, which its API returns, too.
    ui.open(f"{measured.path}/tasks/plan/details")
    ui.page.locator(f'a[href^="{PLUGIN}/"]', has_text="Results").click()
    expect(page.locator("h1")).to_have_text(measured.sweep_id)
    page.get_by_role("link", name=f"{DAG_ID} / {measured.run_id}", exact=True).click()
    ui.page.wait_for_url(lambda url: url.startswith(f"{ui.root}/dags/{DAG_ID}/runs/"))
    expect(ui.page.get_by_text(measured.run_id).first).to_be_visible()
    ui.page.screenshot(path=artefacts / "run.png")


def test_the_run_of_the_experiment_leads_to_its_page_and_the_dag_to_its_matrix(
    ui: Ui, measured: Measured, artefacts: Path
) -> None:
    record = measured.record
    attempt = ui.installation.settings.attempts / record.attempt / "attempt.json"
    child = json.loads(attempt.read_text())["run_id"]
    assert child.startswith(f"{measured.sweep_id}__{record.config_id}-r{record.repetition}-")
    ui.open(f"/dags/experiment/runs/{quote(child, safe='')}")
    ui.tab.click()
    check_experiment(ui.results, record)
    for name in (f"experiment / {child}", f"{DAG_ID} / {measured.run_id}"):
        expect(ui.results.get_by_role("link", name=name, exact=True)).to_be_visible()
    ui.page.screenshot(path=artefacts / "experiment-run.png")
    ui.open(f"/dags/{DAG_ID}")
    ui.tab.click()
    expect(ui.results.locator("h1")).to_have_text(DAG_ID)
    ui.page.screenshot(path=artefacts / "dag.png")


def test_a_run_without_a_record_is_shown_in_the_theme(ui: Ui, artefacts: Path) -> None:
    ui.open(f"{PLUGIN}/faultline/runs/{DAG_ID}/never")
    expect(ui.results.locator(".missing")).to_have_text(f"The run never of {DAG_ID} has no record yet.")
    expect(ui.results.get_by_role("link", name="Retry")).to_be_visible()
    ground = "place => getComputedStyle(place).backgroundColor"
    for theme in ("dark", "light"):
        ui.page.evaluate(
            "theme => { document.documentElement.classList.remove('light', 'dark');"
            " document.documentElement.classList.add(theme) }",
            theme,
        )
        expect(ui.results.locator("html")).to_have_attribute("data-theme", theme)
        around = ui.page.locator("html").evaluate(ground)
        assert ui.results.locator("body").evaluate(ground) == around, "no edge between the page and what is around it"
        ui.page.screenshot(path=artefacts / f"{theme}.png")


def test_nothing_is_shown_without_a_login(browser: Browser, airflow: Installation, measured: Measured) -> None:
    attempt, sweep = measured.record.attempt, measured.sweep_id
    for path in ("/", f"/sweeps/{sweep}", f"/experiments/{attempt}", "/compare", f"/runs/{DAG_ID}/{measured.run_id}",
                 f"/dags/{DAG_ID}", "/experiments.csv", f"/experiments.parquet?sweep={sweep}",
                 "/static/plotly.min.js"):  # fmt: skip
        status, text = answer(airflow, path)
        assert status == 401, path
        assert attempt not in text and sweep not in text
    with window(browser, airflow) as anonymous:
        anonymous.open(f"{PLUGIN}/faultline/sweeps/{sweep}")
        expect(anonymous.page.locator("input[name=password]")).to_be_visible()
        anonymous.log_in()
        anonymous.open(f"{PLUGIN}/faultline/sweeps/{sweep}")
        expect(anonymous.results.locator("h1")).to_have_text(sweep)
        assert anonymous.foreign_requests() == []


def answer(installation: Installation, path: str) -> tuple[int, str]:
    """Return status and text of an address of the results pages, without a login."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    address = f"{installation.settings.endpoints.airflow}/faultline{quote(path, safe='/?=')}"
    try:
        with opener.open(address, timeout=60) as found:
            return found.status, found.read().decode(errors="replace")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(errors="replace")


def test_the_ui_sent_no_foreign_request_and_no_script_failed(ui: Ui, measured: Measured) -> None:
    assert any("/faultline/static/plotly.min.js" in url for url in ui.requests), "the pages were among what was watched"
    assert ui.foreign_requests() == []
    # A missing page has status 404 in the browser, too.
    assert [problem for problem in ui.problems if f"/runs/{DAG_ID}/never: " not in problem] == []
