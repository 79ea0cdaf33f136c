"""Attempt ids, atomic files and ownership of attempts."""

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


def test_id_contains_creation_time_despite_other_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at(monkeypatch, NOON)
    assert re.fullmatch(r"20261121T120000Z-[0-9a-f]{6}", new_attempt_id(tmp_path / "nowhere"))
    for time in ("20261121T115959Z", "20269921T120000Z", "99991231T235959Z"):
        (tmp_path / f"{time}-3fa9c1").mkdir()
    (tmp_path / "summary-99991121T115959Z").mkdir()
    assert new_attempt_id(tmp_path).startswith("20261121T120000Z-")


def test_ids_stay_ordered_when_clock_is_set_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    created = []
    for back_h in (0, 3, 3, 2, -1):
        at(monkeypatch, NOON - timedelta(hours=back_h))
        created.append(new_attempt_id(tmp_path))
        (tmp_path / created[-1]).mkdir()
    assert created == sorted(created)
    times = ["120000", "120001", "120002", "120003", "130000"]
    assert [one[9:15] for one in created] == times, "the clock counts again after it has caught up"


def test_failed_write_keeps_old_file_and_leaves_no_other(tmp_path: Path) -> None:
    path = tmp_path / "end.json"
    write_json(path, {"drained": True})
    (tmp_path / "end.json.tmp").symlink_to("/dev/full")
    with pytest.raises(InfrastructureError, match=r"end\.json: "):
        write_json(path, {"drained": False})
    assert "true" in path.read_text() and [one.name for one in tmp_path.iterdir()] == ["end.json"]


# ---- Ownership: only an attempt that names this installation, in a folder of this user, is closed ----


HOME = Path("/home/me/.faultline")


def create_attempt(folder: Path, **changes: Any) -> Attempt:
    attempt = Attempt(folder)
    folder.mkdir(parents=True)
    content = {"attempt": attempt.id, "home": str(HOME), "environment": {"host": socket.gethostname()}, **changes}
    write_json(folder / "attempt.json", {key: value for key, value in content.items() if value is not None})
    return attempt


@pytest.mark.parametrize(
    ("changes", "is_own"),
    [
        ({}, True),
        ({"home": None}, False),
        ({"home": "/home/another/.faultline"}, False),
        ({"environment": None}, False),
        ({"environment": {"host": "another"}}, False),
        ({"attempt": "20261121T061500Z-3fa9c2"}, False),
    ],
    ids=["own", "no home", "another home", "no host", "another host", "copy of another attempt"],
)
def test_attempt_without_this_installation_is_not_own(tmp_path: Path, changes: dict[str, Any], is_own: bool) -> None:
    attempt = create_attempt(tmp_path / "20261121T061500Z-3fa9c1", **changes)
    attempt.ledger.touch()
    assert attempt.is_of(HOME) is is_own
    assert open_attempts(tmp_path, HOME) == [attempt] * is_own


def test_link_or_ledger_without_attempt_file_is_ignored(tmp_path: Path) -> None:
    """A user with write access to the results folder could link to prepared files elsewhere."""
    alone = create_attempt(tmp_path / "alone" / "20261121T061500Z-3fa9c1")
    alone.ledger.touch()
    for text in ("", '{"attempt": "cut', "[]"):
        (alone.folder / "attempt.json").write_text(text)
        assert open_attempts(tmp_path / "alone", HOME) == []
    (alone.folder / "attempt.json").unlink()
    assert open_attempts(tmp_path / "alone", HOME) == []
    elsewhere = create_attempt(tmp_path / "elsewhere" / "20261121T061500Z-3fa9c1")
    (tmp_path / "attempts").mkdir()
    planted = Attempt(tmp_path / "attempts" / elsewhere.id)
    planted.folder.symlink_to(elsewhere.folder)
    assert not planted.is_of(HOME) and open_attempts(tmp_path / "attempts", HOME) == []


@only_root
def test_folder_of_another_user_is_ignored(tmp_path: Path) -> None:
    attempt = create_attempt(tmp_path / "20261121T061500Z-3fa9c1")
    os.chown(attempt.folder, OTHER_UID, OTHER_UID)
    assert not attempt.is_of(HOME) and open_attempts(tmp_path, HOME) == []


def test_attempt_is_over_when_closed_or_undo_failed(tmp_path: Path) -> None:
    attempt = create_attempt(tmp_path / "20261121T061500Z-3fa9c1")
    assert attempt.over is None and unhealed_attempts(tmp_path, HOME) == {}
    write_json(attempt.unhealed, {"why": "node9 is not known"})
    assert attempt.over == attempt.unhealed
    assert unhealed_attempts(tmp_path, HOME) == {attempt.id: "node9 is not known"}
    assert unhealed_attempts(tmp_path, Path("/another")) == {}
    write_json(attempt.closed, {})
    assert attempt.over == attempt.closed and open_attempts(tmp_path, HOME) == []
    assert unhealed_attempts(tmp_path, HOME) == {}
