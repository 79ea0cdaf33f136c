"""The hosts that faults reach over SSH: what others can read or change is refused before anything is started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from faultline.base.errors import ConfigError
from faultline.base.settings import ROOT, Settings, ssh_hosts
from faultline.client.operations import require


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
        assert ssh_hosts(settings) == {"node1": {**host, "port": 22}}
        return
    for refuse in (ssh_hosts, require):
        with pytest.raises(ConfigError) as caught:
            refuse(settings)
        assert str(caught.value) == f"ssh_hosts.json: node1.{said.format(folder=tmp_path)}"
