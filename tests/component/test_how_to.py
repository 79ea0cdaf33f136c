"""Commands of the how-to pages that measure nothing; the system tests run the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.how_to import NAMES, HowTo
from tests.support.installation import Installation, make_installation
from tests.support.receivers import webhook

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """Installation without running services."""
    return make_installation(tmp_path_factory.mktemp("how-to"))


@pytest.mark.parametrize("name", NAMES)
def test_each_page_has_commands_and_is_a_page(name: str) -> None:
    page = HowTo.read(name)
    assert page.commands and all(command[0] for command in page.commands)


def test_an_interval_is_planned_before_anything_starts(installation: Installation) -> None:
    first, *_ = HowTo.read("choose-an-interval").commands
    done = installation.run(*first)
    assert done.returncode == 0, done.stderr
    assert "20 experiments" in done.stdout and "minutes" in done.stdout.replace(" min", " minutes"), done.stdout


def test_all_cells_of_a_new_matrix_are_missing(installation: Installation) -> None:
    first, *_ = HowTo.read("backfill").commands
    done = installation.run(*first)
    assert done.returncode == 0 and "90 of 90 missing" in " ".join(done.stdout.split()), done


def test_a_nightly_file_is_checked_and_its_alert_tested(installation: Installation, tmp_path: Path) -> None:
    page = HowTo.read("watch-nightly-runs")
    with webhook() as (address, kept):
        (file,) = page.files
        (tmp_path / "nightly.yaml").write_text(file.replace("http://127.0.0.1:8099/hook", address))
        nightly = Installation(installation.home, installation.results, {"FAULTLINE_NIGHTLY_DIR": str(tmp_path)})
        outputs = {}
        for command in page.commands:
            done = nightly.run(*command)
            assert done.returncode == 0, done.stderr
            outputs[command] = done.stdout
        explained = outputs["nightly", "check"]
        assert "15 pairs" in explained and "30 experiments" in explained and "webhook" in explained
        assert "fails beyond its limit: Macro recovery at most 40.00 s" in explained
        (alert,) = kept
        assert alert["kind"] == "test" and alert["dag_id"] == "nightly_regression"
