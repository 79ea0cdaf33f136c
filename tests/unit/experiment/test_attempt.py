"""Ids of attempts, and files of theirs that are whole or absent."""

from __future__ import annotations

import os
import re
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from faultline.experiment import attempt as subject
from faultline.experiment.attempt import Attempt, new_attempt_id, open_attempts, unhealed_attempts, write_json
from faultline.system.errors import InfrastructureError
from tests.support.decoys import OTHER_UID, only_root

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def at(monkeypatch: pytest.MonkeyPatch, moment: datetime) -> None:
    class Clock(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            return moment

    monkeypatch.setattr(subject, "datetime", Clock)


def test_an_id_is_the_time_of_its_making(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever folder of an earlier time, or of one that is none, is there."""
    at(monkeypatch, NOON)
    assert re.fullmatch(r"20261121T120000Z-[0-9a-f]{6}", new_attempt_id(tmp_path / "nowhere"))
    for time in ("20261121T115959Z", "20269921T120000Z", "99991231T235959Z"):
        (tmp_path / f"{time}-3fa9c1").mkdir()
    (tmp_path / "summary-99991121T115959Z").mkdir()
    assert new_attempt_id(tmp_path).startswith("20261121T120000Z-")


def test_ids_go_on_in_order_when_the_clock_is_set_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for back_h in (0, 3, 3, 2, -1):
        at(monkeypatch, NOON - timedelta(hours=back_h))
        made.append(new_attempt_id(tmp_path))
        (tmp_path / made[-1]).mkdir()
    assert made == sorted(made)
    times = ["120000", "120001", "120002", "120003", "130000"]
    assert [one[9:15] for one in made] == times, "and by the clock once that has caught up"


def test_a_file_that_cannot_be_written_leaves_the_old_one_and_nothing_beside(tmp_path: Path) -> None:
    path = tmp_path / "end.json"
    write_json(path, {"drained": True})
    (tmp_path / "end.json.tmp").symlink_to("/dev/full")
    with pytest.raises(InfrastructureError, match=r"end.json: write failed: No space left"):
        write_json(path, {"drained": False})
    assert "true" in path.read_text() and [one.name for one in tmp_path.iterdir()] == ["end.json"]


# ---- Whose an attempt is: only what says so, in a folder of this user's, is closed by anybody ----


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


def test_a_link_or_a_ledger_without_its_attempt_is_no_attempt(tmp_path: Path) -> None:
    """Whoever can make one in the folder of results leads to what he has written himself elsewhere."""
    alone = made(tmp_path / "alone" / "20261121T061500Z-3fa9c1")
    alone.ledger.touch()
    for text in ("", '{"attempt": "cut', "[]"):
        (alone.folder / "attempt.json").write_text(text)
        assert open_attempts(tmp_path / "alone", HOME) == []
    (alone.folder / "attempt.json").unlink()
    assert open_attempts(tmp_path / "alone", HOME) == []
    elsewhere = made(tmp_path / "elsewhere" / "20261121T061500Z-3fa9c1")
    (tmp_path / "attempts").mkdir()
    planted = Attempt(tmp_path / "attempts" / elsewhere.id)
    planted.folder.symlink_to(elsewhere.folder)
    assert not planted.is_of(HOME) and open_attempts(tmp_path / "attempts", HOME) == []


@only_root
def test_another_users_folder_is_no_attempt(tmp_path: Path) -> None:
    attempt = made(tmp_path / "20261121T061500Z-3fa9c1")
    os.chown(attempt.folder, OTHER_UID, OTHER_UID)
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
