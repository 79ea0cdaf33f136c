"""Which record a user means, and what runs beside the last one."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from faultline.experiment.attempt import Attempt, write_json
from faultline.records.find import find_record, still_running
from faultline.records.record import Record
from faultline.system.errors import ConfigError
from faultline.system.settings import Settings, load_settings
from tests.unit.pages_store import put
from tests.unit.sample_records import sample


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return replace(load_settings(), results=tmp_path / "results")


def stored(settings: Settings, record: Record) -> Record:
    put(settings.results, record)
    return record


def test_an_attempt_that_runs_is_told_beside_the_last_record(settings: Settings) -> None:
    stored(settings, sample(attempt="20261120T000000Z-000001"))
    assert still_running(settings) == ""
    running = Attempt(settings.attempts / "20261121T061500Z-3fa9c1")
    running.folder.mkdir(parents=True)
    said = {"attempt": running.id, "home": str(settings.home), "environment": {"host": socket.gethostname()}}
    write_json(running.folder / "attempt.json", said)
    assert still_running(settings) == f"{running.id} is still running; `last` is the newest that ended"
    stored(settings, sample(attempt="20261121T061501Z-3fa9c1"))
    assert still_running(settings) == "", "one that ended is newer"
    newest = Attempt(settings.attempts / "20261122T061500Z-3fa9c1")
    newest.folder.mkdir()
    write_json(newest.folder / "attempt.json", {**said, "attempt": newest.id})
    assert still_running(settings).startswith(f"{newest.id} is still running")
    newest.unhealed.write_text("{}")
    assert still_running(settings) == "", "its work is done, though a fault is not undone"


def test_how_a_record_is_named(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there are no records yet"):
        find_record("last", settings)
    old = stored(settings, sample(attempt="20261120T000000Z-000001"))
    new = stored(settings, sample(attempt="20261121T061500Z-3fa9c1", state_mb=8))
    for reference, record in (
        ("last", new),
        (new.attempt, new),
        ("20261120", old),
        (str(settings.records / old.config_id / f"{old.attempt}.json"), old),
    ):
        found, results = find_record(reference, settings)
        assert (found.attempt, results) == (record.attempt, settings.results)
    with pytest.raises(ConfigError, match="202611: 2 attempts begin so, the last is 20261121T061500Z-3fa9c1"):
        find_record("202611", settings)
    with pytest.raises(ConfigError, match="no such attempt; the nearest is 20261121T061500Z-3fa9c1"):
        find_record("20261121T061500Z-3fa9c7", settings)
    for reference in ("", "zzz"):
        with pytest.raises(ConfigError, match=r"^.*: (no such attempt; the nearest|2 attempts begin)"):
            find_record(reference, settings)
    with pytest.raises(ConfigError, match="gone.json: cannot be read"):
        find_record(str(tmp_path / "gone.json"), settings)
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"other.json: \w+: Field required"):
        find_record(str(tmp_path / "other.json"), settings)


def test_a_file_brings_its_own_raw_files_when_they_lie_beside_it(settings: Settings, tmp_path: Path) -> None:
    elsewhere = replace(settings, results=tmp_path / "copy")
    record = stored(elsewhere, sample(attempt="20261121T061500Z-3fa9c1"))
    path = elsewhere.records / record.config_id / f"{record.attempt}.json"
    (elsewhere.attempts / record.attempt).mkdir(parents=True)
    assert find_record(str(path), settings)[1] == elsewhere.results
    lonely = tmp_path / "lonely.json"
    lonely.write_text(record.as_json())
    assert find_record(str(lonely), settings)[1] == settings.results
