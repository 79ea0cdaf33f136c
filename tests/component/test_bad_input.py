"""Invalid input is refused before the start, in one line with the key and exit code 2."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from faultline.installation.airflow import DATABASE, write_airflow_home
from faultline.installation.supervisord import Supervisor, write_configuration
from faultline.system.child_environment import PASSED_NAMES, SHARED_RESULTS
from faultline.system.files import write_private
from faultline.system.locks import HOLDS, RECORDER
from faultline.system.secrets import FILE, HARNESS, login_file, make_secrets, read_secrets, write_logins
from faultline.system.settings import load_settings
from faultline.system.waiting import wait_until
from tests.support.decoys import decoy
from tests.support.installation import Installation

pytestmark = pytest.mark.timeout(900)


def problems(stderr: str) -> list[str]:
    """Return the lines on standard error without the warning about root."""
    return [line for line in stderr.splitlines() if line and "running as root" not in line]


def refused(installation: Installation, *arguments: str) -> str:
    done = installation.run(*arguments)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    lines = problems(done.stderr)
    assert len(lines) == 1, done.stderr
    assert not Supervisor(installation.settings).is_running()
    return lines[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("word_count", "rate=0"), "rate: "),
        (("word_count", "rate=nan"), "rate: "),
        (("word_count", "rate=1e9"), "rate: "),
        (("word_count", "rate=1e10"), "rate: "),
        (("wordcount",), "did you mean word_count?"),
        (("word_count", "stat_mb=3"), "did you mean state_mb?"),
        (("word_count", "fault_at_s=70"), "fault_at_s: "),
        (("word_count", "state_mb=9000"), "state_mb: "),
        (("word_count", "executors=64", "executor_memory_mb=262144"), "executor_memory_mb: "),
        (("word_count", "rate"), "rate: expected KEY=VALUE"),
        (("word_count", "seed=1", "seed=2"), "seed: given twice"),
        (("word_count", "repetition=x"), "repetition"),
        (("stock_join", "prices=/none.csv"), "prices: "),
        (("word_count", "build=two words"), "build: "),
    ],
)
def test_a_wrong_parameter_is_named(installation: Installation, arguments: tuple[str, ...], words: str) -> None:
    assert words in refused(installation, "run", *arguments)


def test_an_unknown_status_is_named(installation: Installation) -> None:
    assert "did you mean valid?" in refused(installation, "results", "--status", "valud")


def test_a_truncated_jar_is_named(installation: Installation) -> None:
    (installation.home / "jars").unlink()
    shutil.copytree(load_settings().jars, installation.home / "jars")
    jar = next((installation.home / "jars" / "kafka").glob("kafka-clients-*.jar"))
    jar.write_bytes(jar.read_bytes()[:1024])
    assert jar.name in refused(installation, "up")


def test_a_results_folder_that_cannot_be_written_is_named(installation: Installation, tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the folder should be")
    installation = Installation(installation.home, blocked)
    assert "FAULTLINE_RESULTS" in refused(installation, "run", "word_count")


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_results_that_others_can_write_are_named(installation: Installation, mode: int) -> None:
    installation.results.mkdir(parents=True, exist_ok=True)
    installation.results.chmod(mode)
    for command in (("up",), ("run", "word_count")):
        assert f"fix: chmod go-w {installation.results}" in refused(installation, *command)


def test_shared_results_that_the_group_can_write_are_named(installation: Installation) -> None:
    installation.settings.attempts.mkdir(parents=True)
    installation.settings.attempts.chmod(0o775)
    installation.given[SHARED_RESULTS] = "1"
    assert f"chmod go-w {installation.settings.attempts}" in refused(installation, "run", "word_count")


def test_a_secret_that_others_can_read_is_named(installation: Installation) -> None:
    make_secrets(installation.settings.secrets)
    file = installation.settings.secrets / FILE
    before = file.read_bytes()
    file.chmod(0o640)
    for command in (("up",), ("run", "word_count")):
        assert refused(installation, *command).endswith(f"fix: chmod 0600 {file}")
    file.chmod(0o600)
    file.write_text("{}")
    assert f"{file}: damaged" in refused(installation, "up")
    assert before and file.read_text() == "{}", "nothing takes its place"


def test_keys_of_airflow_that_others_can_read_are_named(installation: Installation) -> None:
    file = write_airflow_home(installation.settings) / "secrets.json"
    file.chmod(0o604)
    assert f"chmod 0600 {file}" in refused(installation, "up")


def test_a_missing_password_is_named(installation: Installation) -> None:
    assert "passwords.json: " in refused(installation, "password")


def test_a_missing_login_of_running_services_is_named(installation: Installation) -> None:
    """Only supervisord runs; no service is started."""
    settings = installation.settings
    write_logins(settings.secrets, make_secrets(settings.secrets))
    settings.logs.mkdir()
    write_private(settings.home / "instance.json", '{"instance": "0123456789abcdef"}')
    write_configuration(settings, [])
    command = [sys.executable, "-m", "supervisor.supervisord", "-n", "-c", str(settings.home / "supervisord.conf")]
    keeper = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(Supervisor(settings).is_running, timeout_s=120, what="supervisord")
        for gone in (login_file(settings.secrets, HARNESS), settings.secrets / FILE):
            gone.unlink()
            done = installation.run("up")
            assert done.returncode == 2 and len(problems(done.stderr)) == 1, done.stderr
            assert f"{gone}: No such file" in done.stderr and "`./faultline down` first" in done.stderr
            assert Supervisor(settings).states() == {} and not gone.exists()
            if gone.name != FILE:
                write_logins(settings.secrets, read_secrets(settings.secrets))
    finally:
        keeper.terminate()
        keeper.wait(120)


def test_a_held_machine_lock_is_named(installation: Installation, tmp_path: Path) -> None:
    installation.given["FAULTLINE_MACHINE"] = str(tmp_path)
    words = ("-m", RECORDER, "--attempt-dir", "/srv/results/attempts/a1", "--machine", str(tmp_path))
    with decoy(*words, program=f"printf %s {HOLDS} > /proc/self/comm; echo up; read x"):
        message = refused(installation, "build", "add", "other", "--spark-home", "/nowhere")
        assert "experiment running (a1 of " in message


def test_a_key_of_a_host_that_others_can_read_is_named(installation: Installation, tmp_path: Path) -> None:
    key, known = tmp_path / "key", tmp_path / "known_hosts"
    for file, mode in ((key, 0o644), (known, 0o600)):
        file.touch()
        file.chmod(mode)
    host = {"host": "127.0.0.1", "user": "me", "key_file": str(key), "known_hosts": str(known)}
    (installation.home / "ssh_hosts.json").write_text(json.dumps({"other": host}))
    for command in (("up",), ("run", "word_count")):
        message = refused(installation, *command)
        assert f"chmod 600 {key}" in message


def test_a_variable_with_an_invalid_value_is_named(installation: Installation) -> None:
    installation.given.update({PASSED_NAMES: "TOKEN", "TOKEN": '{"a": 1}'})
    assert "TOKEN: holds a quotation mark" in refused(installation, "up")


def test_a_full_disk_is_named(installation: Installation) -> None:
    """/dev/full accepts no byte; a full tmpfs does the same for a folder."""
    small = installation.home.parent / "small"
    small.mkdir()
    if os.system(f"mount -t tmpfs -o size=1m,mode=0700 tmpfs {small} 2>/dev/null"):
        from faultline.system.errors import ConfigError
        from faultline.system.settings import check_folders

        with pytest.raises(ConfigError, match="MB free"):
            check_folders(installation.settings, need_mb=2**40)
        return
    try:
        assert "MB free" in refused(Installation(installation.home, small), "run", "word_count")
    finally:
        os.system(f"umount {small}")


def test_a_wrong_java_is_named(installation: Installation, tmp_path: Path) -> None:
    fake = tmp_path / "jdk" / "bin" / "java"
    fake.parent.mkdir(parents=True)
    fake.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    fake.chmod(0o755)
    from faultline.installation.java import find_java
    from faultline.system.errors import ConfigError

    with pytest.raises(ConfigError, match=r"11\.0\.2.*Java 17 or 21.*fix: "):
        find_java(environ={"JAVA_HOME": str(fake.parent.parent), "PATH": ""}, places=())


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("mysql://u:secret@127.0.0.1/airflow", "FAULTLINE_DATABASE: got mysql"),
        ("no address", "FAULTLINE_DATABASE: got an invalid address"),
        ("postgresql://u:secret@127.0.0.1:1", "database none"),
        ("postgresql://u:secret@127.0.0.1:1/airflow", "FAULTLINE_DATABASE: connect"),
    ],
)
def test_an_unusable_address_is_refused_before_the_start(installation: Installation, address: str, words: str) -> None:
    installation.given[DATABASE] = address
    done = installation.run("up")
    assert done.returncode == 2
    assert words in done.stderr and len(problems(done.stderr)) == 1
    assert "secret" not in done.stderr
    assert not Supervisor(installation.settings).is_running()


@pytest.mark.parametrize("command", [("up",), ("run", "word_count")], ids=["up", "run"])
@pytest.mark.parametrize("which", ["home", "results"])
def test_a_folder_that_others_can_write_is_named(
    installation: Installation, which: str, command: tuple[str, ...]
) -> None:
    folder = getattr(installation, which)
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)
    assert f"FAULTLINE_{which.upper()}: {folder} has mode 0777" in refused(installation, *command)


@pytest.mark.parametrize(("key", "mode", "remedy"), [("key_file", 0o644, "600"), ("known_hosts", 0o666, "go-w")])
def test_a_file_of_ssh_that_others_can_use_is_named(
    installation: Installation, tmp_path: Path, key: str, mode: int, remedy: str
) -> None:
    host = {"host": "127.0.0.1", "user": "x"}
    for name in ("key_file", "known_hosts"):
        file = tmp_path / name
        file.touch()
        file.chmod(mode if name == key else 0o600)
        host[name] = str(file)
    (installation.home / "ssh_hosts.json").write_text(json.dumps({"far": host}))
    assert f"far.{key}: others can" in (line := refused(installation, "up")) and f"chmod {remedy} " in line


def test_secrets_that_others_can_read_are_named(installation: Installation) -> None:
    secrets = installation.home / "secrets"
    make_secrets(secrets)
    (secrets / FILE).chmod(0o644)
    assert f"{secrets / FILE}: " in refused(installation, "up")
