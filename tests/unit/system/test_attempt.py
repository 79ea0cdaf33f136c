"""Ids of attempts, and files of theirs that are whole or absent."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from faultline.experiment import attempt as subject
from faultline.experiment.attempt import new_attempt_id, write_json
from faultline.system.errors import InfrastructureError

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def at(monkeypatch: pytest.MonkeyPatch, moment: datetime) -> None:
    class Clock(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            return moment

    monkeypatch.setattr(subject, "datetime", Clock)


def test_an_id_is_the_time_of_its_making(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at(monkeypatch, NOON)
    assert re.fullmatch(r"20261121T120000Z-[0-9a-f]{6}", new_attempt_id(tmp_path / "nowhere"))
    (tmp_path / "20261121T115959Z-3fa9c1").mkdir()
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


@pytest.mark.parametrize("odd", ["20269921T120000Z-3fa9c1", "99991231T235959Z-3fa9c1"])
def test_a_folder_of_a_time_that_is_none_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, odd: str
) -> None:
    at(monkeypatch, NOON)
    (tmp_path / odd).mkdir()
    assert new_attempt_id(tmp_path).startswith("20261121T120000Z-")


def test_a_file_that_cannot_be_written_leaves_the_old_one_and_nothing_beside(tmp_path: Path) -> None:
    path = tmp_path / "end.json"
    write_json(path, {"drained": True})
    (tmp_path / "end.json.tmp").symlink_to("/dev/full")
    with pytest.raises(InfrastructureError, match=r"end.json: cannot be written: No space left .*; free disk space"):
        write_json(path, {"drained": False})
    assert "true" in path.read_text() and [one.name for one in tmp_path.iterdir()] == ["end.json"]
