"""The how-tos on real services, command by command, on sweeps that are no longer than they must be."""

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
# Added to what a page measures, so that it takes minutes.
SHORT = ("repetitions=2", "rate=100", "state_mb=0.1")


@pytest.fixture(scope="module")
def chosen(shared_installation: Installation) -> tuple[Installation, str]:
    """The installation after the page on intervals, and the sweep that it made."""
    assert shared_installation.run("up").returncode == 0
    plan, measure, advise, explain = HowTo.read("choose-an-interval").commands
    assert shared_installation.run(*plan, *SHORT).returncode == 0
    done = shared_installation.run(*measure, *SHORT, timeout_s=3000)
    assert "Summary" in done.stdout, done.stderr
    found = re.search(r"/faultline/sweeps/(\S+)", done.stdout)
    assert found is not None, done.stdout
    told = shared_installation.run(*(found[1] if part == "SWEEP" else part for part in advise))
    assert told.returncode == 0 and re.search("inconclusive|checkpoint interval", told.stdout, re.I), told
    last = shared_installation.run(*explain)
    assert last.returncode == 0 and "T0" in last.stdout, last.stderr
    return shared_installation, found[1]


def test_an_interval_is_chosen_from_the_page_alone(chosen: tuple[Installation, str]) -> None:
    installation, sweep = chosen
    records = Store(installation.results).query(sweep=sweep)
    assert {record.config["checkpoint_interval_s"] for record in records} == {2.0, 10.0}


def test_a_gap_is_seen_and_filled(chosen: tuple[Installation, str]) -> None:
    installation, sweep = chosen
    valid = Store(installation.results).query(sweep=sweep, status="valid")
    gone = next(one for one in valid if one.config["fault"] == "none" and one.config["checkpoint_interval_s"] == 2)
    for path in (installation.results / "records").rglob(f"{gone.attempt}.json"):
        path.unlink()
    look, fill, again = HowTo.read("backfill").commands
    # A busy machine may have had the sweep give up others.
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


def test_a_night_in_pairs_says_in_the_morning_what_it_came_to(
    shared_installation: Installation, tmp_path: Path
) -> None:
    """The page's own file, with as few pairs as can tell anything."""
    (file,) = HowTo.read("watch-nightly-runs").files
    with webhook() as (address, kept):
        text = file.replace("http://127.0.0.1:8099/hook", address).replace(
            "fault: executor}", "fault: none, rate: 100}"
        )
        (tmp_path / "nightly.yaml").write_text(f"{text}repetitions: 7\n")
        given = {"FAULTLINE_NIGHTLY_DIR": str(tmp_path)}
        night = Installation(shared_installation.home, shared_installation.results, given)
        assert night.run("down").returncode == 0
        assert night.run("nightly", "check").returncode == 0
        assert night.run("up").returncode == 0
        api = AirflowApi(night.settings)
        switch_on(api)
        run = api.trigger(NIGHTLY, {}, run_id="first_night")
        await_run(api, run, NIGHTLY, timeout_s=3000)
        (told,) = [one for one in api.runs(NIGHTLY) if one["dag_run_id"] == run]
        assert re.search(r"green|red|nothing", str(told["note"])), told["note"]
        assert "would have been seen" in str(told["note"])
        assert all(one["dag_id"] == NIGHTLY for one in kept)
