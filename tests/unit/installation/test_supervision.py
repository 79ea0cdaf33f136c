"""Supervision of services: messages, holders, steps, restart delays and networks."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from configparser import ConfigParser
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner, Result

from faultline.cli import main as cli
from faultline.engines.flink.distribution import ADD_COMMAND
from faultline.experiment.attempt import Attempt, write_json
from faultline.installation import doctor, supervision
from faultline.installation import kafka as kafka
from faultline.installation.hosts import layout
from faultline.installation.hosts.layout import choose_hosts
from faultline.installation.kafka import prepare_kafka
from faultline.installation.service_users import (
    ENVIRONMENT,
    FILE,
    OWNER,
    admit_steps,
    are_steps_admitted,
    block_steps,
    external_owner,
    foreground_process,
    hold_foreground,
    load_environment,
    mark_for_all,
    mark_for_runs,
    supervisor_pid,
    use_services,
)
from faultline.installation.services import control_services, data_services
from faultline.installation.start import await_delay, write_delay
from faultline.installation.supervision import _start_daemon, down, provision_airflow, report_state, up, write_instance
from faultline.installation.supervisord import write_configuration
from faultline.system.background import BackgroundMethods
from faultline.system.errors import ConfigError, InfrastructureError
from faultline.system.files import write_private
from faultline.system.journal import read_journal
from faultline.system.process_tags import INSTANCE_MARK
from faultline.system.settings import AUTH_DISABLED_TEXT, INSTANCE, ROOT, Settings, load_settings
from faultline.system.waiting import wait_until
from tests.support.attempts import unplanned
from tests.support.installation import within
from tests.support.processes import words_of
from tests.support.refusals import refused
from tests.support.scripts import script


@pytest.mark.parametrize(
    ("start", "line"),
    [
        (lambda given: _start_daemon(given, Path("java"), Path("/")), r"supervisord: start: timeout"),
        (lambda given: provision_airflow(given, print), r"airflow: database: timeout"),
        (lambda given: prepare_kafka(given, Path("java")), r"kafka: formatting its storage: timeout"),
    ],
    ids=["supervisord", "database", "storage"],
)
def test_a_program_that_does_not_answer_is_a_line(
    start: Callable[[Settings], None], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(command: list[str], *, timeout: float, **_: Any) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    given = Settings(ROOT, tmp_path / "home", tmp_path / "results")
    given.home.mkdir()
    write_private(given.home / "instance.json", '{"instance": "0"}')
    monkeypatch.setattr(supervision, "data_services", lambda *_: [])
    monkeypatch.setattr(supervision, "airflow_environment", lambda _: {})
    monkeypatch.setattr(kafka, "kafka_classpath", lambda _: "")
    monkeypatch.setattr(subprocess, "run", never)
    with pytest.raises(InfrastructureError) as raised:
        start(given)
    assert re.match(line, str(raised.value)) and "\n" not in str(raised.value)
    assert not (given.secrets / "format.arguments").exists(), "it has passwords"


def test_logs_of_services_are_rotated_with_one_older_file(settings: Settings) -> None:
    settings.home.mkdir(exist_ok=True)
    write_private(settings.home / "instance.json", '{"instance": "0123456789abcdef"}')
    services = [*data_services(settings, Path("/java"), "0" * 16), *control_services(settings)]
    write_configuration(settings, services)
    written = ConfigParser(interpolation=None)
    written.read(settings.home / "supervisord.conf")
    programs = [written[name] for name in written.sections() if name.startswith("program:")]
    assert len(programs) == len(services) > 6
    bounds = {"stdout_logfile_maxbytes": "20MB", "stdout_logfile_backups": "1", "redirect_stderr": "true"}
    assert all(bounds.items() <= dict(one).items() and one["stdout_logfile"] for one in programs)


def test_each_worker_offers_the_memory_that_was_set(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAULTLINE_WORKER_MEMORY_MB", "1536")
    services = data_services(settings, Path("/java"), "0" * 16)
    workers = [one.command for one in services if one.name.startswith("spark-worker-")]
    assert [words[words.index("--memory") + 1] for words in workers] == ["1536m", "1536m"]


def test_a_process_that_runs_steps_of_an_open_attempt_is_an_owner(settings: Settings) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(900)"]) as sleeping:
        started = psutil.Process(sleeping.pid).create_time()
        owners = [
            {"pid": sleeping.pid, "create_time": started},
            {"pid": sleeping.pid, "create_time": started - 100},  # another process that had this pid
            {"pid": os.getpid(), "create_time": psutil.Process().create_time()},
            None,
        ]
        for number, owner in enumerate(owners):
            unplanned(settings, f"20261121T06150{number}Z-00000{number}", owner=owner)
        assert [process.pid for process in supervision._owners(settings)] == [sleeping.pid]
        Attempt(settings.attempts / "20261121T061500Z-000000").closed.touch()
        assert supervision._owners(settings) == []
        sleeping.kill()


def test_down_ends_a_run_that_has_no_attempt_yet(settings: Settings) -> None:
    lines: list[str] = []
    with within(settings, "use_services(settings, run=True)") as run:
        assert [process.pid for process in supervision._owners(settings)] == [run.pid]
        down(settings, lines.append)
        run.wait(120)
    assert len(lines) == 1 and supervision._owners(settings) == []
    with use_services(settings, run=True), use_services(settings):
        assert supervision._owners(settings) == [], "not the process that asks"


# ---- The holder of services in the foreground ----


@pytest.fixture
def settings(settings: Settings) -> Settings:
    settings.home.mkdir()
    return settings


@pytest.fixture
def holder(settings: Settings) -> Iterator[subprocess.Popen[str]]:
    with within(settings, "hold_foreground(settings)") as process:
        yield process


def test_there_is_one_holder_and_it_is_known(settings: Settings) -> None:
    assert foreground_process(settings) is None
    with hold_foreground(settings):
        with pytest.raises(ConfigError, match="another process holds the services"), hold_foreground(settings):
            pass
        known = foreground_process(settings)
        assert known is not None and known.pid == os.getpid()
    assert foreground_process(settings) is None
    with hold_foreground(settings):
        pass


def test_a_process_with_the_pid_of_a_dead_holder_is_not_a_holder(settings: Settings) -> None:
    with hold_foreground(settings):
        stored = json.loads((settings.home / FILE).read_text())
    for change in ({"start_ticks": stored["start_ticks"] - 1}, {"boot": "another"}, {"pid": None}, {"who": 1}):
        (settings.home / FILE).write_text(json.dumps({**stored, **change}))
        assert foreground_process(settings) is None, change
    (settings.home / FILE).write_text(json.dumps(stored)[:-9])
    assert foreground_process(settings) is None


def test_airflow_does_not_start_while_a_holder_runs(settings: Settings, holder: subprocess.Popen[str]) -> None:
    before = {path.name for path in settings.home.iterdir()}
    with pytest.raises(ConfigError, match=rf"process {holder.pid} holds the services"):
        up(settings, Path("/nowhere/java"), Path("/nowhere"))
    assert {path.name for path in settings.home.iterdir()} == before | {"up.lock"}


def test_down_ends_the_holder_and_not_the_one_that_calls_it(settings: Settings, holder: subprocess.Popen[str]) -> None:
    lines: list[str] = []
    down(settings, lines.append)
    wait_until(lambda: holder.poll() is not None, timeout_s=120, what="the end of the holder")
    assert lines == ["stopping `up --foreground`"]
    assert holder.returncode in (-signal.SIGTERM, 0)  # 0: `down` itself waited for its child
    with hold_foreground(settings):
        down(settings, lines.append)
    assert len(lines) == 1


def test_airflow_does_not_start_during_an_experiment_of_an_external_one(settings: Settings) -> None:
    attempt = unplanned(settings)
    (attempt.folder / OWNER).parent.mkdir()
    write_json(settings.home / INSTANCE, {"instance": "i"})
    write_json(attempt.folder / OWNER, {"place": "/dags", "prefix": "theirs_", "instance": "i"})
    assert external_owner(attempt, settings) == ("/dags", "theirs_")
    with pytest.raises(ConfigError, match=f"^airflow: {attempt.id} of an external Airflow"):
        up(settings, Path("/nowhere/java"), Path("/nowhere"))
    write_json(settings.home / INSTANCE, {"instance": "of the next start"})
    assert external_owner(attempt, settings) is None
    write_json(settings.home / INSTANCE, {"instance": "i"})
    write_json(attempt.closed, {"ended": [], "topics": []})
    assert external_owner(attempt, settings) is None


def test_steps_of_an_external_airflow_get_the_environment_of_the_services(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {"FAULTLINE_MACHINE": "m", "FAULTLINE_JOB_ENV": "TOKEN", "TOKEN": "of mine"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        admit_steps(settings)
    assert stat.S_IMODE((settings.home / ENVIRONMENT).stat().st_mode) == 0o600
    for name in variables:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv(name, "")
    load_environment(settings)
    assert {name: os.environ[name] for name in variables} == variables
    down(settings)
    assert not (settings.home / ENVIRONMENT).exists(), "passwords are among it"


def test_steps_are_admitted_while_ready_services_run(settings: Settings) -> None:
    """Not while another process has the pid of a supervisor that a power cut ended."""
    write_json(settings.home / INSTANCE, {"instance": "i"})
    with (
        subprocess.Popen(["sleep", "900"], env={**os.environ, INSTANCE_MARK: "i"}) as keeper,
        subprocess.Popen(["sleep", "900"], env={**os.environ, INSTANCE_MARK: "before"}) as other,
    ):
        try:
            for one, kept in ((other, None), (keeper, keeper.pid)):
                wait_until(lambda: words_of(one.pid)[:1] == ["sleep"], timeout_s=120, what="sleep")  # noqa: B023
                (settings.home / "supervisord.pid").write_text(f"{one.pid}\n")
                assert supervisor_pid(settings) == kept
            assert not are_steps_admitted(settings), "it is on its way up"
            admit_steps(settings)
            assert are_steps_admitted(settings)
            mark_for_runs(settings)
            assert not are_steps_admitted(settings), "they end with the last run"
            mark_for_all(settings)
            assert are_steps_admitted(settings)
            (settings.home / "supervisord.pid").write_text(f"{other.pid}\n")
            assert not are_steps_admitted(settings)
            (settings.home / "supervisord.pid").write_text(f"{keeper.pid}\n")
            block_steps(settings)
            assert not are_steps_admitted(settings)
        finally:
            keeper.kill()
            other.kill()
    admit_steps(settings)
    assert not are_steps_admitted(settings), "no supervisor runs"


# ---- `./faultline doctor` where something is missing ----


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory in which nothing is installed yet."""
    monkeypatch.setenv("FAULTLINE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FAULTLINE_RESULTS", str(tmp_path / "results"))
    (tmp_path / "home").mkdir()
    return tmp_path


def doctors(*options: str) -> Result:
    return CliRunner().invoke(cli.app, ["doctor", *options])


def reported_state(settings: Settings) -> list[str]:
    lines: list[str] = []
    report_state(settings, lines.append)
    return lines


def test_missing_parts_are_named_and_set_the_exit_code(empty: Path) -> None:
    done = doctors()
    lines = {line.split(": ")[0].strip(): line for line in done.output.splitlines()}
    assert done.exit_code == 1
    assert lines["MISSING jars"] and lines["ok      python"] and "UI" not in lines, "there is none"
    assert "GB of memory" in lines["machine"] and "GB of disk free" in lines["machine"]
    assert "down (./faultline up starts them)" in lines["services"]
    done = doctors("--json")
    found = json.loads(done.output)
    assert done.exit_code == 1 and found["ok"] is False
    assert {"java", "jars", "folders"} <= {check["name"] for check in found["checks"]}
    assert found["services"]["processes"] == {} and found["ui"].startswith("http://127.0.0.1:")
    assert ADD_COMMAND in found["engines"]["flink"] and ADD_COMMAND in lines["engine flink"]


@pytest.mark.parametrize(
    ("ways", "counted", "expected"),
    [
        (BackgroundMethods(idle=True, groups=True), True, ("lowered during", "run delay")),
        (BackgroundMethods(idle=False, groups=False), False, ("RLIMIT_NICE", "CONFIG_SCHEDSTATS")),
    ],
)
def test_support_for_lower_priority_and_delays_is_reported(
    empty: Path, monkeypatch: pytest.MonkeyPatch, ways: BackgroundMethods, counted: bool, expected: tuple[str, str]
) -> None:
    monkeypatch.setattr(doctor, "background_methods", lambda: ways)
    monkeypatch.setattr(doctor, "has_run_delay", lambda: counted)
    assert all(words in doctors().output for words in expected)


def test_a_list_of_builds_that_is_broken_is_named(empty: Path) -> None:
    (empty / "home" / "spark-builds.json").write_text("{")
    (line,) = (one for one in doctors().output.splitlines() if one.startswith("MISSING spark builds: "))
    assert str(empty / "home" / "spark-builds.json") in line


def test_an_attempt_with_a_failed_undo_is_named(empty: Path) -> None:
    settings = load_settings()
    attempt = unplanned(settings)
    write_json(attempt.unhealed, {"why": "healing: node9 is unreachable"})
    (line,) = reported_state(settings)
    assert line.startswith(f"attempt {attempt.id}: ") and "node9 is unreachable" in line
    assert line in doctors().output


def test_an_installation_without_authentication_is_reported(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "OPEN" not in doctors().output
    settings = load_settings()
    monkeypatch.setenv("FAULTLINE_NO_AUTH", "1")
    write_instance(settings)
    monkeypatch.delenv("FAULTLINE_NO_AUTH")
    assert "OPEN" in doctors().output
    assert json.loads(doctors("--json").output)["auth_disabled"] is True
    assert reported_state(settings) == [AUTH_DISABLED_TEXT]


# ---- Restart delays ----


def test_a_restart_delay_ends_at_its_instant_and_is_bounded(tmp_path: Path) -> None:
    hold = tmp_path / "holds" / "kafka.json"
    assert await_delay(hold) < 60, "there is none"
    until = time.monotonic_ns() + 300_000_000
    write_delay(hold, until)
    await_delay(hold)
    assert time.monotonic_ns() >= until
    assert await_delay(hold) < 60, "its instant is over"
    write_delay(hold, time.monotonic_ns() + 10**13)
    assert 0.1 <= await_delay(hold, longest_s=0.1) < 60
    hold.write_text("{half a")
    assert await_delay(hold) < 60


def test_the_service_takes_the_place_of_its_start_and_the_start_is_journalled(tmp_path: Path) -> None:
    words_file, journal = tmp_path / "kafka.json", tmp_path / "services.jsonl"
    service = [sys.executable, "-c", "import os; print(os.getpid())"]
    for place in (Path("/dev/full"), journal):  # in the first there is no room to journal it
        words = {"service": "kafka", "command": service, "hold": str(tmp_path / "hold.json"), "journal": str(place)}
        words_file.write_text(json.dumps(words))
        command = [sys.executable, "-P", "-m", "faultline.installation.start", "held", str(words_file)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0 and int(output) == process.pid, "supervisord watches the service itself"
    (line,) = read_journal(journal)
    assert (line["event"], line["service"], line["pid"]) == ("started", "kafka", process.pid)


# ---- Network of namespace hosts ----


@pytest.mark.parametrize(
    ("addresses", "routes", "conductor"),
    [
        ([], [], "10.77.0.1"),
        (["10.77.0.9"], [], "10.77.1.1"),
        (["10.77.0.9"], ["10.77.1.0/24", "10.77.2.7"], "10.77.3.1"),
        ([], ["10.77.0.0/17", "10.78.0.0/16", "10.7.0.0/16"], "10.77.128.1"),
        ([], ["0.0.0.0/1", "128.0.0.0/1"], "10.77.0.1"),
        ([], ["10.0.0.0/8"], None),
    ],
)
def test_a_network_in_use_or_routed_is_not_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, addresses: list[str], routes: list[str], conductor: str | None
) -> None:
    """If all candidate networks are routed, no hosts are created."""
    answers = {
        "address": [
            {"addr_info": [{"family": "inet", "local": one} for one in addresses]},
            {"addr_info": [{"family": "inet6", "local": "fe80::1"}]},
            {},
        ],
        "route": [{"dst": one} for one in ["default", "192.0.2.0/24", *routes]],
    }
    for what, answer in answers.items():
        (tmp_path / what).write_text(json.dumps(answer))
    ip = script(tmp_path / "ip", f'[ "$1" = -j ] && cat {tmp_path}/"$2"')
    monkeypatch.setattr(layout, "find_program", lambda _: str(ip))
    monkeypatch.setattr(layout, "require_programs", lambda: None)
    (tmp_path / "home").mkdir()
    settings = Settings(ROOT, tmp_path / "home", tmp_path / "home")
    message = ("--hosts: all networks from 10.77.0 to 10.77.255 are in use; ", "ip route")
    with nullcontext() if conductor else refused(*message):
        assert choose_hosts(settings, 3).conductor == conductor
