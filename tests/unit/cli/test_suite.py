"""Which layers run with which arguments, and what is said at their end."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from faultline.system.settings import ROOT
from tests import run as suite
from tests.run import LAYERS, Layer, Tally, closing_lines, run_layers, split_arguments


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
def test_layers_are_named_first_and_a_path_stands_for_itself(
    given: list[str], layers: list[str], rest: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert split_arguments(given) == (layers, rest)


def test_every_test_file_belongs_to_one_layer() -> None:
    folders = [folder for layer in LAYERS.values() for folder in layer.folders]
    for path in (ROOT / "tests").rglob("test_*.py"):
        assert sum(path.is_relative_to(ROOT / folder) for folder in folders) == 1, path


def test_the_closing_line_adds_up_the_layers_and_names_what_failed() -> None:
    tallies = {
        "static": Tally(59.6, 0, Counter(passed=48)),
        "unit": Tally(120.0, 1, Counter(passed=1500, failed=1, skipped=2, deselected=3), ["tests/unit/a.py::test_b"]),
        "system": Tally(3600.0, suite._NOTHING_CHOSEN, Counter(deselected=9)),
    }
    lines = closing_lines(tallies)
    assert [line.split()[:3] for line in lines[1:4]] == [
        ["static", "48", "60"], ["unit", "1,503", "120"], ["system", "0", "3600"],
    ]  # fmt: skip
    assert lines[4] == "FAILED tests/unit/a.py::test_b"
    assert lines[5].strip("= ") == "1 failed, 1548 passed, 2 skipped, 12 deselected in 3779.60s (1:03:00)"
    assert lines[5].startswith("==") and lines[5].endswith("==")


def test_a_layer_that_broke_off_is_an_error() -> None:
    lines = closing_lines({"unit": Tally(1.0, 3)})
    assert "FAILED layer unit: status 3" in lines
    assert lines[-1].strip("= ") == "1 error in 1.00s (0:00:01)"


def test_each_layer_runs_by_itself_and_a_failure_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """With a real pytest: one layer fails, one passes, one has nothing that was chosen."""
    tests = {"bad": "def test_1(): assert False\n", "good": "def test_1(): pass\ndef test_2(): pass\n", "none": ""}
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    hook = (ROOT / "tests" / "conftest.py").read_text().partition("def pytest_terminal_summary")
    (tmp_path / "conftest.py").write_text(
        "import json, os\nimport pytest\nfrom pathlib import Path\n"
        f"from tests.run import COUNTED, TALLY\n{''.join(hook[1:])}"
    )
    for name, text in tests.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "test_it.py").write_text(text)
    monkeypatch.setattr(suite, "LAYERS", {name: Layer((name,), ("-p", "no:cacheprovider")) for name in tests})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'include'}:{ROOT}")
    said: list[str] = []
    assert run_layers(list(tests), [], said.append) == 1
    assert said == ["tests: bad", "tests: good", "tests: none"]
    lines = capfd.readouterr().out.splitlines()
    assert "FAILED bad/test_it.py::test_1" in lines
    assert lines[-1].strip("= ").startswith("1 failed, 2 passed in ")
    # A path stands in place of the folders.
    assert run_layers(["bad"], ["good/test_it.py"], said.append) == 0
    assert capfd.readouterr().out.splitlines()[-1].strip("= ").startswith("2 passed in ")
