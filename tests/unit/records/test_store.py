"""The store survives crashes, refuses early, and never hides a bad file."""

from __future__ import annotations

import errno
import os
import re
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import jsonschema
import pytest
from pydantic import BaseModel

from faultline.experiment.attempt import Attempt, write_json
from faultline.experiment.cell import Cell
from faultline.records.find import find_record, still_running
from faultline.records.judge.evidence import AttemptFile
from faultline.records.judge.judge import failed_record
from faultline.records.judge.validity import RULES
from faultline.records.record import SCHEMA, Metrics, Record, Status, committed_schema
from faultline.records.store import Store
from faultline.system.errors import ConfigError, InfrastructureError
from faultline.system.settings import Settings, load_settings
from tests.unit.pages_store import put, record
from tests.unit.sample_records import sample
from tests.unit.synthetic import Scenario, Synthetic

ATTEMPT = "20261121T061500Z-aaaaaa"


def _record(attempt: str = ATTEMPT, status: Status = "failed", **named: Any) -> Record:
    return record(attempt, status=status, reasons=["x: y"], **named)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def test_an_attempt_is_never_overwritten_but_may_be_written_again(store: Store, tmp_path: Path) -> None:
    """Only a failed record gives way, to what a later try of the judge measured."""
    store.write(_record())
    measured = _record(status="invalid")
    path = store.write(measured)
    assert path == store.write(measured) == tmp_path / "records" / measured.config_id / f"{ATTEMPT}.json"
    with pytest.raises(InfrastructureError, match="never overwritten"):
        store.write(measured.model_copy(update={"reasons": ["another"]}))
    assert (store.read().records, store.read().problems) == ((measured,), ())
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("step", ["fsync", "link"])
def test_a_write_interrupted_before_the_rename_leaves_nothing(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, step, interrupt)
    with pytest.raises(KeyboardInterrupt):
        store.write(_record())
    monkeypatch.undo()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    store.write(_record())
    assert store.read().records == (_record(),)


def test_of_two_writers_the_faster_one_keeps_its_record(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link
    measured, closed = (_record(status=status) for status in ("valid", "failed"))

    def slower(temporary: Path, path: Path) -> None:
        monkeypatch.setattr(os, "link", link)
        path.write_text(measured.as_json())
        link(temporary, path)

    monkeypatch.setattr(os, "link", slower)
    with pytest.raises(InfrastructureError, match="already has another record"):
        store.write(closed)
    assert store.read().records == (measured,)


def test_without_hard_links_records_are_written_all_the_same(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", failing(errno.EOPNOTSUPP))
    store.write(_record())
    assert store.read().records == (_record(),)


def test_corrupt_and_foreign_files_are_named_and_not_fatal(store: Store) -> None:
    """What a killed writer left is not read."""
    path = store.write(_record())
    path.with_name("half.json").write_text(path.read_text()[:300])
    path.with_name("later.json").write_text(path.read_text().replace(f'"schema": {SCHEMA}', f'"schema": {SCHEMA + 1}'))
    path.with_name(".20261121T061600Z-bbbbbb.json.1.tmp").write_text('{"schema"')
    contents = store.read()
    assert (len(contents.records), len(contents.problems)) == (1, 2)
    assert "half.json" in contents.problems[0]
    assert "later.json: schema" in contents.problems[1]


def test_cells_know_their_newest_and_their_valid_record(store: Store, tmp_path: Path) -> None:
    records = [
        _record(status="valid"),
        _record("20261121T061600Z-bbbbbb", "invalid"),
        _record("20261121T061700Z-cccccc", "valid", repetition=1),
        _record("20261121T061800Z-dddddd", "cancelled", repetition=2, matrix=None),
    ]
    for one in reversed(records):
        store.write(one)
    cell = Cell.of(records[0])
    assert store.newest(cell) == records[1]
    assert store.newest_usable(cell) == records[0]
    assert store.newest_usable(Cell.of(records[3])) is None
    assert store.newest(Cell("0" * 12, 0, "b1")) is None
    assert store.query(status="valid") == [records[0], records[2]]
    assert store.query(matrix="m", sweep="s1") == records[:3]
    assert store.query(matrix="other") == []
    assert Store(tmp_path / "nowhere").query() == []


def failing(code: int) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (errno.ENOSPC, InfrastructureError, "disk is full"),
        (errno.EROFS, ConfigError, "FAULTLINE_RESULTS"),
        (errno.EIO, InfrastructureError, "check the disk"),
    ],
)
def test_a_full_disk_and_a_read_only_folder_are_explained(
    store: Store, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[Exception], words: str
) -> None:
    monkeypatch.setattr(os, "fsync", failing(code))
    with pytest.raises(kind, match=words):
        store.write(_record())
    assert store.read().records == ()


def test_a_record_that_breaks_the_schema_is_not_stored(tmp_path: Path) -> None:
    record = _record().model_copy(update={"repetition": "two"})
    with pytest.raises(InfrastructureError, match="repetition"), pytest.warns(UserWarning):
        Store(tmp_path).write(record)
    assert "repetition" in committed_schema()["required"]


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
    file = settings.records / old.config_id / f"{old.attempt}.json"
    for reference, wanted in (("last", new), (new.attempt, new), ("20261120", old), (str(file), old)):
        found, results = find_record(reference, settings)
        assert (found.attempt, results) == (wanted.attempt, settings.results)
    (tmp_path / "other.json").write_text("{}")
    for reference, words in {
        "202611": "202611: 2 attempts begin so, the last is 20261121T061500Z-3fa9c1",
        "20261121T061500Z-3fa9c7": "no such attempt; the nearest is 20261121T061500Z-3fa9c1",
        "": r"^.*: (no such attempt; the nearest|2 attempts begin)",
        "zzz": r"^.*: (no such attempt; the nearest|2 attempts begin)",
        str(tmp_path / "gone.json"): "gone.json: cannot be read",
        str(tmp_path / "other.json"): r"other.json: \w+: Field required",
    }.items():
        with pytest.raises(ConfigError, match=words):
            find_record(reference, settings)


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
    generated = Record.model_json_schema(by_alias=True, mode="serialization")
    jsonschema.Draft202012Validator.check_schema(committed_schema())
    assert committed_schema() == {"$schema": "https://json-schema.org/draft/2020-12/schema", **generated}


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


def _paths(model: type[BaseModel], above: str = "") -> list[str]:
    paths = []
    for name, field in model.model_fields.items():
        inner = [one for one in (field.annotation, *get_args(field.annotation)) if isinstance(one, type)]
        parts = [one for one in inner if issubclass(one, BaseModel)]
        paths += _paths(parts[0], f"{above}{name}.") if parts else [f"{above}{name}"]
    return paths


def test_the_documentation_names_every_metric_and_every_rule() -> None:
    text = "".join((DOCS / name).read_text(encoding="utf-8") for name in DEFINITIONS)
    named = {part for path in re.findall(r"`([^`\n]+)`", text) for part in path.split(".")}
    missing = [path for path in _paths(Metrics) if not set(path.split(".")) <= named]
    assert missing == []
    assert [code for code in RULES if code not in named] == []


def test_a_record_from_before_the_newer_figures_still_reads() -> None:
    whole = failed_record(AttemptFile.model_validate(Synthetic(Scenario())._attempt()), "failed", ["driver: gone"])
    stored = whole.as_dict()
    metrics, environment = stored["metrics"], stored["environment"]
    for part, names in (
        (metrics, ("recoveries", "source_rps", "work", "key_skew", "late_records")),
        (metrics["recovery"], ("dip_depth", "silence_s", "lag_area_record_s")),
        (environment, ("clock_offsets", "processor")),
    ):
        for name in names:
            del part[name]
    assert Record.model_validate(stored) == whole


def test_unknown_metrics_keep_every_key() -> None:
    dumped = Metrics.unknown().model_dump()
    assert set(dumped) == set(Metrics.model_fields)
    assert set(dumped["recovery"].values()) == {None}
