"""The hosts that faults reach over SSH: what others can read or change is refused before anything is started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from faultline.cli.operations import require
from faultline.system.errors import ConfigError
from faultline.system.settings import ROOT, Settings
from faultline.system.ssh_hosts import check_ssh_host, ssh_hosts


@pytest.mark.parametrize(
    ("key_mode", "known_mode", "said"),
    [
        (0o600, 0o644, None),
        (0o400, 0o600, None),
        (0o640, 0o644, "key_file: others can use it (mode 0640); chmod 600 {folder}/key"),
        (0o604, 0o644, "key_file: others can use it (mode 0604); chmod 600 {folder}/key"),
        (0o600, 0o664, "known_hosts: others can change it (mode 0664); chmod go-w {folder}/known"),
        (0o600, 0o646, "known_hosts: others can change it (mode 0646); chmod go-w {folder}/known"),
    ],
)
def test_wide_modes_are_refused_in_one_line(tmp_path: Path, key_mode: int, known_mode: int, said: str | None) -> None:
    key, known = tmp_path / "key", tmp_path / "known"
    for file, mode in ((key, key_mode), (known, known_mode)):
        file.touch()
        file.chmod(mode)
    host = {"host": "10.0.0.5", "user": "bench", "key_file": str(key), "known_hosts": str(known)}
    (tmp_path / "ssh_hosts.json").write_text(json.dumps({"node1": host}))
    settings = Settings(ROOT, tmp_path, tmp_path / "results")
    if said is None:
        assert ssh_hosts(settings) == {"node1": {**host, "port": 22, "python": "python3"}}
        return
    for refuse in (ssh_hosts, require):
        with pytest.raises(ConfigError) as caught:
            refuse(settings)
        assert str(caught.value) == f"ssh_hosts.json: node1.{said.format(folder=tmp_path)}"


@pytest.mark.parametrize("python", ["python3 -c 'x'", "", "$(id)", 3, "py;id"])
def test_a_hosts_python_is_the_name_of_a_program(tmp_path: Path, python: object) -> None:
    """A shell over there reads it."""
    for name in ("key", "known"):
        (tmp_path / name).touch(0o600)
    host = {"host": "a", "user": "b", "key_file": str(tmp_path / "key"), "known_hosts": str(tmp_path / "known")}
    with pytest.raises(ConfigError, match=r"^here\.python: .*such as /usr/bin/python3"):
        check_ssh_host("here", {**host, "python": python})
    assert check_ssh_host("here", {**host, "python": "/opt/py-3.11/bin/python3"})["python"].startswith("/opt")
