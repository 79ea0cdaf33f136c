"""Secrets are readable by their owner only; others are refused."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from faultline.cli.service_control import require
from faultline.system.errors import ConfigError
from faultline.system.files import write_private
from faultline.system.kafka import kafka_client, kafka_options
from faultline.system.secrets import (
    FILE,
    USERS,
    jaas_file,
    login_file,
    make_secrets,
    read_secrets,
    require_logins,
    require_private,
    write_logins,
    write_no_logins,
)
from faultline.system.settings import INSTANCE, ROOT, Settings
from faultline.system.ssh_hosts import check_ssh_host, ssh_hosts
from tests.support.decoys import OTHER_UID, only_root
from tests.support.refusals import refused


def test_they_are_made_once_and_differ(tmp_path: Path) -> None:
    first, other = make_secrets(tmp_path / "a"), make_secrets(tmp_path / "b")
    assert make_secrets(tmp_path / "a") == read_secrets(tmp_path / "a") == first
    every = [*first.kafka.values(), first.spark, first.proof, *other.kafka.values(), other.spark, other.proof]
    assert len(set(every)) == len(every) and all(len(one) == 48 for one in every)


def test_no_other_user_can_read_secrets_under_any_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_logins(tmp_path / "s", make_secrets(tmp_path / "s"))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o700
    found = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "s").iterdir()}
    assert set(found.values()) == {0o600} and len(found) == 1 + 2 * len(USERS)


@pytest.mark.parametrize(("name", "mode"), [(FILE, 0o640), (FILE, 0o604), ("", 0o750), ("", 0o711)])
def test_what_others_can_read_is_refused_with_the_remedy(tmp_path: Path, name: str, mode: int) -> None:
    folder = tmp_path / "s"
    with pytest.raises(ConfigError, match="No such file"):
        read_secrets(folder)
    make_secrets(folder)
    (folder / name).chmod(mode)
    with pytest.raises(ConfigError, match=f"got mode {mode:04o}; .*chmod 0[67]00"):
        read_secrets(folder)
    (folder / name).chmod(0o700)
    write_private(folder / FILE, "{}")
    with pytest.raises(ConfigError, match="damaged"):
        read_secrets(folder)


@only_root
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    write_private(tmp_path / "x", "text")
    os.chown(tmp_path / "x", OTHER_UID, OTHER_UID)
    with pytest.raises(ConfigError, match=f"owned by user {OTHER_UID}"):
        require_private(tmp_path / "x")


def test_a_link_in_the_place_of_the_folder_or_the_file_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "s").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="not a folder of this user"):
        make_secrets(tmp_path / "s")
    (tmp_path / "victim").write_text("whole")
    (tmp_path / "file.tmp").symlink_to(tmp_path / "victim")
    write_private(tmp_path / "file", "text")
    assert (tmp_path / "victim").read_text() == "whole" and (tmp_path / "file").read_text() == "text"


def test_clients_log_in_where_the_broker_asks(settings: Settings) -> None:
    bootstrap, secrets = settings.endpoints.kafka, settings.secrets
    assert kafka_client(bootstrap, secrets=secrets) == {"bootstrap.servers": bootstrap} and not kafka_options(settings)
    known = make_secrets(secrets)
    write_logins(secrets, known)
    asked = kafka_client(bootstrap, {"log_level": 0}, secrets=secrets)
    assert (asked["sasl.username"], asked["sasl.password"]) == ("harness", known.kafka["harness"])
    assert asked["log_level"] == 0
    assert kafka_options(settings)["kafka.sasl.mechanism"] == "SCRAM-SHA-256"
    assert f'password="{known.kafka["workload"]}"' in jaas_file(secrets, "workload").read_text()
    assert kafka_client("elsewhere:9092") == {"bootstrap.servers": "elsewhere:9092"}, "no secret goes to others"
    write_no_logins(secrets)
    assert kafka_client(bootstrap, secrets=secrets) == {"bootstrap.servers": bootstrap} and not kafka_options(settings)
    assert json.loads((secrets / FILE).read_text()), "kept"


def test_a_missing_login_of_running_services_is_named(settings: Settings) -> None:
    """No client connects without a login instead."""
    write_logins(settings.secrets, make_secrets(settings.secrets))
    write_private(settings.home / INSTANCE, "{}")
    require_logins(settings.secrets)
    for user, use in (
        ("harness", lambda: kafka_client("x:1", secrets=settings.secrets)),
        ("workload", lambda: kafka_options(settings)),
    ):
        login_file(settings.secrets, user).unlink()
        for one in (use, lambda: require_logins(settings.secrets)):
            with pytest.raises(ConfigError, match=f"^{login_file(settings.secrets, user)}: No such file"):
                one()
        write_logins(settings.secrets, read_secrets(settings.secrets))
    (settings.secrets / FILE).unlink()
    with pytest.raises(ConfigError, match=f"{FILE}: No such file"):
        require_logins(settings.secrets)


# ---- SSH files of hosts: wide modes are refused ----


def host_with(folder: Path, key_mode: int, known_mode: int) -> dict[str, str]:
    for name, mode in (("key", key_mode), ("known", known_mode)):
        (folder / name).touch()
        (folder / name).chmod(mode)
    return {"host": "h", "user": "u", "key_file": str(folder / "key"), "known_hosts": str(folder / "known")}


@pytest.mark.parametrize(
    ("key_mode", "known_mode", "message"),
    [
        (0o600, 0o644, None),
        (0o400, 0o600, None),
        (0o640, 0o644, "key_file: others can use it (mode 0640); fix: chmod 600 {folder}/key"),
        (0o604, 0o644, "key_file: others can use it (mode 0604); fix: chmod 600 {folder}/key"),
        (0o600, 0o664, "known_hosts: others can change it (mode 0664); fix: chmod go-w {folder}/known"),
        (0o600, 0o646, "known_hosts: others can change it (mode 0646); fix: chmod go-w {folder}/known"),
    ],
)
def test_wide_modes_are_refused_in_one_line(
    tmp_path: Path, key_mode: int, known_mode: int, message: str | None
) -> None:
    host = host_with(tmp_path, key_mode, known_mode)
    (tmp_path / "ssh_hosts.json").write_text(json.dumps({"node1": host}))
    settings = Settings(ROOT, tmp_path, tmp_path / "results")
    if message is None:
        assert ssh_hosts(settings) == {"node1": {**host, "port": 22, "python": "python3"}}
        return
    for refuse in (ssh_hosts, require):
        with refused(f"ssh_hosts.json: node1.{message.format(folder=tmp_path)}"):
            refuse(settings)


@pytest.mark.parametrize("python", ["python3 -c 'x'", "", "$(id)", 3, "py;id"])
def test_a_hosts_python_is_the_name_of_a_program(tmp_path: Path, python: object) -> None:
    """A shell over there reads it."""
    host = host_with(tmp_path, 0o600, 0o600)
    with pytest.raises(ConfigError, match=r"^here\.python: .*such as /usr/bin/python3"):
        check_ssh_host("here", {**host, "python": python})
    assert check_ssh_host("here", {**host, "python": "/opt/py-3.11/bin/python3"})["python"].startswith("/opt")
