"""Record store: atomic writes, refused overwrites, reported bad files, record references, and the schema."""

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


def test_record_is_never_overwritten_except_a_failed_one(store: Store, tmp_path: Path) -> None:
    """A later judgement may replace a failed record only."""
    store.write(_record())
    measured = _record(status="invalid")
    path = store.write(measured)
    assert path == store.write(measured) == tmp_path / "records" / measured.config_id / f"{ATTEMPT}.json"
    with pytest.raises(InfrastructureError, match="already has another record"):
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


def test_first_of_two_writers_keeps_its_record(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link
    measured, closed = (_record(status=status) for status in ("valid", "failed"))

    def link_late(temporary: Path, path: Path) -> None:
        monkeypatch.setattr(os, "link", link)
        path.write_text(measured.as_json())
        link(temporary, path)

    monkeypatch.setattr(os, "link", link_late)
    with pytest.raises(InfrastructureError, match="already has another record"):
        store.write(closed)
    assert store.read().records == (measured,)


def test_records_are_written_without_hard_links(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", failing(errno.EOPNOTSUPP))
    store.write(_record())
    assert store.read().records == (_record(),)


def test_corrupt_and_foreign_files_are_named_and_not_fatal(store: Store) -> None:
    """Temporary files of a killed writer are not read."""
    path = store.write(_record())
    path.with_name("half.json").write_text(path.read_text()[:300])
    path.with_name("later.json").write_text(path.read_text().replace(f'"schema": {SCHEMA}', f'"schema": {SCHEMA + 1}'))
    path.with_name(".20261121T061600Z-bbbbbb.json.1.tmp").write_text('{"schema"')
    contents = store.read()
    assert (len(contents.records), len(contents.problems)) == (1, 2)
    assert "half.json" in contents.problems[0]
    assert "later.json: schema" in contents.problems[1]


def test_newest_and_newest_usable_record_of_a_cell(store: Store, tmp_path: Path) -> None:
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
    ("code", "kind", "message"),
    [
        (errno.ENOSPC, InfrastructureError, "disk is full"),
        (errno.EROFS, ConfigError, "FAULTLINE_RESULTS"),
        (errno.EIO, InfrastructureError, "check the disk"),
    ],
)
def test_full_disk_and_read_only_folder_are_explained(
    store: Store, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[Exception], message: str
) -> None:
    monkeypatch.setattr(os, "fsync", failing(code))
    with pytest.raises(kind, match=message):
        store.write(_record())
    assert store.read().records == ()


def test_record_that_violates_the_schema_is_not_stored(tmp_path: Path) -> None:
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


def test_running_attempt_is_reported_with_the_last_record(settings: Settings) -> None:
    stored(settings, sample(attempt="20261120T000000Z-000001"))
    assert still_running(settings) == ""
    running = Attempt(settings.attempts / "20261121T061500Z-3fa9c1")
    running.folder.mkdir(parents=True)
    attempt_file = {"attempt": running.id, "home": str(settings.home), "environment": {"host": socket.gethostname()}}
    write_json(running.folder / "attempt.json", attempt_file)
    assert still_running(settings) == f"{running.id} is still running; `last` is the newest that ended"
    stored(settings, sample(attempt="20261121T061501Z-3fa9c1"))
    assert still_running(settings) == "", "a newer attempt ended"
    newest = Attempt(settings.attempts / "20261122T061500Z-3fa9c1")
    newest.folder.mkdir()
    write_json(newest.folder / "attempt.json", {**attempt_file, "attempt": newest.id})
    assert still_running(settings).startswith(f"{newest.id} is still running")
    newest.unhealed.write_text("{}")
    assert still_running(settings) == "", "it ended, although a fault is not undone"


def test_record_references(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="^last: "):
        find_record("last", settings)
    old = stored(settings, sample(attempt="20261120T000000Z-000001"))
    new = stored(settings, sample(attempt="20261121T061500Z-3fa9c1", state_mb=8))
    file = settings.records / old.config_id / f"{old.attempt}.json"
    for reference, expected in (("last", new), (new.attempt, new), ("20261120", old), (str(file), old)):
        found, results = find_record(reference, settings)
        assert (found.attempt, results) == (expected.attempt, settings.results)
    (tmp_path / "other.json").write_text("{}")
    for reference, message in {
        "202611": "^202611: .* 2 attempts, .*20261121T061500Z-3fa9c1",
        "20261121T061500Z-3fa9c7": "^20261121T061500Z-3fa9c7: .* 20261121T061500Z-3fa9c1",
        "": "^: .*20261121T061500Z-3fa9c1",
        "zzz": "^zzz: .*20261121T061500Z-3fa9c1",
        str(tmp_path / "gone.json"): "gone.json: cannot be read",
        str(tmp_path / "other.json"): r"other.json: \w+: Field required",
    }.items():
        with pytest.raises(ConfigError, match=message):
            find_record(reference, settings)


def test_record_file_uses_raw_files_next_to_it(settings: Settings, tmp_path: Path) -> None:
    elsewhere = replace(settings, results=tmp_path / "copy")
    record = stored(elsewhere, sample(attempt="20261121T061500Z-3fa9c1"))
    path = elsewhere.records / record.config_id / f"{record.attempt}.json"
    (elsewhere.attempts / record.attempt).mkdir(parents=True)
    assert find_record(str(path), settings)[1] == elsewhere.results
    single_file = tmp_path / "single.json"
    single_file.write_text(record.as_json())
    assert find_record(str(single_file), settings)[1] == settings.results


DOCS = Path(__file__).parents[3] / "docs"
DEFINITIONS = ("reference/metrics.md", "explanation/recovery.md", "explanation/validity.md")
TOP = """schema matrix sweep_id config config_id repetition series build logical_date measured_at attempt status
reasons environment timeline metrics artifacts""".split()


def test_committed_schema_equals_the_generated_one() -> None:
    generated = Record.model_json_schema(by_alias=True, mode="serialization")
    jsonschema.Draft202012Validator.check_schema(committed_schema())
    assert committed_schema() == {"$schema": "https://json-schema.org/draft/2020-12/schema", **generated}


def test_schema_requires_every_key_and_allows_no_other() -> None:
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


def test_documentation_names_every_metric_and_rule() -> None:
    text = "".join((DOCS / name).read_text(encoding="utf-8") for name in DEFINITIONS)
    named = {part for path in re.findall(r"`([^`\n]+)`", text) for part in path.split(".")}
    missing = [path for path in _paths(Metrics) if not set(path.split(".")) <= named]
    assert missing == []
    assert [rule.code for rule in RULES if rule.code not in named] == []


def test_record_without_newer_figures_is_read() -> None:
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
