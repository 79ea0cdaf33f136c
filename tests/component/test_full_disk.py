"""Full disk at any step of an experiment: records stay readable, and work resumes once there is space."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from faultline.engines.tables import COUNTS, RECORDS, TUPLES, write_tables
from faultline.experiment.attempt import Attempt, write_json
from faultline.experiment.run import run_of
from faultline.lifecycle.recorder import claim_turn
from faultline.lifecycle.teardown import close_attempt
from faultline.records.index import Index
from faultline.records.judge.rejudge import judge_attempt
from faultline.records.record import Record
from faultline.records.store import Store
from faultline.system.errors import ConfigError, InfrastructureError
from faultline.system.journal import Journal, read_journal, write_lines
from faultline.system.process_ledger import LedgerEntry, append_entry, read_ledger
from faultline.system.settings import ROOT, Settings, check_folders
from tests.support.attempts import unpacked
from tests.support.small_disk import SmallDisk, small_disk
from tests.unit.sample_records import sample

GOLDEN = ROOT / "tests" / "contract" / "golden" / "gb-executor.tar.xz"
EARLIER = "20261121T061500Z-000001"
FULL = "(write failed|the disk is full)"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path, 16) as made:
        yield made


@pytest.fixture
def settings(disk: SmallDisk) -> Settings:
    """Installation with state and results on the small disk, and an earlier record."""
    made = Settings(ROOT, disk.folder / "home", disk.folder / "results")
    made.home.mkdir()
    made.attempts.mkdir(parents=True)
    Store(made.results).write(sample(attempt=EARLIER))
    return made


def recorded(settings: Settings) -> list[str]:
    """Return the attempts with a record; all files of the store are readable."""
    found = Store(settings.results).read()
    assert found.problems == ()
    return [record.attempt for record in found.records]


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} - {"ballast"}


def test_nothing_starts_on_a_full_disk(settings: Settings, disk: SmallDisk) -> None:
    disk.fill()
    with pytest.raises(ConfigError, match="^FAULTLINE_HOME: .* MB free"):
        check_folders(settings)


def later() -> Record:
    return sample(attempt="20261121T061600Z-000002")


def write_attempt(settings: Settings) -> None:
    write_json(settings.attempts / "attempt.json", {"config": "x" * 5000})


def write_services(settings: Settings) -> None:
    write_lines(settings.attempts / "services.jsonl", [{"wall_ns": number} for number in range(500)])


def write_turn(settings: Settings) -> None:
    claim_turn(settings.turn, Attempt(settings.attempts / "a1"), None)


def write_harvest(settings: Settings) -> None:
    made = {"records": RECORDS.empty_table(), "tuples": TUPLES.empty_table()}
    counts = pa.Table.from_pylist([{"key": str(number)} for number in range(9000)], COUNTS)
    write_tables(settings.attempts / "harvest", {**made, "counts": counts})


def write_record(settings: Settings) -> None:
    Store(settings.results).write(later())


def replace_record(settings: Settings) -> None:
    store = Store(settings.results)
    (earlier,) = store.query()
    store.replace(earlier.model_copy(update={"status": "invalid", "reasons": ["x"]}), settings.results / "kept.json")


@pytest.mark.parametrize(
    "step", [write_attempt, write_services, write_turn, write_harvest, write_record, replace_record]
)
def test_writes_without_space_fail_completely(
    settings: Settings, disk: SmallDisk, step: Callable[[Settings], None]
) -> None:
    before = files(disk.folder)
    disk.fill()
    with pytest.raises(InfrastructureError, match=FULL) as raised:
        step(settings)
    assert len(str(raised.value).splitlines()) == 1
    assert recorded(settings) == [EARLIER]
    # Complete tables from before may remain.
    assert {name for name in files(disk.folder) - before if not name.endswith(".parquet")} == set()
    assert not (settings.attempts / "harvest" / "counts.parquet").exists(), "what says that it is harvested"
    disk.free()
    step(settings)
    assert EARLIER in recorded(settings) and files(disk.folder) > before


def test_a_failed_rewrite_keeps_the_file(settings: Settings, disk: SmallDisk) -> None:
    path = settings.attempts / "end.json"
    write_json(path, {"drained": True})
    disk.fill()
    with pytest.raises(InfrastructureError, match=FULL):
        write_json(path, {"drained": False, "problems": ["x" * 3000]})
    assert json.loads(path.read_text()) == {"drained": True}


def test_a_journal_continues_after_its_last_complete_line(settings: Settings, disk: SmallDisk) -> None:
    with Journal(settings.attempts / "conductor.jsonl") as journal:
        journal.write("first", sync=True)
        disk.fill(but=10_000)
        with pytest.raises(InfrastructureError, match=FULL):
            journal.write("lost", text="x" * 20_000, sync=True)
        assert len(read_journal(journal.path)) == 1
        disk.free()
        journal.write("later", sync=True)
    assert [line["event"] for line in read_journal(journal.path)] == ["first", "later"]


def test_a_process_that_starts_later_is_in_the_ledger(settings: Settings, disk: SmallDisk) -> None:
    ledger = settings.attempts / "ledger.jsonl"
    # Longer than a page, which is written atomically.
    entry = LedgerEntry(7, 1.0, "recorder", ["x" * 20_000], "a1", "t")
    append_entry(ledger, entry)
    disk.fill(but=10_000)
    with pytest.raises(OSError, match="No space left"):
        append_entry(ledger, entry)
    assert not ledger.read_bytes().endswith(b"\n"), "half a line"
    disk.free()
    append_entry(ledger, replace(entry, role="generator"))
    roles = [line.role for line in read_ledger(ledger)]
    assert roles[0] == "recorder" and roles[-1] == "generator"


def test_the_index_answers_from_memory_and_keeps_its_file(settings: Settings, disk: SmallDisk) -> None:
    index = Index(settings.results, settings.home)
    assert [one.attempt for one in index.all()] == [EARLIER]
    assert index.file is not None
    many = [sample(attempt=f"20261121T0616{number:02d}Z-000002", repetition=number) for number in range(40)]
    for record in many:
        Store(settings.results).write(record)
    disk.fill()
    for one in (index, Index(settings.results, settings.home)):
        one.refresh()
        assert len(one.all()) == 41
    assert _entries_in(index.file) == 1
    disk.free()
    assert len(Index(settings.results, settings.home).all()) == 41
    assert _entries_in(index.file) == 41, "it lasts again"


def _entries_in(file: Path) -> int:
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as connection:
        return int(connection.execute("SELECT COUNT(*) FROM entries").fetchone()[0])


@pytest.fixture
def attempt(settings: Settings) -> Attempt:
    """Attempt that was measured and harvested."""
    return Attempt(unpacked(GOLDEN, settings.attempts))


def test_a_measured_attempt_is_judged_once_there_is_space(
    settings: Settings, disk: SmallDisk, attempt: Attempt
) -> None:
    for name in ("audit.json", "series.json", "latency.hlog"):
        (attempt.folder / name).unlink(missing_ok=True)
    disk.fill()
    with pytest.raises(InfrastructureError, match=FULL):
        judge_attempt(attempt, settings)
    assert recorded(settings) == [EARLIER]
    disk.free()
    golden = Record.model_validate_json((settings.attempts / "record.json").read_bytes())
    assert judge_attempt(attempt, settings).status == golden.status
    assert recorded(settings) == sorted([EARLIER, attempt.id])


def test_closing_frees_the_space_that_it_needs(settings: Settings, disk: SmallDisk, attempt: Attempt) -> None:
    attempt.scratch.mkdir(exist_ok=True)
    (attempt.scratch / "unpacked").write_bytes(bytes(200_000))
    disk.fill()
    deleted: list[str] = []
    close_attempt(run_of(attempt, settings), deleted.extend)
    assert deleted and attempt.closed.exists() and not attempt.scratch.exists()
    assert recorded(settings) == sorted([EARLIER, attempt.id])


def test_an_attempt_stays_open_without_space_to_close_it(settings: Settings, disk: SmallDisk, attempt: Attempt) -> None:
    disk.fill()
    with pytest.raises(InfrastructureError, match=FULL):
        close_attempt(run_of(attempt, settings), lambda topics: None)
    assert not attempt.closed.exists() and recorded(settings) == [EARLIER]
    assert (attempt.harvest / "counts.parquet").exists()
    disk.free()
    close_attempt(run_of(attempt, settings), lambda topics: None)
    assert attempt.closed.exists() and recorded(settings) == sorted([EARLIER, attempt.id])
