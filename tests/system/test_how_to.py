"""The commands of the how-to pages on real services, with short sweeps."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.installation import await_run
from faultline.experiment.cell import Cell
from faultline.experiment.nightly_file import NIGHTLY
from faultline.orchestration.airflow_api import AirflowApi
from faultline.records.store import Store
from tests.support.how_to import HowTo
from tests.support.installation import Installation
from tests.support.nightly import switch_on
from tests.support.receivers import webhook

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(3600)]
# Parameters that shorten the sweeps of the pages.
SHORT = ("repetitions=2", "rate=100", "state_mb=0.1")


@pytest.fixture(scope="module")
def chosen_interval(shared_installation: Installation) -> tuple[Installation, str]:
    """Installation after the page on intervals, and its sweep."""
    assert shared_installation.run("up").returncode == 0
    plan, measure, advise, explain = HowTo.read("choose-an-interval").commands
    assert shared_installation.run(*plan, *SHORT).returncode == 0
    done = shared_installation.run(*measure, *SHORT, timeout_s=3000)
    assert "Summary" in done.stdout, done.stderr
    found = re.search(r"/faultline/sweeps/(\S+)", done.stdout)
    assert found is not None, done.stdout
    advice = shared_installation.run(*(found[1] if part == "SWEEP" else part for part in advise))
    assert advice.returncode == 0 and re.search("inconclusive|checkpoint interval", advice.stdout, re.I), advice.stdout
    last = shared_installation.run(*explain)
    assert last.returncode == 0 and "T0" in last.stdout, last.stderr
    return shared_installation, found[1]


def test_an_interval_is_chosen_from_the_page_alone(chosen_interval: tuple[Installation, str]) -> None:
    installation, sweep = chosen_interval
    records = Store(installation.results).query(sweep=sweep)
    assert {record.config["checkpoint_interval_s"] for record in records} == {2.0, 10.0}


def test_missing_cells_are_listed_and_measured(chosen_interval: tuple[Installation, str]) -> None:
    installation, sweep = chosen_interval
    valid = Store(installation.results).query(sweep=sweep, status="valid")
    gone = next(one for one in valid if one.config["fault"] == "none" and one.config["checkpoint_interval_s"] == 2)
    for path in (installation.results / "records").rglob(f"{gone.attempt}.json"):
        path.unlink()
    look, fill, again = HowTo.read("backfill").commands
    # On a busy machine, the sweep may lack other cells, too.
    lacking = {Cell.of(gone)} | ({Cell.of(one) for one in Store(installation.results).query(sweep=sweep)} - {
        Cell.of(one) for one in valid
    })  # fmt: skip
    assert f"{len(lacking)} of 8 missing" in installation.run(*look).stdout
    before = {one.attempt for one in Store(installation.results).query()}
    filled = installation.run(*fill, timeout_s=1500)
    new = [one for one in Store(installation.results).query() if one.attempt not in before]
    assert {Cell.of(one) for one in new} == lacking, filled.stderr
    left = len(lacking - {Cell.of(one) for one in new if one.is_usable})
    assert f"{left} of 8 missing" in installation.run(*again).stdout


def test_a_paired_nightly_run_reports_its_result(shared_installation: Installation, tmp_path: Path) -> None:
    """The file of the page, with the fewest pairs that allow a decision."""
    (file,) = HowTo.read("watch-nightly-runs").files
    with webhook() as (address, kept):
        text = file.replace("http://127.0.0.1:8099/hook", address).replace(
            "fault: executor}", "fault: none, rate: 100, warmup_s: 5, duration_s: 12}"
        )
        (tmp_path / "nightly.yaml").write_text(f"{text}repetitions: 7\n")
        given = {"FAULTLINE_NIGHTLY_DIR": str(tmp_path)}
        nightly = Installation(shared_installation.home, shared_installation.results, given)
        assert nightly.run("down").returncode == 0
        assert nightly.run("nightly", "check").returncode == 0
        assert nightly.run("up").returncode == 0
        api = AirflowApi(nightly.settings)
        switch_on(api)
        run = api.trigger(NIGHTLY, {}, run_id="first_night")
        await_run(api, run, NIGHTLY, timeout_s=3000)
        (triggered,) = [one for one in api.runs(NIGHTLY) if one["dag_run_id"] == run]
        assert re.search(r"green|red|nothing", str(triggered["note"])), triggered["note"]
        assert "detectable" in str(triggered["note"])
        assert all(one["dag_id"] == NIGHTLY for one in kept)
