"""The command line: signals, output formats, usage errors."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from faultline.cli import main as cli
from faultline.cli import run_command
from faultline.system.errors import ConfigError
from faultline.system.settings import ROOT
from tests.unit.sample_records import sample

# A command that must clean up after an interruption.
PROGRAM = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background has it ignored
from typer.testing import CliRunner

from faultline.cli import main as cli

@cli.app.command()
def slow():
    try:
        print("begun", flush=True)
        time.sleep(600)
    finally:
        print("ended", flush=True)

sys.argv = ["faultline", "slow"]
cli.main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_command_cleans_up(number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (out, process.returncode) == ("ended\n", 1)
    assert err.startswith("faultline: interrupted")


@pytest.mark.parametrize(
    ("terminal", "as_json", "whole"), [(True, False, False), (True, True, True), (False, False, True)]
)
def test_run_prints_figures_on_a_terminal_and_a_record_elsewhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: bool, as_json: bool, whole: bool
) -> None:
    record = sample()
    monkeypatch.setattr(run_command, "run_single", lambda *given, **named: record)
    monkeypatch.setattr(run_command, "page_url", lambda attempt: None)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    with pytest.raises(typer.Exit):
        cli.run("word_count", [], as_json=as_json)
    output = capsys.readouterr()
    if whole:
        assert json.loads(output.out) == record.as_dict()
    else:
        assert "p99" in output.out and len(output.out.splitlines()) < 40
    assert f"./faultline explain {record.attempt}" in output.err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["resuls"], "No such command 'resuls'. Did you mean 'results'? See ./faultline --help"),
        (["results", "--matirx", "recovery"], "No such option: --matirx"),
        (["explain"], "Missing argument 'record'. See ./faultline explain --help"),
        (["results", "--matrix", "recvery"], "--matrix: got recvery; expected a known matrix; did you mean recovery?"),
        (["results", "--sweep", "demo-1"], "--sweep: got demo-1"),
        (["results", "--status", "vald"], "--status: got vald"),
    ],
)
def test_invalid_usage_is_one_line_with_exit_code_2(
    words: list[str], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAULTLINE_HOME", str(tmp_path))
    monkeypatch.setenv("FAULTLINE_RESULTS", str(tmp_path / "results"))
    monkeypatch.setattr(sys, "argv", ["faultline", *words])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out, err = capsys.readouterr()
    assert (out, ended.value.code) == ("", 2)
    assert err.startswith(f"faultline: {line}") and err.count("\n") == 1


@pytest.mark.parametrize(
    ("given", "ran"),
    [
        (["unit", "-k", "store"], (["unit"], ["-k", "store"])),
        (["system"], ("archive", ["system"], [])),
        (["tests/unit", "-x"], [sys.executable, "-m", "pytest", "tests/unit", "-x"]),
    ],
)
def test_the_command_test_installs_packages_and_forwards_arguments(
    given: list[str], ran: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[object] = []

    def execute(program: str, command: list[str]) -> None:
        done.append(command)
        raise SystemExit(0)

    monkeypatch.setattr("tests.run.add_packages", lambda root, venv: done.append(venv))
    monkeypatch.setattr("tests.run.install_missing", lambda log, say, **_: done.append(log))
    monkeypatch.setattr("faultline.installation.cds_archive.make_archive", lambda settings, say: done.append("archive"))
    monkeypatch.setattr("tests.run.run_layers", lambda layers, rest, say: done.append((layers, rest)) or 0)
    monkeypatch.setattr("os.execv", execute)
    monkeypatch.chdir("/")
    assert CliRunner().invoke(cli.app, ["test", *given]).exit_code == 0
    assert Path.cwd() == ROOT
    venv = Path(sys.prefix)
    assert done[:2] == [venv, venv.parent / "logs" / "debian.log"]
    assert done[2:] == (["archive", ran[1:]] if isinstance(ran, tuple) and ran[0] == "archive" else [ran])


@pytest.mark.parametrize("group", ["", "target", "service", "build", "job"])
def test_help_without_a_command_names_the_launcher(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], group: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["faultline", *group.split()])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    code: object = 0
    try:
        cli.main()
    except SystemExit as ended:
        code = ended.code
    assert not code
    output = capsys.readouterr()
    assert output.out.startswith(f"Usage: ./faultline {group or '['}") and output.err == ""


def test_a_sweep_without_a_record_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULTLINE_RESULTS", str(tmp_path))
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps" / "s1.json").write_text("{}")
    done = CliRunner().invoke(cli.app, ["results", "--json", "--sweep", "s1"])
    assert (done.exit_code, done.stdout) == (0, "[]\n")
    done = CliRunner().invoke(cli.app, ["results", "--sweep", "s1"])
    assert (done.exit_code, done.stdout) == (0, "") and "no record matches" in done.stderr


def test_options_of_one_experiment_are_refused_for_all_queries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULTLINE_RESULTS", str(tmp_path))
    refused = CliRunner().invoke(cli.app, ["run", "nexmark", "--keep-topics"])
    assert isinstance(refused.exception, ConfigError) and "--keep-topics" in str(refused.exception)
    dry = CliRunner().invoke(cli.app, ["run", "nexmark", "build=x", "--dry-run"])
    assert dry.exit_code == 0 and "72 to measure: about" in dry.output
    one = CliRunner().invoke(cli.app, ["run", "nexmark", "query=q20", "preset=steady", "build=x", "--dry-run"])
    assert one.exit_code == 0 and one.output.endswith("1 to measure: about 5 min on an idle machine\n"), (
        "a preset is of the matrix"
    )
    assert not list(tmp_path.glob("attempts/*")), "nothing was started"
