"""`./faultline doctor` where something is missing."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from faultline.cli import main as cli
from faultline.experiment.attempt import Attempt, write_json
from faultline.installation import doctor
from faultline.installation.supervision import tell_state, write_instance
from faultline.system.background import Means
from faultline.system.settings import OPEN_TEXT, load_settings


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory in which nothing is installed yet."""
    monkeypatch.setenv("FAULTLINE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FAULTLINE_RESULTS", str(tmp_path / "results"))
    (tmp_path / "home").mkdir()
    return tmp_path


def test_what_is_missing_is_named_and_the_exit_code_says_so(empty: Path) -> None:
    done = CliRunner().invoke(cli.app, ["doctor"])
    lines = {line.split(": ")[0].strip(): line for line in done.output.splitlines()}
    assert done.exit_code == 1
    assert lines["MISSING jars"] and lines["ok      python"]
    assert "GB of memory" in lines["machine"] and "GB of disk free" in lines["machine"]
    assert "down (./faultline up starts them)" in lines["services"]
    assert "UI" not in lines, "there is none"
    done = CliRunner().invoke(cli.app, ["doctor", "--json"])
    found = json.loads(done.output)
    assert done.exit_code == 1 and found["ok"] is False
    assert {"java", "jars", "folders"} <= {check["name"] for check in found["checks"]}
    assert found["services"]["processes"] == {} and found["ui"].startswith("http://127.0.0.1:")


@pytest.mark.parametrize(
    ("ways", "counted", "expected"),
    [
        (Means(idle=True, groups=True), True, ("give way", "run delay)")),
        (Means(idle=False, groups=False), False, ("RLIMIT_NICE", "CONFIG_SCHEDSTATS")),
    ],
)
def test_whether_this_machine_lets_services_give_way_and_tells_delays_is_named(
    empty: Path, monkeypatch: pytest.MonkeyPatch, ways: Means, counted: bool, expected: tuple[str, str]
) -> None:
    monkeypatch.setattr(doctor, "means", lambda: ways)
    monkeypatch.setattr(doctor, "counts_delay", lambda: counted)
    output = CliRunner().invoke(cli.app, ["doctor"]).output
    assert all(words in output for words in expected)


def test_a_list_of_builds_that_is_broken_is_named(empty: Path) -> None:
    (empty / "home" / "spark-builds.json").write_text("{")
    done = CliRunner().invoke(cli.app, ["doctor"])
    (line,) = (one for one in done.output.splitlines() if one.startswith("MISSING spark builds: "))
    assert str(empty / "home" / "spark-builds.json") in line and "delete it, and add them anew" in line


def test_an_attempt_that_is_not_healed_is_named(empty: Path) -> None:
    settings = load_settings()
    attempt = Attempt(settings.attempts / "20261121T061500Z-3fa9c1")
    attempt.folder.mkdir(parents=True)
    said = {"attempt": attempt.id, "home": str(settings.home), "environment": {"host": socket.gethostname()}}
    write_json(attempt.folder / "attempt.json", said)
    write_json(attempt.unhealed, {"why": "healing: node9 is away"})
    line = f"attempt {attempt.id} is not healed: healing: node9 is away; the next experiment tries again"
    assert line in CliRunner().invoke(cli.app, ["doctor"]).output
    told: list[str] = []
    tell_state(settings, told.append)
    assert told == [line]


def test_an_installation_that_lets_everybody_in_is_told(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "OPEN" not in CliRunner().invoke(cli.app, ["doctor"]).output
    settings = load_settings()
    monkeypatch.setenv("FAULTLINE_OPEN", "1")
    write_instance(settings)
    monkeypatch.delenv("FAULTLINE_OPEN")
    assert "OPEN: everybody on this machine is let in" in CliRunner().invoke(cli.app, ["doctor"]).output
    assert json.loads(CliRunner().invoke(cli.app, ["doctor", "--json"]).output)["open"] is True
    told: list[str] = []
    tell_state(settings, told.append)
    assert told == [OPEN_TEXT]
