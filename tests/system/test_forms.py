"""The trigger forms in the Airflow UI: every field takes a legal value, and invalid ones are refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from faultline.experiment.config import Configuration, parse_configuration
from faultline.experiment.matrices import MATRICES
from faultline.experiment.nightly_file import NIGHTLY
from faultline.orchestration.airflow_api import FINISHED, AirflowApi
from faultline.records.store import Store
from faultline.system.target_registry import Target, register, unregister
from faultline.system.waiting import wait_until
from tests.support.airflow_ui import Form, Ui, call
from tests.support.form_values import NIGHTLY_VALUES, form_values
from tests.support.installation import Installation

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture
def form(request: pytest.FixtureRequest, ui: Ui) -> Iterator[Form]:
    """Open form of a paused DAG; its queued runs are deleted before they can start."""
    dag_id, token = request.param, AirflowApi(ui.installation.settings).token()
    details = call(ui.installation, token, "GET", f"/dags/{dag_id}/details")
    params = details["params"]
    call(ui.installation, token, "PATCH", f"/dags/{dag_id}", {"is_paused": True})
    made = Form(ui, dag_id, params)
    try:
        made.open()
        # The form unpauses the DAG by default.
        ui.dialog.get_by_text(f"Unpause {dag_id} on trigger").click()
        yield made
    finally:
        for run in call(ui.installation, token, "GET", f"/dags/{dag_id}/dagRuns?state=queued")["dag_runs"]:
            call(ui.installation, token, "DELETE", f"/dags/{dag_id}/dagRuns/{run['dag_run_id']}")
        call(ui.installation, token, "PATCH", f"/dags/{dag_id}", {"is_paused": details["is_paused"]})


@pytest.mark.thorough
@pytest.mark.parametrize("form", MATRICES, indirect=True)
def test_every_field_of_a_matrix_takes_a_legal_value_and_wrong_ones_are_refused(form: Form, artefacts: Path) -> None:
    spec = MATRICES[form.dag_id]
    values = form_values(form.dag_id)
    assert set(values) == set(form.params), "a new field needs a value here"

    # Wrong values first: the form stays open after a refusal.
    # The widget corrects a number outside its limits; the note of the run shows the value.
    for name, bad in (("build", "two words"),):
        form.fill({name: bad})
        status, answer = form.send()
        assert status == 400 and answer["detail"].startswith(f"Invalid input for param {name}: ")
        refusal = form.ui.dialog.get_by_text(f"Invalid input for param {name}").first
        refusal.scroll_into_view_if_needed()
        expect(refusal).to_be_visible()
        form.ui.page.screenshot(path=artefacts / f"refused-{name}.png")
        form.fill({name: values[name]})
    form.fill(values)
    expect(form.complaints).to_have_count(0)
    expect(form.ui.submit).to_be_enabled()
    form.ui.page.screenshot(path=artefacts / "filled.png")
    status, run = form.send()
    assert status == 200, run
    assert {name: run["conf"].get(name) for name in values} == values, "what was filled in is what arrives"
    cells = spec.matrix(spec.resolve(run["conf"])).cells("s")
    assert len(cells) >= 4, "the values are legal together"
    expect(form.ui.dialog).to_have_count(0)


@pytest.mark.thorough
@pytest.mark.parametrize("form", ["experiment"], indirect=True)
def test_every_field_of_an_experiment_takes_a_legal_value_and_a_wrong_one_is_refused(form: Form) -> None:
    values = form_values(form.dag_id)
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


@pytest.mark.thorough
@pytest.mark.parametrize("form", [NIGHTLY], indirect=True)
def test_every_field_of_a_nightly_run_takes_a_legal_value_and_a_wrong_one_is_refused(form: Form) -> None:
    assert set(NIGHTLY_VALUES) == set(form.params), "a new field needs a value here"
    form.fill({"build": "two words"})
    status, answer = form.send()
    assert status == 400 and answer["detail"].startswith("Invalid input for param build: ")
    form.fill(NIGHTLY_VALUES)
    expect(form.complaints).to_have_count(0)
    status, run = form.send()
    assert status == 200, run
    assert run["conf"] == NIGHTLY_VALUES


@pytest.fixture
def lab(airflow: Installation) -> Iterator[str]:
    """Registered target without its Connections."""
    one = Target("lab")
    register(airflow.settings, one)
    yield one.name
    unregister(airflow.settings, one)


@pytest.mark.thorough
def test_errors_beyond_the_form_name_the_key(airflow: Installation, lab: str) -> None:
    """Unknown key, incompatible values, and an unusable target."""
    api = AirflowApi(airflow.settings)
    wrong = {
        "unknown": ("experiment", {"stat_mb": 3}, "stat_mb: "),
        "together": ("input_rate", {"preset": "smoke", "commit_mode": "unaligned"}, "commit_mode: "),
        "target": ("input_rate", {"preset": "smoke", "target": lab}, "Connection faultline_kafka: "),
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
        task = "require_accepted" if dag_id == "experiment" else "plan"
        assert states[task] == "failed" and "success" not in (states.get("run_experiment"), states.get("judge")), states
        if dag_id == "experiment":
            others = {state for name, state in states.items() if name != task}
            assert others == {"skipped"}, "one red task, with the reason, and not ten"
        assert line in str(api.run(dag_id, runs[name])["note"]).replace("\\", ""), "as its note says"
        path = f"/dags/{dag_id}/dagRuns/{runs[name]}/taskInstances/{task}/logs/1?full_content=true"
        log = str(call(airflow, api.token(), "GET", path)["content"])
        assert line in log
        assert not Store(airflow.results).query(sweep=runs[name]), "nothing was measured"
