"""Whose an attempt is: only what says so, in a folder of this user's, is closed by anybody."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from faultline.experiment.attempt import Attempt, open_attempts, unhealed_attempts, write_json
from tests.support.decoys import NOBODY, only_root

HOME = Path("/home/me/.faultline")


def made(folder: Path, **changes: Any) -> Attempt:
    attempt = Attempt(folder)
    folder.mkdir(parents=True)
    said = {"attempt": attempt.id, "home": str(HOME), "environment": {"host": socket.gethostname()}, **changes}
    write_json(folder / "attempt.json", {key: value for key, value in said.items() if value is not None})
    return attempt


@pytest.mark.parametrize(
    ("changes", "ours"),
    [
        ({}, True),
        ({"home": None}, False),
        ({"home": "/home/another/.faultline"}, False),
        ({"environment": None}, False),
        ({"environment": {"host": "another"}}, False),
        ({"attempt": "20261121T061500Z-3fa9c2"}, False),
    ],
    ids=["says so", "no home", "another home", "no host", "another host", "a copy of another"],
)
def test_an_attempt_that_does_not_say_so_is_nobodys(tmp_path: Path, changes: dict[str, Any], ours: bool) -> None:
    attempt = made(tmp_path / "20261121T061500Z-3fa9c1", **changes)
    attempt.ledger.touch()
    assert attempt.is_of(HOME) is ours
    assert open_attempts(tmp_path, HOME) == [attempt] * ours


@pytest.mark.parametrize("text", [None, "", '{"attempt": "cut', "[]"])
def test_a_ledger_without_its_attempt_is_nobodys(tmp_path: Path, text: str | None) -> None:
    attempt = made(tmp_path / "20261121T061500Z-3fa9c1")
    attempt.ledger.touch()
    (attempt.folder / "attempt.json").unlink()
    if text is not None:
        (attempt.folder / "attempt.json").write_text(text)
    assert open_attempts(tmp_path, HOME) == []


def test_a_link_is_no_attempt(tmp_path: Path) -> None:
    """Whoever can make one in the folder of results leads to what he has written himself elsewhere."""
    elsewhere = made(tmp_path / "elsewhere" / "20261121T061500Z-3fa9c1")
    (tmp_path / "attempts").mkdir()
    planted = Attempt(tmp_path / "attempts" / elsewhere.id)
    planted.folder.symlink_to(elsewhere.folder)
    assert not planted.is_of(HOME) and open_attempts(tmp_path / "attempts", HOME) == []


@only_root
def test_another_users_folder_is_no_attempt(tmp_path: Path) -> None:
    attempt = made(tmp_path / "20261121T061500Z-3fa9c1")
    os.chown(attempt.folder, NOBODY, NOBODY)
    assert not attempt.is_of(HOME) and open_attempts(tmp_path, HOME) == []


def test_it_is_over_when_it_is_closed_or_waits_to_be_healed(tmp_path: Path) -> None:
    attempt = made(tmp_path / "20261121T061500Z-3fa9c1")
    assert attempt.over is None and unhealed_attempts(tmp_path, HOME) == {}
    write_json(attempt.unhealed, {"why": "node9 is not known"})
    assert attempt.over == attempt.unhealed
    assert unhealed_attempts(tmp_path, HOME) == {attempt.id: "node9 is not known"}
    assert unhealed_attempts(tmp_path, Path("/another")) == {}
    write_json(attempt.closed, {})
    assert attempt.over == attempt.closed and open_attempts(tmp_path, HOME) == []
    assert unhealed_attempts(tmp_path, HOME) == {}
