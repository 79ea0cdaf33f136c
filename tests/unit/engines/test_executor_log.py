"""Parsing lines as Spark 4.2.0 really writes them (a short run with a killed executor gave these forms)."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from faultline.engines.spark.executor_log import parse_executor_log, read_executor_logs

TASK = "Executor task launch worker for task 0.0 in stage 31.0 (TID 61)"
STORE = "StateStoreProviderId[ storeId=StateStoreId[ operatorId=0, partitionId=0, storeName=default ], queryRunId=d ]"


def _line(at: str, logger: str, text: str, thread: str = TASK) -> str:
    return f"2026-11-21T06:16:{at}Z INFO [{thread}] {logger}: {text}"


RELOAD = [
    _line("29.150", "Executor", "Running task 0.0 in stage 31.0 (TID 61)"),
    _line("29.200", f"RocksDB {STORE}", "Loading 15 with stateStoreCkptId: "),
    _line("29.310", f"RocksDBFileManager {STORE}", "Copied 1 files (5328 bytes) from DFS to local with 0 files"),
    "HashMap(000012.sst -> (12,RocksDBSstFile(000012.sst,000012-aec.sst,5328)))",
    _line("29.321", f"RocksDB {STORE}", "Opened DB with conf RocksDBConf(100,30,3,false)"),
    _line("29.328", f"RocksDB {STORE}", "Replaying changelog from version 12 -> Some(15)"),
    _line("29.332", f"RocksDBFileManager {STORE}", "Loaded change log reader version 1"),
    _line("29.341", f"RocksDB {STORE}", "Loaded 15"),
]
NO_OP = [
    _line("31.154", f"RocksDB {STORE}", "Loading 17 with stateStoreCkptId: "),
    _line("31.155", f"RocksDB {STORE}", "Loaded 17"),
]


def test_a_reload_is_real_and_the_next_load_of_the_open_store_is_not() -> None:
    events = parse_executor_log([*RELOAD, *NO_OP], "app/2")
    assert [(load.version, load.real, load.partition, load.tid) for load in events.loads] == [
        (15, True, 0, 61),
        (17, False, 0, 61),
    ]
    assert events.loads[0].wall_ns == 1_795_241_789_341_000_000
    launch = events.launches[0]
    assert (launch.tid, launch.stage, launch.index, launch.executor) == (61, 31, 0, "app/2")
    assert launch.wall_ns == 1_795_241_789_150_000_000


def test_the_first_load_in_an_executor_is_real_without_any_further_line() -> None:
    loads = parse_executor_log([*NO_OP, *NO_OP], "app/0").loads
    assert [load.real for load in loads] == [True, False]


def test_a_store_that_moved_away_and_back_is_read_again() -> None:
    again = [line.replace("06:16:29", "06:16:40") for line in RELOAD]
    loads = parse_executor_log([*NO_OP, *NO_OP, *again], "app/0").loads
    assert [load.real for load in loads] == [True, False, True]


def test_threads_that_load_at_once_are_kept_apart() -> None:
    other = TASK.replace("task 0.0", "task 1.0").replace("TID 61", "TID 62")
    store = STORE.replace("partitionId=0", "partitionId=1")
    warm = [
        _line("01.000", f"RocksDB {name}", text) for name in (STORE, store) for text in ("Loading 1 with", "Loaded 1")
    ]
    mixed = [
        _line("30.000", f"RocksDB {STORE}", "Loading 16 with stateStoreCkptId: "),
        _line("30.001", f"RocksDB {store}", "Loading 16 with stateStoreCkptId: ", other),
        _line("30.002", f"RocksDB {store}", "Opened DB with conf RocksDBConf(100)", other),
        _line("30.003", f"RocksDB {STORE}", "Loaded 16"),
        _line("30.004", f"RocksDB {store}", "Loaded 16", other),
    ]
    loads = parse_executor_log([*warm, *mixed], "app/0").loads[2:]
    assert [(load.partition, load.tid, load.real) for load in loads] == [(0, 61, False), (1, 62, True)]


def test_without_the_store_in_the_line_the_tasks_index_is_the_partition() -> None:
    lines = [_line("30.000", "RocksDB", "Loading 3 with x"), _line("30.100", "RocksDB", "Loaded 3")]
    load = parse_executor_log(lines, "app/0").loads[0]
    assert (load.partition, load.real) == (0, True)


def test_snapshots_are_seen_from_task_and_maintenance_threads() -> None:
    text = "Saved checkpoint file for version 15 checkpointUniqueId: "
    lines = [_line("27.078", f"RocksDBFileManager {STORE}", text, "state-store-maintenance-thread-0")]
    snapshot = parse_executor_log(lines, "app/0").snapshots[0]
    assert (snapshot.version, snapshot.partition) == (15, 0)


@settings(deadline=None)
@given(st.lists(st.text(max_size=60), max_size=20))
def test_foreign_lines_are_passed_over(lines: list[str]) -> None:
    assert parse_executor_log(lines, "app/0").loads == ()


def test_all_executors_are_read_in_order_of_time(tmp_path: Path) -> None:
    for name, lines in {"0": NO_OP, "2": RELOAD}.items():
        folder = tmp_path / "app-1" / name
        folder.mkdir(parents=True)
        (folder / "stderr").write_text("\n".join(lines))
    (tmp_path / "driver-1.log").write_text("not an executor")
    loads = read_executor_logs(tmp_path).loads
    assert [load.executor for load in loads] == ["app-1/2", "app-1/0"]
    assert read_executor_logs(tmp_path / "nowhere").loads == ()
