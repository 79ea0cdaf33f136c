"""`./faultline test`: layers, arguments and the closing lines."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import psutil
import pytest

from faultline.system.settings import ROOT
from faultline.system.waiting import wait_until
from tests import run as suite
from tests.run import LAYERS, Layer, Tally, closing_lines, run_layers, split_arguments
from tests.support.processes import EVENT_S

# Plugins take longer to load than the tests of a child pytest.
WITHOUT_PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


@pytest.mark.parametrize(
    ("given", "layers", "rest"),
    [
        ([], list(LAYERS), []),
        (["unit"], ["unit"], []),
        (["system", "static", "-k", "unit"], ["system", "static"], ["-k", "unit"]),
        (["--thorough"], list(LAYERS), ["--thorough"]),
        (["-k", "store"], list(LAYERS), ["-k", "store"]),
        (["-k", "fault"], list(LAYERS), ["-k", "fault"]),  # a folder of the project, too
        (["tests"], [], ["tests"]),
        (["tests/unit/records", "-x"], [], ["tests/unit/records", "-x"]),
        (["-q", "tests/unit/test_cli.py::test_x"], [], ["-q", "tests/unit/test_cli.py::test_x"]),
        (["unit", "tests/unit/records"], ["unit"], ["tests/unit/records"]),
    ],
)
def test_arguments_are_split_into_layers_and_pytest_arguments(
    given: list[str], layers: list[str], rest: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert split_arguments(given) == (layers, rest)


def test_every_test_file_belongs_to_one_layer() -> None:
    folders = [folder for layer in LAYERS.values() for folder in layer.folders]
    for path in (ROOT / "tests").rglob("test_*.py"):
        assert sum(path.is_relative_to(ROOT / folder) for folder in folders) == 1, path


def test_the_closing_line_sums_the_layers() -> None:
    failed = Counter(passed=1500, failed=1, skipped=2, deselected=3)
    tallies = {
        "static": Tally(59.6, 0, Counter(passed=48)),
        "unit": Tally(120.0, 1, failed, ["tests/unit/a.py::test_b"]),
        "system": Tally(3600.0, suite._NOTHING_CHOSEN, Counter(deselected=9)),
    }
    lines = closing_lines(tallies)
    shown = [" ".join(line.split()[:3]) for line in lines[1:4]]
    assert shown == ["static 48 60", "unit 1,503 120", "system 0 3600"]
    assert lines[4] == "FAILED tests/unit/a.py::test_b"
    assert lines[5].strip("= ") == "1 failed, 1548 passed, 2 skipped, 12 deselected in 3779.60s (1:03:00)"
    assert lines[5].startswith("==") and lines[5].endswith("==")
    lines = closing_lines({"unit": Tally(1.0, 3)})
    assert "FAILED layer unit: status 3" in lines, "it broke off"
    assert lines[-1].strip("= ") == "1 error in 1.00s (0:00:01)"


def test_a_failed_layer_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """One layer fails, one passes, one has no selected test."""
    tests = {"bad": "def test_1(): assert False\n", "good": "def test_1(): pass\ndef test_2(): pass\n", "none": ""}
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    hook = (ROOT / "tests" / "conftest.py").read_text().partition("def pytest_terminal_summary")
    (tmp_path / "conftest.py").write_text(
        "import json, os\nimport pytest\nfrom pathlib import Path\n"
        f"from tests.run import COUNTED, SUMMARY\n{''.join(hook[1:])}"
    )
    for name, text in tests.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "test_it.py").write_text(text)
    monkeypatch.setattr(suite, "LAYERS", {name: Layer((name,), ("-p", "no:cacheprovider")) for name in tests})
    monkeypatch.chdir(tmp_path)
    for key, value in {"PYTHONPATH": f"{ROOT / 'include'}:{ROOT}", **WITHOUT_PLUGINS}.items():
        monkeypatch.setenv(key, value)
    lines: list[str] = []
    assert run_layers(list(tests), [], lines.append) == 1
    assert lines == ["tests: bad", "tests: good", "tests: none"]
    lines = capfd.readouterr().out.splitlines()
    assert "FAILED bad/test_it.py::test_1" in lines
    assert lines[-1].strip("= ").startswith("1 failed, 2 passed in ")
    # A path replaces the folders.
    assert run_layers(["bad"], ["good/test_it.py"], lines.append) == 0
    assert capfd.readouterr().out.splitlines()[-1].strip("= ").startswith("2 passed in ")


PROGRAM = """
import sys
from pathlib import Path
from faultline.cli.main import main
from faultline.system import settings
from tests import run as suite

settings.ROOT = Path.cwd()
suite.add_packages = suite.install_missing = lambda *given, **named: None
suite.LAYERS = {"only": suite.Layer(("only",), ("-p", "no:cacheprovider"))}
sys.argv = ["./faultline", "test", "only"]
main()
"""
LASTING = """
import subprocess
import time
from pathlib import Path
import pytest

@pytest.fixture
def service():
    with subprocess.Popen(["sleep", "900"]) as process:
        yield process.pid
        process.kill()
    Path("ended").touch()

def test_it(service):
    Path("begun.part").write_text(str(service))
    Path("begun.part").rename("begun")
    time.sleep(900)
"""


@pytest.mark.parametrize("ignored", [False, True], ids=["in front", "in the background of a script"])
def test_an_interrupted_runner_finalises_its_fixtures(tmp_path: Path, ignored: bool) -> None:
    (tmp_path / "only").mkdir()
    (tmp_path / "only" / "test_it.py").write_text(LASTING)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    how = signal.SIG_IGN if ignored else signal.SIG_DFL
    with (tmp_path / "said").open("w") as lines:
        runner = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            cwd=tmp_path,
            env={**os.environ, **WITHOUT_PLUGINS, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdout=lines,
            stderr=lines,
            preexec_fn=lambda: signal.signal(signal.SIGINT, how),
        )
    below = list[psutil.Process]()
    try:
        wait_until(
            (tmp_path / "begun").exists,
            timeout_s=EVENT_S,
            what="the test",
            alive=lambda: None if runner.poll() is None else (tmp_path / "said").read_text(),
        )
        below = psutil.Process(runner.pid).children(recursive=True)
        assert int((tmp_path / "begun").read_text()) in [one.pid for one in below]
        runner.send_signal(signal.SIGTERM)
        assert runner.wait(suite._TO_END_S / 2) == 1, (tmp_path / "said").read_text()
        assert (tmp_path / "ended").exists() and not [one for one in below if one.is_running()]
    finally:
        for one in [*below, runner]:
            with contextlib.suppress(psutil.Error):
                one.kill()
        runner.wait()
