"""The broker's storage, which knows its users' passwords from the day it was formatted."""

from __future__ import annotations

from pathlib import Path

import pytest

from faultline.installation.kafka import _digest, _knows_users
from faultline.system.secrets import make_secrets


def test_a_storage_with_other_passwords_is_moved_aside_and_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known, folder = make_secrets(tmp_path / "secrets"), tmp_path / "kafka"
    (folder / "data").mkdir(parents=True)
    assert not _knows_users(folder, known), "empty: there is nothing to keep"
    (folder / "data" / "meta.properties").write_text("node.id=1")
    (folder / "users.sha256").write_text(_digest(known))
    assert _knows_users(folder, known) and capsys.readouterr().err == ""
    (folder / "users.sha256").write_text("before")
    assert not _knows_users(folder, known)
    (aside,) = folder.glob("data-before-*")
    assert (aside / "meta.properties").read_text() == "node.id=1"
    said = capsys.readouterr().err
    assert str(aside) in said and said.count("\n") == 1
