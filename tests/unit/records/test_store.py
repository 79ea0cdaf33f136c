"""The store survives crashes, refuses early, and never hides a bad file."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from faultline.experiment.cell import Cell
from faultline.records.judge.evidence import AttemptFile
from faultline.records.judge.judge import failed_record
from faultline.records.record import Record, Status, generate_schema
from faultline.records.store import Store
from faultline.system.errors import ConfigError, InfrastructureError
from tests.unit.synthetic import Scenario


def _record(attempt: str, status: Status = "failed", repetition: int = 0, matrix: str | None = "m") -> Record:
    configuration = Scenario().configuration
    file = AttemptFile(
        attempt=attempt,
        config=configuration,
        config_id=configuration.config_id,
        repetition=repetition,
        series="b1",
        build="b1",
        matrix=matrix,
        sweep_id="s1",
        prepared_wall_ns=1_795_241_700_000_000_000,
    )
    return failed_record(file, "failed", ["x: y"]).model_copy(update={"status": status})


def test_records_come_back_as_they_were_written(tmp_path: Path) -> None:
    store = Store(tmp_path)
    record = _record("20261121T061500Z-aaaaaa")
    path = store.write(record)
    assert path == tmp_path / "records" / record.config_id / "20261121T061500Z-aaaaaa.json"
    assert store.read().records == (record,)
    assert store.read().problems == ()
    assert list(path.parent.iterdir()) == [path]


def test_an_attempt_is_never_overwritten_but_may_be_written_again(tmp_path: Path) -> None:
    store = Store(tmp_path)
    record = _record("20261121T061500Z-aaaaaa", "unsound")
    assert store.write(record) == store.write(record)
    with pytest.raises(InfrastructureError, match="never overwritten"):
        store.write(record.model_copy(update={"reasons": ["another"]}))
    assert store.read().records == (record,)


def test_a_failed_record_gives_way_to_what_a_later_try_of_the_judge_measured(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.write(_record("20261121T061500Z-aaaaaa", "failed"))
    measured = _record("20261121T061500Z-aaaaaa", "valid")
    store.write(measured)
    assert store.read().records == (measured,)


@pytest.mark.parametrize("step", ["fsync", "link"])
def test_a_write_interrupted_before_the_rename_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    store = Store(tmp_path)
    record = _record("20261121T061500Z-aaaaaa")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, step, interrupt)
    with pytest.raises(KeyboardInterrupt):
        store.write(record)
    monkeypatch.undo()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert store.read().records == ()
    store.write(record)
    assert store.read().records == (record,)


def test_of_two_writers_the_faster_one_keeps_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, link = Store(tmp_path), os.link
    measured, closed = (_record("20260101T000000Z-aaaaaa", status) for status in ("valid", "failed"))

    def slower(temporary: Path, path: Path) -> None:
        monkeypatch.setattr(os, "link", link)
        path.write_text(measured.as_json())
        link(temporary, path)

    monkeypatch.setattr(os, "link", slower)
    with pytest.raises(InfrastructureError, match="already has another record"):
        store.write(closed)
    assert store.read().records == (measured,)


def test_without_hard_links_records_are_written_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    store, record = Store(tmp_path), _record("20260101T000000Z-aaaaaa")
    store.write(record)
    assert store.read().records == (record,)


def test_what_a_killed_writer_left_is_not_read(tmp_path: Path) -> None:
    store = Store(tmp_path)
    path = store.write(_record("20261121T061500Z-aaaaaa"))
    path.with_name(".20261121T061600Z-bbbbbb.json.1.tmp").write_text('{"schema"')
    contents = store.read()
    assert (len(contents.records), contents.problems) == (1, ())


def test_corrupt_and_foreign_files_are_named_and_not_fatal(tmp_path: Path) -> None:
    store = Store(tmp_path)
    path = store.write(_record("20261121T061500Z-aaaaaa"))
    path.with_name("half.json").write_text(path.read_text()[:300])
    path.with_name("later.json").write_text(path.read_text().replace('"schema": 2', '"schema": 3'))
    contents = store.read()
    assert len(contents.records) == 1
    assert "half.json" in contents.problems[0]
    assert "later.json: schema" in contents.problems[1]


def test_cells_know_their_newest_and_their_valid_record(tmp_path: Path) -> None:
    store = Store(tmp_path)
    records = [
        _record("20261121T061500Z-aaaaaa", "valid"),
        _record("20261121T061600Z-bbbbbb", "unsound"),
        _record("20261121T061700Z-cccccc", "valid", repetition=1),
        _record("20261121T061800Z-dddddd", "cancelled", repetition=2, matrix=None),
    ]
    for record in reversed(records):
        store.write(record)
    cell = Cell.of(records[0])
    assert store.newest(cell) == records[1]
    assert store.sound(cell) == records[0]
    assert store.sound(Cell.of(records[3])) is None
    assert store.newest(Cell("0" * 12, 0, "b1")) is None
    assert store.query(status="valid") == [records[0], records[2]]
    assert store.query(matrix="m", sweep="s1") == records[:3]
    assert store.query(matrix="other") == []
    assert Store(tmp_path / "nowhere").query() == []


def test_a_full_disk_and_a_read_only_folder_are_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    for code, kind, words in [
        (errno.ENOSPC, InfrastructureError, "disk is full"),
        (errno.EROFS, ConfigError, "FAULTLINE_RESULTS"),
        (errno.EIO, InfrastructureError, "check the disk"),
    ]:

        def fail(*_: object, code: int = code) -> None:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(kind, match=words):
            store.write(_record("20261121T061500Z-aaaaaa"))
    assert store.read().records == ()


def test_a_record_that_breaks_the_schema_is_not_stored(tmp_path: Path) -> None:
    record = _record("20261121T061500Z-aaaaaa").model_copy(update={"repetition": "two"})
    with pytest.raises(InfrastructureError, match="repetition"), pytest.warns(UserWarning):
        Store(tmp_path).write(record)
    assert "repetition" in generate_schema()["required"]
