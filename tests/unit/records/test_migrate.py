"""Results of older formats: refused by name until `scripts/migrate.py` rewrites them without loss."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.experiment.attempt import write_json
from faultline.records.bundle import Member, read_bundle, sha256, write_bundle
from faultline.records.find import read_record, read_saved
from faultline.records.index import Index
from faultline.records.judge.judge import judge
from faultline.records.record import SCHEMA, Metrics
from faultline.records.store import Store
from faultline.system.errors import ConfigError
from scripts.migrate import main, migrated_record
from tests.unit.sample_records import sample, schema_2
from tests.unit.synthetic import Scenario, Synthetic

COMMAND = "schema: got 1; expected 3; fix: run scripts/migrate.py"
# Metrics added to records during schema 1.
NEWER = [
    name
    for name, key in zip(schema_2(sample().as_dict())["metrics"], Metrics.model_fields, strict=True)
    if not Metrics.model_fields[key].is_required()
]
Files = dict[str, bytes]


def old_record(
    name: str, *, without: tuple[str, ...] = (), recovery: Mapping[str, Any] | None = None, **changed: Any
) -> Any:
    """Return a record of schema 1 as JSON values; by default a control."""
    values = sample(attempt=name, fault=changed.pop("fault", "none")).as_dict()
    values["metrics"]["recovery"] = {**dict.fromkeys(values["metrics"]["recovery"]), **(recovery or {})}
    values = schema_2(values)
    values["metrics"] = {key: value for key, value in values["metrics"].items() if key not in without}
    return {**values, "schema": 1, **changed}


def path_of(values: Mapping[str, Any]) -> str:
    return f"records/{values['config_id']}/{values['attempt']}.json"


def as_json(values: Any) -> bytes:
    return json.dumps(values).encode()


def as_folder(path: Path, files: Files) -> Path:
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


def as_bundle(path: Path, files: Files) -> Path:
    write_bundle(path.with_suffix(".tar.xz"), [Member(name, content) for name, content in files.items()])
    return path.with_suffix(".tar.xz")


def contents_of(path: Path) -> Files:
    """Return the files of a results folder or a bundle by name."""
    if path.is_dir():
        return {str(one.relative_to(path)): one.read_bytes() for one in sorted(path.rglob("*")) if one.is_file()}
    return dict(read_bundle(path).files)


@pytest.fixture
def attempt(tmp_path: Path) -> Files:
    """Attempt of a plan before schema 3, and its record."""
    folder = Synthetic(Scenario()).write(tmp_path / "measured")
    record = judge(folder)
    write_json(folder / "plan.json", {"schema": 1, "engine": "spark"})
    files = {f"attempts/{folder.name}/{name}": content for name, content in contents_of(folder).items()}
    return {**files, path_of(record.as_dict()): record.as_json().encode()}


@pytest.mark.parametrize("create", [as_folder, as_bundle], ids=["folder", "bundle"])
def test_migration_is_lossless_and_idempotent(
    create: Callable[[Path, Files], Path], attempt: Files, tmp_path: Path
) -> None:
    control = old_record("20261121T061600Z-bbbbbb", without=("warmup", "gc"))
    files = {**attempt, path_of(control): as_json(control), "sweeps/s1.json": b"{}"}
    path = create(tmp_path / "x", files)
    assert main([str(path)]) == 0
    after = contents_of(path)
    again, here = tmp_path / "again", path if path.is_dir() else tmp_path / "unpacked"
    as_folder(here, after)
    assert Store(here).read().problems == () and len(Store(here).read().records) == 2
    (name,) = {key.split("/")[1] for key in attempt if key.startswith("attempts/")}
    raw = {key for key in attempt if key.startswith("attempts/")}
    as_folder(again, {key: after[key] for key in raw})
    (kept,) = (json.loads(content) for key, content in attempt.items() if key.startswith("records/"))
    assert judge(again / "attempts" / name).as_dict()["metrics"] == kept["metrics"]
    # Only the plan and the record are replaced; their old versions stay in superseded/.
    changed = {key for key in files if after[key] != files[key]}
    plan = f"attempts/{name}/plan.json"
    assert changed == {plan, path_of(control)}
    new = after.keys() - files.keys()
    assert {after[key] for key in new} == {files[key] for key in changed}
    assert all(key.startswith("superseded/") for key in new)
    if not path.is_dir():
        listed = read_bundle(path).listing.files
        assert {listed[key].original for key in changed} == {sha256(files[key]) for key in changed}
        assert all(listed[key].how for key in changed)
    assert main([str(path)]) == 0 and contents_of(path) == after


@given(st.sets(st.sampled_from(NEWER)), st.sampled_from(["valid", "failed", "cancelled"]))
def test_migrated_record_keeps_every_old_value(without: set[str], status: str) -> None:
    values = old_record("20261121T061600Z-bbbbbb", without=tuple(without), status=status)
    made = migrated_record(values)
    assert made is not None and migrated_record(made.as_dict()) is None
    found = made.as_dict()
    assert found["schema"] == SCHEMA and found["metrics"].keys() == Metrics.model_fields.keys()
    before = schema_2(found)
    assert {**before, "schema": 1, "metrics": {key: before["metrics"][key] for key in values["metrics"]}} == values
    assert all(before["metrics"][name] in (None, []) for name in without)


REFUSED = {
    "recovery": {"recovery": {"recovered": True, "macro_s": 2.0}},
    "fault": {"fault": "executor"},
    "invalid": {"status": "invalid"},
    "unsound": {"status": "unsound"},
    "extra key": {"later": 1},
}


@pytest.mark.parametrize("given", REFUSED.values(), ids=REFUSED)
def test_records_that_schema_2_reads_differently_are_refused(
    given: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values, other = old_record("20261121T061600Z-bbbbbb", **given), old_record("20261121T061700Z-cccccc")
    files = {path_of(one): as_json(one) for one in (values, other)}
    folder, bundle = as_folder(tmp_path / "x", files), as_bundle(tmp_path / "x", files)
    saved = tmp_path / "x.json"
    saved.write_bytes(as_json([values, other]))
    assert main([str(folder), str(bundle), str(saved)]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3 and all(values["attempt"] in line and other["attempt"] not in line for line in lines)
    assert contents_of(folder)[path_of(values)] == files[path_of(values)]
    assert migrated_record(json.loads(contents_of(folder)[path_of(other)])) is None, (
        "other records of the folder are rewritten"
    )
    assert contents_of(bundle) == files and json.loads(saved.read_bytes()) == [values, other]


def test_readers_name_record_and_migration_command(tmp_path: Path) -> None:
    values = old_record("20261121T061600Z-bbbbbb")
    folder, bundle = (make(tmp_path / "x", {path_of(values): as_json(values)}) for make in (as_folder, as_bundle))
    file = folder / path_of(values)
    (problem,) = Store(folder).read().problems
    assert problem.startswith(f"{file}: {COMMAND}")
    index = Index(folder)
    index.refresh()
    assert index.problem_of(values["attempt"]) is not None and COMMAND in str(index.problems()[0])
    with pytest.raises(ConfigError, match=f"{file}: {COMMAND}"):
        read_record(file)
    with pytest.raises(ConfigError, match=f"{path_of(values)}: {COMMAND}"):
        read_saved([bundle])


@pytest.mark.parametrize("packed", [False, True])
def test_saved_records_are_rewritten_with_a_backup(packed: bool, tmp_path: Path) -> None:
    first, second = old_record("20261121T061600Z-bbbbbb"), sample(attempt="20261121T061700Z-cccccc")
    path = tmp_path / ("x.json.gz" if packed else "x.json")
    content = as_json([first, second.as_dict()])
    path.write_bytes(content := gzip.compress(content) if packed else content)
    assert main([str(path)]) == 0
    made = migrated_record(first)
    assert read_saved([path]) == [made, second]
    assert path.with_name(f"{path.name}.schema-1").read_bytes() == content
    after = path.read_bytes()
    assert main([str(path)]) == 0 and path.read_bytes() == after


@pytest.mark.parametrize("content", [b"", b"[1]", b"\x1f", None], ids=["empty", "numbers", "truncated", "missing"])
def test_paths_without_results_are_named(
    content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [tmp_path / name for name in ("x.json", "x.json.gz", "x.tar.xz")]
    for path in paths if content is not None else ():
        path.write_bytes(content or b"")
    assert main([*map(str, paths), str(tmp_path)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [str(path) in line for path, line in zip([*paths, tmp_path], lines, strict=True)] == [True] * 4


def test_backup_is_never_overwritten(tmp_path: Path) -> None:
    values = old_record("20261121T061600Z-bbbbbb")
    kept = f"superseded/{values['config_id']}/{values['attempt']}.schema-1.json"
    files = {path_of(values): as_json(values), kept: b"{}"}
    for path in (as_folder(tmp_path / "x", files), as_bundle(tmp_path / "x", files)):
        assert main([str(path)]) == 1 and contents_of(path) == files
    # An interrupted migration is completed.
    (tmp_path / "x" / kept).write_bytes(as_json(values))
    assert main([str(tmp_path / "x")]) == 0 and Store(tmp_path / "x").read().problems == ()
