"""The trigger forms in Airflow's own UI: every field takes a legal value, and wrong ones are refused in sight."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from faultline.base.waiting import wait_until
from faultline.client.airflow_api import FINISHED, AirflowApi
from faultline.experiment.config import Configuration, parse_configuration
from faultline.experiment.matrices import DEFAULT, MATRICES, MatrixSpec
from faultline.experiment.matrix import Matrix
from faultline.experiment.nightly_schedule import NIGHTLY
from faultline.experiment.workloads.registry import WORKLOADS, own_fields
from faultline.records.store import Store
from tests.browser.airflow_ui import Form, Ui, call
from tests.integration.installation import Installation

pytestmark = [pytest.mark.browser, pytest.mark.integration, pytest.mark.timeout(1200)]

PLAN = {"faults": [{"victim": "worker", "action": "term", "at_s": 45}]}
STEP = {"kind": "step", "at_s": 30, "to": 400}
# A legal value of each field that is not its default; together they are legal, too.
CHANGED: dict[str, Any] = {
    "rate": 250.5, "warmup_s": 12, "duration_s": 120, "corpus": "moby-dick", "skew": 0.8, "vocabulary": 500,
    "iterations": 50, "prices": "five-companies", "truth": None, "rate_curve": STEP, "skew_curve": {**STEP, "to": 1.2},
    "accept_overload": True,
    "window_s": 20, "slide_s": 4, "watermark_s": 6, "disorder": 0.2, "late": 0.05, "stocks": 50, "users": 200,
    "query": "q5", "source": "engine", "events": {"shares": [4, 6, 90]}, "batch_events": 200_000,
    "mechanisms": "all", "parallelism": "1-2-2", "topology": {"divisor": 3.0},
    "preload_events": 400_000, "state_store": "memory", "state_mb": 2.5, "state_touch": 0.05,
    "checkpoint_interval_s": 6, "snapshot_interval_s": 20,
    "commit_mode": "aligned-changelog", "executors": 3, "executor_cores": 2, "executor_memory_mb": 768,
    "partitions": 4, "shuffle_partitions": 4, "fault": "worker", "fault_action": "term", "fault_at_s": 45,
    "fault_plan": PLAN, "restart_delay_s": 1.5, "seed": 7,
}  # fmt: skip
WITHOUT_FAULT = {"fault": "none", "fault_action": "kill", "fault_at_s": None, "fault_plan": None}
SWEEP = {
    "preset": "smoke", "repetitions": 2, "controls": 1, "only_missing": False, "max_measurements": 2,
    "series": "form-check", "build": "form:check", "search": True, "search_low": 50, "search_high": 20_000,
}  # fmt: skip
NIGHT = {
    "set": [{"workload": "pi", "state_mb": 0, "fault": "driver"}, {"workload": "known_truth", "truth": {}}],
    "repetitions": 6, "controls": 2, "baseline_nights": 5, "metrics": ["latency_ms.p50", "recovery.macro_s"],
    "only_missing": False, "max_measurements": 2, "build": "form:check",
}  # fmt: skip
BOOKKEEPING = {
    "repetition": 2, "series": "form-check", "build": "form:check", "matrix": "form-check", "sweep_id": "form-check",
    "parent_run_id": "nobody", "logical_date": "2026-11-21", "keep_topics": True,
    "only_missing": True,
}  # fmt: skip


@pytest.fixture
def form(request: pytest.FixtureRequest, ui: Ui) -> Iterator[Form]:
    """The open form of a paused DAG, whose runs stay queued; they are gone before anything can start them."""
    dag_id, token = request.param, AirflowApi(ui.installation.settings).token()
    details = call(ui.installation, token, "GET", f"/dags/{dag_id}/details")
    params = details["params"]
    call(ui.installation, token, "PATCH", f"/dags/{dag_id}", {"is_paused": True})
    made = Form(ui, dag_id, params)
    try:
        made.open()
        # Triggering would unpause it, unless one says no.
        ui.dialog.get_by_text(f"Unpause {dag_id} on trigger").click()
        yield made
    finally:
        for run in call(ui.installation, token, "GET", f"/dags/{dag_id}/dagRuns?state=queued")["dag_runs"]:
            call(ui.installation, token, "DELETE", f"/dags/{dag_id}/dagRuns/{run['dag_run_id']}")
        call(ui.installation, token, "PATCH", f"/dags/{dag_id}", {"is_paused": details["is_paused"]})


def legal(name: str, workload: str) -> Any:
    """A value of a configuration's field that the workload can have."""
    kind = WORKLOADS[workload]
    if name == "workload":
        return workload
    if name in own_fields().keys() - kind.parameters.model_fields.keys():
        return Configuration.model_fields[name].default
    if name in ("skew", "skew_curve") and not kind.can("skewed"):
        return None
    if workload == "nexmark" and name in WITHOUT_FAULT:  # whose events the engine makes
        return WITHOUT_FAULT[name]
    return 0 if name == "state_mb" and not kind.can("preloaded_state") else CHANGED[name]


def matrix_values(spec: MatrixSpec) -> dict[str, Any]:
    """A legal value of each field of a matrix's form; of each axis two of the paper's."""
    values = {name: legal(name, spec.complete(DEFAULT)["workload"]) for name in Configuration.model_fields}
    values |= {name: value for name, value in SWEEP.items() if spec.search or not name.startswith("search")}
    values |= {axis: list(spec.values("paper")[axis][:2]) for axis in spec.axes}
    return values | ({"fault_plan": None} if "fault" in spec.axes else {})


@pytest.mark.parametrize("form", MATRICES, indirect=True)
def test_every_field_of_a_matrix_takes_a_legal_value_and_wrong_ones_are_refused(form: Form, artefacts: Path) -> None:
    spec = MATRICES[form.dag_id]
    values = matrix_values(spec)
    assert set(values) == set(form.params), "a new field needs a value here"

    # Wrong values first: the form stays open after a refusal.
    axis, plain = spec.axes[0], "build"
    wrong = ["wrong"] if isinstance(values[axis][0], str) else [-1]
    for name, bad in ((axis, wrong), (plain, "two words")):
        form.fill({name: bad})
        status, answer = form.send()
        assert status == 400 and answer["detail"].startswith(f"Invalid input for param {name}: ")
        told = form.ui.dialog.get_by_text(f"Invalid input for param {name}").first
        told.scroll_into_view_if_needed()
        expect(told).to_be_visible()
        form.ui.page.screenshot(path=artefacts / f"refused-{name}.png")
        form.fill({name: values[name]})
    form.fill({axis: []})
    expect(form.complaints).to_have_text("This field is required")
    expect(form.ui.submit).to_be_disabled()

    form.fill(values)
    expect(form.complaints).to_have_count(0)
    expect(form.ui.submit).to_be_enabled()
    form.ui.page.screenshot(path=artefacts / "filled.png")
    status, run = form.send()
    assert status == 200, run
    assert {name: run["conf"].get(name) for name in values} == values, "what was filled in is what arrives"
    cells = Matrix.under(spec.resolve(run["conf"], run["conf"]["preset"]), spec.axes).cells("s")
    assert len(cells) >= 4, "the values are legal together"
    expect(form.ui.dialog).to_have_count(0)


@pytest.mark.parametrize("form", ["experiment"], indirect=True)
def test_every_field_of_an_experiment_takes_a_legal_value_and_a_wrong_one_is_refused(form: Form) -> None:
    values = {**{name: legal(name, "word_count") for name in Configuration.model_fields}, **BOOKKEEPING}
    assert set(values) == set(form.params), "a new field needs a value here"
    form.fill({"rate": 0})
    status, answer = form.send()
    assert status == 400 and answer["detail"].startswith("Invalid input for param rate: 0 ")
    expect(form.ui.dialog.get_by_text("Invalid input for param rate").first).to_be_visible()
    form.fill(values)
    expect(form.complaints).to_have_count(0)
    status, run = form.send()
    assert status == 200, run
    assert run["conf"] == values
    assert parse_configuration({name: run["conf"][name] for name in Configuration.model_fields}).rate == values["rate"]


@pytest.mark.parametrize("form", [NIGHTLY], indirect=True)
def test_every_field_of_the_nights_takes_a_legal_value_and_a_wrong_one_is_refused(form: Form) -> None:
    assert set(NIGHT) == set(form.params), "a new field needs a value here"
    form.fill({"build": "two words"})
    status, answer = form.send()
    assert status == 400 and answer["detail"].startswith("Invalid input for param build: ")
    form.fill(NIGHT)
    expect(form.complaints).to_have_count(0)
    status, run = form.send()
    assert status == 200, run
    assert run["conf"] == NIGHT


@pytest.mark.parametrize("form", ["state_size_x_checkpoint_interval"], indirect=True)
def test_an_axis_that_is_no_list_of_numbers_is_refused_by_the_form_itself(form: Form) -> None:
    form.fill({"state_mb": [1]})
    for text, words in (('[1, "two"]', "numbers"), ("[1,", "SyntaxError"), ('{"a": 1}', "array")):
        form.paste("state_mb", text)
        expect(form.complaints).to_contain_text(words)
        expect(form.ui.submit).to_be_disabled()


def test_what_a_form_cannot_see_fails_in_one_line_that_names_the_key(airflow: Installation) -> None:
    """An unknown key, and values that are legal alone but not together, come in through the API."""
    api = AirflowApi(airflow.settings)
    together = "commit_mode: stock_group_by cannot run in real-time mode (unaligned); use word_count or pi"
    wrong = {
        "unknown": ("experiment", {"stat_mb": 3}, "stat_mb: unknown parameter; did you mean state_mb?"),
        "together": ("input_rate", {"preset": "smoke", "commit_mode": "unaligned"}, together),
    }
    runs = {name: api.trigger(dag_id, conf, run_id=f"wrong_{name}") for name, (dag_id, conf, _) in wrong.items()}
    for name, (dag_id, _, line) in wrong.items():
        wait_until(
            lambda dag_id=dag_id, name=name: api.run_state(dag_id, runs[name]) in FINISHED,  # type: ignore[misc]
            timeout_s=600,
            every_s=0.5,
            what=f"the end of the run {runs[name]}",
        )
        assert api.run_state(dag_id, runs[name]) == "failed"
        states = {task["task_id"]: task["state"] for task in api.tasks(dag_id, runs[name])}
        task = "prepare" if dag_id == "experiment" else "plan"
        assert states[task] == "failed" and "success" not in (states.get("run_experiment"), states.get("judge")), states
        path = f"/dags/{dag_id}/dagRuns/{runs[name]}/taskInstances/{task}/logs/1?full_content=true"
        log = str(call(airflow, api.token(), "GET", path)["content"])
        assert line in log
        assert not Store(airflow.results).query(sweep=runs[name]), "nothing was measured"
