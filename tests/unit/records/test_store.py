"""The store survives crashes, refuses early, and never hides a bad file."""

from __future__ import annotations

import errno
import os
import re
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from faultline.experiment.attempt import Attempt, write_json
from faultline.experiment.cell import Cell
from faultline.records.find import find_record, still_running
from faultline.records.judge.evidence import AttemptFile
from faultline.records.judge.judge import failed_record
from faultline.records.judge.validity import RULES
from faultline.records.record import Metrics, Record, Status, committed_schema, generate_schema
from faultline.records.store import Store
from faultline.system.errors import ConfigError, InfrastructureError
from faultline.system.settings import Settings, load_settings
from tests.unit.pages_store import put
from tests.unit.sample_records import sample
from tests.unit.synthetic import Scenario, Synthetic


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


DOCS = Path(__file__).parents[3] / "docs"
DEFINITIONS = ("reference/metrics.md", "explanation/recovery.md", "explanation/validity.md")
TOP = """schema matrix sweep_id config config_id repetition series build logical_date measured_at attempt status
reasons environment timeline metrics artifacts""".split()


def test_the_committed_schema_is_the_generated_one() -> None:
    assert committed_schema() == generate_schema()


def test_every_key_is_required_and_no_other_is_allowed() -> None:
    def walk(node: Any) -> None:
        if isinstance(node, dict):
            if node.get("type") == "object" and "properties" in node:
                assert sorted(node["required"]) == sorted(node["properties"])
                assert node["additionalProperties"] is False
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)

    walk(committed_schema())
    assert list(committed_schema()["properties"]) == TOP
    assert len(Record.model_fields) == len(TOP)


def _keys(model: type[BaseModel]) -> list[str]:
    keys = []
    for name, field in model.model_fields.items():
        keys.append(name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            keys += _keys(field.annotation)
    return keys


def test_the_documentation_names_every_metric_and_every_rule() -> None:
    text = "".join((DOCS / name).read_text(encoding="utf-8") for name in DEFINITIONS)
    named = set(re.findall(r"`([^`\n]+)`", text))
    missing = [key for key in [*_keys(Metrics), *RULES] if key not in named]
    assert missing == []


def test_a_record_from_before_the_newer_figures_still_reads() -> None:
    whole = failed_record(AttemptFile.model_validate(Synthetic(Scenario())._attempt()), "failed", ["driver: gone"])
    stored = whole.as_dict()
    del stored["metrics"]["recoveries"], stored["environment"]["clock_offsets"], stored["environment"]["processor"]
    for name in ("dip_depth", "silence_s", "lag_area_record_s"):
        del stored["metrics"]["recovery"][name]
    assert Record.model_validate(stored) == whole


def test_unknown_metrics_keep_every_key() -> None:
    dumped = Metrics.unknown().model_dump()
    assert set(dumped) == set(Metrics.model_fields)
    assert set(dumped["recovery"].values()) == {None}
