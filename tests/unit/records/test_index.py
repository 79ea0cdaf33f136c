"""Index of records: agreement with the files after changes, damage and concurrent access."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from faultline.records import index as module
from faultline.records.index import Index, StatusCounts
from faultline.records.record import SCHEMA, Record
from tests.unit.pages_store import put, record


def index_at(results: Path) -> Index:
    """Return an index with a state folder outside the results."""
    return Index(results, results.with_name(f"{results.name}-home"))


def file_at(results: Path) -> Path:
    file = index_at(results).file
    assert file is not None
    return file


def refreshed_index(results: Path) -> Index:
    made = index_at(results)
    made.refresh()
    return made


def attempts_of(index: Index | Path) -> list[str]:
    return [one.attempt for one in (index if isinstance(index, Index) else refreshed_index(index)).all()]


def test_sweeps_and_matrices_are_counted_by_status_newest_first(tmp_path: Path) -> None:
    put(
        tmp_path,
        record("a1"),
        record("a2", status="invalid", measured_at="2026-11-21T07:00:00+00:00"),
        record("b1", sweep="s2", status="failed", measured_at="2026-11-22T06:00:00+00:00"),
        record("c1", sweep=None, matrix=None, status="cancelled", measured_at="2026-11-20T06:00:00+00:00"),
    )
    index = refreshed_index(tmp_path)
    assert index.sweeps(10) == [
        StatusCounts("s2", "m", 1, 0, 0, 0, 1, 0, "2026-11-22T06:00:00+00:00", "2026-11-22T06:00:00+00:00"),
        StatusCounts("s1", "m", 2, 1, 0, 1, 0, 0, "2026-11-21T06:15:00.250+00:00", "2026-11-21T07:00:00+00:00"),
        StatusCounts(None, None, 1, 0, 0, 0, 0, 1, "2026-11-20T06:00:00+00:00", "2026-11-20T06:00:00+00:00"),
    ]
    assert [(one.name, one.total) for one in index.matrices()] == [("m", 3)]
    assert (index.count_sweeps(), [one.name for one in index.sweeps(1, 1)]) == (3, ["s1"])
    assert index.sweeps_of("m", 10) == ["s2", "s1"]
    assert [one.attempt for one in index.of_sweep(None)] == ["c1"]
    assert [one.attempt for one in index.of_matrix("m")] == ["a1", "a2", "b1"]


def test_entry_holds_values_of_its_record(tmp_path: Path) -> None:
    one = record("a1", state_mb=8.0, recovery={"recovered": False, "censored_at_s": 33.94}, reasons=["x: y"])
    put(tmp_path, one)
    entry = refreshed_index(tmp_path).of_attempt("a1")
    assert entry is not None
    assert (entry.config_id, entry.repetition, entry.build, entry.group) == (one.config_id, 0, "b1", "b1")
    assert entry.config["state_mb"] == 8.0
    assert entry.metrics["latency_ms.p99"] == 8046.4
    assert entry.metrics["recovery.censored_at_s"] == 33.94
    assert entry.metrics["recovery.recovered"] is False
    assert "latency_ms.method" not in entry.metrics, "text is not a metric"
    assert entry.reasons == ("x: y",)
    assert entry.fault == "executor kill"


def test_refresh_parses_only_new_or_changed_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = []
    parse = Record.model_validate_json
    monkeypatch.setattr(Record, "model_validate_json", lambda text: parsed.append(1) or parse(text))
    path = put(tmp_path, record("a1", status="failed"))
    index = refreshed_index(tmp_path)
    assert [one.failed for one in index.sweeps(1)] == [1]
    put(tmp_path, record("a1"), record("a2"))
    os.utime(path, ns=(1, 1))
    index.refresh()
    assert [(one.valid, one.failed) for one in index.sweeps(1)] == [(2, 0)]
    parsed.clear()
    assert attempts_of(tmp_path) == ["a1", "a2"] and parsed == [], "as in another process"
    put(tmp_path, record("a3"))
    assert attempts_of(tmp_path) == ["a1", "a2", "a3"] and parsed == [1]
    path.unlink()
    index.refresh()
    assert index.of_attempt("a1") is None
    assert attempts_of(index) == ["a2", "a3"]


def test_broken_files_are_listed_and_hide_no_other(tmp_path: Path) -> None:
    path = put(tmp_path, record("good"))
    whole = path.read_text()
    path.with_name("half.json").write_text(whole[:300])
    path.with_name("later.json").write_text(whole.replace(f'"schema": {SCHEMA}', f'"schema": {SCHEMA + 1}'))
    path.with_name("other-name.json").write_text(whole)
    path.with_name("deep.json").write_text("[" * 100_000)
    path.with_name("gone.json").symlink_to(tmp_path / "nowhere")
    path.with_name(".good.json.1.tmp").write_text("{")
    (path.parent / "folder.json").mkdir()
    index = refreshed_index(tmp_path)
    assert attempts_of(index) == ["good"]
    problems = dict(index.problems())
    assert {Path(name).stem for name in problems} == {"half", "later", "other-name", "deep", "folder"}
    folder = path.parent.name
    assert problems[f"{folder}/later.json"].startswith("schema: ")
    assert "attempt: got " in problems[f"{folder}/other-name.json"]
    assert index.problem_of("later") and index.problem_of("good") is None
    path.with_name("half.json").write_text(whole.replace('"good"', '"half"'))
    index.refresh()
    assert "half" in attempts_of(index), "repaired"


def write_text_file(file: Path) -> None:
    file.write_text("not a database" * 1000)


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:5000])


def run_sql(*statements: str) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        with closing(sqlite3.connect(file)) as connection, connection:
            for one in statements:
                connection.execute(one)

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        write_text_file,
        truncate,
        run_sql("PRAGMA user_version = 7", "DELETE FROM contents"),
        run_sql("UPDATE contents SET content = substr(content, 9)"),
    ],
    ids=["text file", "truncated", "other layout", "damaged row"],
)
def test_damaged_index_is_rebuilt(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    put(tmp_path, record("a1"))
    refreshed_index(tmp_path)
    damage(file_at(tmp_path))
    assert attempts_of(tmp_path) == ["a1"]
    assert attempts_of(tmp_path) == ["a1"], "the rebuilt index is kept"


def damage_pages(file: Path, text: bytes) -> int:
    """Overwrite the pages that hold `text`, except the first two, and return their number."""
    content = bytearray(file.read_bytes())
    size = int.from_bytes(content[16:18], "big")
    pages = [at for at in range(2 * size, len(content), size) if text in content[at : at + size]]
    for at in pages:
        content[at : at + size] = b"\xaa" * size
    file.write_bytes(content)
    return len(pages)


def test_damage_found_by_a_query_is_repaired(tmp_path: Path) -> None:
    put(tmp_path, *(record(f"a{n:03}", repetition=n) for n in range(60)))
    index = refreshed_index(tmp_path)
    assert damage_pages(file_at(tmp_path), b"checkpoint_interval_s") > 3
    for one in (index, index_at(tmp_path)):
        one.refresh()
        assert len(one.of_sweep("s1")) == 60
        found = one.of_attempt("a007")
        assert found is not None and found.repetition == 7


def test_file_name_that_is_not_utf8_is_a_problem(tmp_path: Path) -> None:
    path = put(tmp_path, record("good"))
    folder, odd = os.fsencode(path.parent), os.fsencode(tmp_path / "records") + b"/\xfe"
    os.mkdir(odd)
    for name in (folder + b"/\xff.json", folder + b"/\xfe.json", odd + b"/good.json"):
        Path(os.fsdecode(name)).write_bytes(path.read_bytes())
    index, own = refreshed_index(tmp_path), path.parent.name
    for _ in range(2):
        index.refresh()
        problems = dict(index.problems())
        assert set(problems) == {f"{own}/\\udcff.json", f"{own}/\\udcfe.json", "\\udcfe/good.json"}
        assert all("not UTF-8" in why for why in problems.values())
        assert attempts_of(index) == ["good"]
    os.unlink(folder + b"/\xff.json")
    index.refresh()
    assert len(index.problems()) == 2


def test_modification_time_beyond_the_sqlite_range(tmp_path: Path) -> None:
    path = put(tmp_path, record("a1"))
    os.utime(path, (10_413_792_000, 10_413_792_000))
    assert attempts_of(tmp_path) == ["a1"]


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ('"rate": 500.0', "NaN", "config.rate"),
        ('"rate": 500.0', "-Infinity", "config.rate"),
        ('"rate": 500.0', "1e300", "config.rate"),
        ('"rate": 500.0', '{"a": [1, NaN]}', "config.rate.a.1"),
        ('"rate": 500.0', "9" * 400, "config.rate"),
        ('"lost": 0', "9" * 400, "metrics.audit.lost"),
        ('"throughput_rps": 500.6', "1e300", "metrics.throughput_rps"),
        ('"repetition": 0', "9" * 400, "repetition"),
    ],
)
def test_numbers_that_cannot_be_plotted_are_problems(tmp_path: Path, old: str, new: str, key: str) -> None:
    path = put(tmp_path, record("a1"))
    whole = path.read_text()
    assert whole.count(old) == 1
    path.write_text(whole.replace(old, f"{old.partition(':')[0]}: {new}"))
    index = refreshed_index(tmp_path)
    ((name, why),) = index.problems()
    assert name.endswith("/a1.json") and why.startswith(f"{key}: ") and len(why) < 80
    assert index.all() == []


def test_index_is_in_memory_without_a_writable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, record("a1"))
    connect = module._connect

    def refuse(name: str) -> sqlite3.Connection:
        if name != ":memory:":
            raise sqlite3.OperationalError("unable to open database file")
        return connect(name)

    monkeypatch.setattr(module, "_connect", refuse)
    index = refreshed_index(tmp_path)
    index.refresh()
    assert attempts_of(index) == ["a1"]
    assert not file_at(tmp_path).exists()


@pytest.mark.parametrize("lock", ["EXCLUSIVE", "IMMEDIATE"])
def test_writer_lock_is_awaited_and_is_not_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lock: str) -> None:
    put(tmp_path, record("a1"))
    refreshed_index(tmp_path)
    file = file_at(tmp_path)
    inode = file.stat().st_ino
    put(tmp_path, record("a2"))
    with closing(sqlite3.connect(file, isolation_level=None, check_same_thread=False)) as other:
        other.execute(f"BEGIN {lock}")
        release = threading.Timer(0.3, lambda: other.execute("COMMIT"))
        release.start()
        assert len(refreshed_index(tmp_path).all()) == 2, "after the lock was released"
        release.join()
        put(tmp_path, record("a3"))
        other.execute(f"BEGIN {lock}")
        monkeypatch.setattr(module, "TIMEOUT_S", 0.1)
        assert len(refreshed_index(tmp_path).all()) == 3, "in memory"
        other.execute("COMMIT")
        assert other.execute("SELECT COUNT(*) FROM entries").fetchone() == (2,)
    assert file.stat().st_ino == inode
    assert len(refreshed_index(tmp_path).all()) == 3 and file.stat().st_ino == inode


def test_index_file_is_in_the_state_folder(tmp_path: Path) -> None:
    results = [tmp_path / "one", tmp_path / "two"]
    put(results[0], record("a1"))
    put(results[1], record("b1"))
    indices = [Index(folder, tmp_path / "home") for folder in results]
    assert [one.attempt for index in indices for one in index.all()] == ["a1", "b1"]
    assert [path.name for folder in results for path in folder.iterdir()] == ["records", "records"]
    assert len(list((tmp_path / "home" / "index").iterdir())) == 2


def test_index_without_results_is_empty(tmp_path: Path) -> None:
    index = refreshed_index(tmp_path / "nowhere")
    assert (index.all(), index.sweeps(10), index.problems()) == ([], [], [])
    assert not (tmp_path / "nowhere").exists(), "reading creates nothing"
