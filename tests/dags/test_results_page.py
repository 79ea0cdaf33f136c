"""Results page in Airflow: login, navigation entry, links from tasks."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from faultline.system.settings import ROOT
from tests.unit.pages_store import ask


def plugin() -> Any:
    path = ROOT / "plugins" / "faultline_results.py"
    spec = importlib.util.spec_from_file_location("faultline_results_under_test", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.FaultlineResults


# Airflow's own imports bring it up.
@pytest.mark.filterwarnings("ignore:Using `httpx` with `starlette.testclient`")
def test_airflow_s_own_login_guards_every_address() -> None:
    from airflow.api_fastapi.app import create_auth_manager

    create_auth_manager()
    app = plugin().fastapi_apps[0]["app"]
    for path in ("/", "/sweeps/x", "/experiments.csv", "/static/plotly.min.js", "/runs/m/x", "/nothing"):
        assert ask(app, path, {}).status == 401, path
        assert ask(app, path, {"cookie": "_token=forged"}).status in (401, 403), path


def test_its_places_in_the_ui_are_of_a_kind_that_airflow_knows() -> None:
    from airflow.api_fastapi.core_api.datamodels.plugins import ExternalViewResponse

    views = [ExternalViewResponse.model_validate(view) for view in plugin().external_views]
    assert [view.destination for view in views] == ["nav", "dag_run", "task_instance", "dag"]
    assert len({view.url_route for view in views}) == len(views)
    assert views[1].href == views[2].href == "/faultline/runs/{DAG_ID}/{RUN_ID}"


def test_every_task_links_to_the_results_of_its_run() -> None:
    (link,) = plugin().global_operator_extra_links
    key = SimpleNamespace(dag_id="experiment", run_id="manual__2026-11-21T06:15:00+00:00")
    assert link.get_link(None, ti_key=key) == (
        "/plugin/faultline-results/faultline/runs/experiment/manual__2026-11-21T06%3A15%3A00%2B00%3A00"
    )


def test_loading_the_plugin_loads_nothing_heavy() -> None:
    program = (
        "import sys, airflow.sdk, airflow.plugins_manager; before = set(sys.modules); "
        "import faultline.orchestration.results_page; "
        "print(sorted({'plotly', 'pyarrow', 'rich', 'fastapi'} & (set(sys.modules) - before)))"
    )
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'include'}:{ROOT}"}
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip().splitlines()[-1] == "[]"
