"""A missed nightly run: Airflow's backfill and `missing --measure` measure the same cells."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from benchmarks.installation import await_run
from faultline.experiment.nightly_file import NIGHTLY
from faultline.orchestration.airflow_api import AirflowApi
from faultline.records.store import Store
from faultline.system.waiting import wait_until
from tests.support.installation import Installation
from tests.support.nightly import switch_on

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(2400)]

NIGHTLY_FILE = """\
schedule: "0 2 * * *"
set:
  - {workload: word_count, checkpoint_interval_s: 2, fault: none, rate: 100, warmup_s: 5, duration_s: 12, state_mb: 0.1}
repetitions: 2
controls: 0
"""


def backfill(api: AirflowApi, day: str) -> str:
    """Start a backfill of one day, as the DAG menu does, and return its run."""
    of_day = {"dag_id": NIGHTLY, "from_date": f"{day}T00:00:00Z", "to_date": f"{day}T23:59:59Z"}
    asked = {**of_day, "reprocess_behavior": "none", "max_active_runs": 1, "run_backwards": False, "dag_run_conf": {}}
    api._call("POST", "/api/v2/backfills", asked)
    return wait_until(
        lambda: next((str(one["dag_run_id"]) for one in api.runs(NIGHTLY) if one["run_type"] == "backfill"), None),
        timeout_s=60, every_s=0.5, what="the run of the backfill",
    )  # fmt: skip


def test_backfill_and_missing_measure_the_same_cells(shared_installation: Installation, tmp_path: Path) -> None:
    (tmp_path / "nightly.yaml").write_text(NIGHTLY_FILE)
    site = Installation(shared_installation.home, tmp_path / "results", {"FAULTLINE_NIGHTLY_DIR": str(tmp_path)})
    assert site.run("down").returncode == 0
    assert site.run("up").returncode == 0
    api, store = AirflowApi(site.settings), Store(site.results)
    switch_on(api)
    # Later nightly runs are missing as well, and are measured, too.
    day = (datetime.now(UTC) - timedelta(days=1)).date().isoformat()
    await_run(api, backfill(api, day), NIGHTLY, timeout_s=1200)
    made = store.query()
    assert {str(one.logical_date)[:13] for one in made} == {f"{day}T02"}
    assert {one.repetition for one in made} == {0, 1}

    def missing() -> int:
        """Return repetitions without a usable record, which a busy machine may cause."""
        return 2 - len(
            {one.repetition for one in store.query() if one.is_usable and str(one.logical_date).startswith(day)}
        )

    for one in made:
        if one.repetition == 1:
            for path in (site.results / "records").rglob(f"{one.attempt}.json"):
                path.unlink()
    left = {one.attempt for one in store.query()}
    lacking = missing()
    assert lacking and f"{lacking} of 2 missing" in site.run("missing", NIGHTLY).stdout
    done = site.run("missing", NIGHTLY, "--measure", timeout_s=1200)
    again = [one for one in store.query() if str(one.logical_date).startswith(day)]
    assert {one.logical_date for one in again} == {one.logical_date for one in made}, done.stderr
    assert {(one.config_id, one.repetition) for one in again} == {(one.config_id, one.repetition) for one in made}
    assert 1 in {one.repetition for one in again if one.attempt not in left}, done.stderr
    assert f"{missing()} of 2 missing" in site.run("missing", NIGHTLY).stdout
    assert site.run("down").returncode == 0
