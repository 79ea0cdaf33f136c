"""Parsing of driver, executor and GC logs, with lines of Spark 4.2.0, Kafka client 3.9 and Java 17 and 21."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.engines.gc_log import DRIVER_FILE, EXECUTOR_FILE, gc_option, parse_gc_log, read_gc_logs
from faultline.engines.spark.driver_log import is_driver_event, parse_driver_log, read_driver_logs
from faultline.engines.spark.engine import ENGINE
from faultline.engines.spark.executor_log import parse_executor_log, read_executor_logs
from faultline.engines.supervisor_journal import exit_reason
from faultline.engines.work import Pause

LOST = (
    "2026-11-21T06:16:29.150Z WARN [task-result-getter-2] TaskSetManager: [queryId = aee4d] "
    "[batchId = 21] Lost task 0.0 in stage 31.0 (TID 61) (127.0.0.1 executor 0): "
    "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)"
)
ADMIN = "2026-11-21T06:16:30.250Z INFO [kafka-admin-client-thread | adminclient-1] NetworkClient: [AdminClient a] "
STREAM = "2026-11-21T06:16:30.250Z WARN [stream execution thread for [id = 5d, runId = 7e]] "


BROKEN, NOT_BROKEN = (
    [
        ADMIN + "Node 1 disconnected.",
        ADMIN + "Connection to node 1 (/127.0.0.1:9092) could not be established. Node may not be available.",
        ADMIN + "Connection to node -1 (/127.0.0.1:9092) could not be established. Node may not be available.",
        ADMIN + "Bootstrap broker 127.0.0.1:9092 (id: -1 rack: null) disconnected",
        ADMIN + "Cancelled in-flight METADATA request with correlation id 9 due to node 1 being disconnected (t: 3ms)",
        ADMIN + "Disconnecting from node 1 due to request timeout.",
        STREAM + "FetchSessionHandler: Error sending fetch request to node 1: org.apache…DisconnectException: null",
        STREAM + "AdminMetadataManager: [AdminClient clientId=a] Metadata update failed",
    ],
    [
        ADMIN + "Node -1 disconnected.",  # the idle bootstrap connection, given up by the client
        STREAM + "MicroBatchExecution: Streaming query made progress, node 1 connected",
        "java.io.IOException: Node 1 disconnected.",
        "2026-11-21T06:16:29.150Z INFO [a] TaskSetManager: Starting task 0.0 in stage 3.0 (TID 6)",
    ],
)


@pytest.mark.parametrize("line", [*BROKEN, *NOT_BROKEN])
def test_all_messages_of_lost_connections_are_recognised(line: str) -> None:
    found = parse_driver_log([line], "driver-0.log")
    seen = [(one.wall_ns, one.file) for one in found.disconnects]
    assert seen == [(1_795_241_790_250_000_000, "driver-0.log")] * (line in BROKEN) and found.lost_tasks == ()


def test_lost_tasks_are_found_in_all_incarnations(tmp_path: Path) -> None:
    later = LOST.replace("06:16:29", "06:17:29")
    (tmp_path / "driver-1.log").write_text(LOST + "\n  at java.lang.Thread.run\n")
    (tmp_path / "driver-0.log").write_text("made by hand\n" + later)
    found = read_driver_logs(tmp_path).lost_tasks
    instants = {"driver-1.log": 1_795_241_789_150_000_000, "driver-0.log": 1_795_241_849_150_000_000}
    assert [(one.file, one.wall_ns) for one in found] == list(instants.items())
    assert found[0].text.startswith("TaskSetManager: [queryId = aee4d] [batchId = 21] Lost task 0.0 in stage 31.0")
    assert read_driver_logs(tmp_path / "nowhere").lost_tasks == ()


@given(st.lists(st.text(max_size=60), max_size=10), st.integers(0, len(LOST)))
def test_other_and_truncated_driver_lines_are_skipped(lines: list[str], cut: int) -> None:
    found = parse_driver_log([*lines, LOST[:cut], ADMIN[:cut], LOST], "driver-0.log")
    assert 1 <= len(found.lost_tasks) <= 2
    assert found.disconnects == ()


def test_late_rows_are_summed_over_batches_and_operators() -> None:
    lines = ['    "numRowsDroppedByWatermark" : 3,', '    "numRowsTotal" : 9,', '    "numRowsDroppedByWatermark" : 4,']
    assert parse_driver_log(lines, "driver-0.log").late_rows == 7
    assert is_driver_event(lines[0]) and not is_driver_event('    "numRowsDroppedByWatermark" : 0,')


# Executor logs, with lines of Spark 4.2.0 recorded from a run with a killed executor.

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


def test_only_a_reload_that_reads_data_is_real() -> None:
    events = parse_executor_log([*RELOAD, *NO_OP], "app/2")
    loads = [(load.version, load.real, load.partition, load.tid) for load in events.loads]
    assert loads == [(15, True, 0, 61), (17, False, 0, 61)]
    assert events.loads[0].wall_ns == 1_795_241_789_341_000_000
    launch = events.launches[0]
    assert (launch.tid, launch.stage, launch.index, launch.executor) == (61, 31, 0, "app/2")
    assert launch.wall_ns == 1_795_241_789_150_000_000


def test_first_loads_and_returning_stores_are_real() -> None:
    again = [line.replace("06:16:29", "06:16:40") for line in RELOAD]
    loads = parse_executor_log([*NO_OP, *NO_OP, *again], "app/0").loads
    assert [load.real for load in loads] == [True, False, True]


def test_concurrent_loads_are_separated_by_thread() -> None:
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


def test_partitions_are_identified_by_task_index_or_store() -> None:
    lines = [_line("30.000", "RocksDB", "Loading 3 with x"), _line("30.100", "RocksDB", "Loaded 3")]
    load = parse_executor_log(lines, "app/0").loads[0]
    assert (load.partition, load.real) == (0, True)
    text = "Saved checkpoint file for version 15 checkpointUniqueId: "
    lines = [_line("27.078", f"RocksDBFileManager {STORE}", text, "state-store-maintenance-thread-0")]
    snapshot = parse_executor_log(lines, "app/0").snapshots[0]
    assert (snapshot.version, snapshot.partition) == (15, 0)


@given(st.lists(st.text(max_size=60), max_size=20))
def test_other_executor_lines_are_skipped(lines: list[str]) -> None:
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


# GC logs of Java 17 and 21.

BEGAN = "[2026-11-24T22:05:16.900+0000] Using "
YOUNG = "[2026-11-24T22:05:17.555+0000] GC(0) Pause Young (Normal) (G1 Evacuation Pause) 6M->3M(64M) 12.849ms"
END_NS = 1_795_557_917_555_000_000


def test_a_pause_ends_at_its_timestamp() -> None:
    lines = [
        f"{BEGAN}G1\n", f"{YOUNG}\n",
        "[2026-11-24T22:05:18.000+0000] GC(1) Concurrent Mark Cycle\n",
        "[2026-11-24T22:05:18.100+0000] GC(1) Pause Remark 9M->9M(64M) 1.500ms\n",
        "[2026-11-24T22:05:18.200+0000] GC(1) Concurrent Mark Cycle 200.123ms\n",
        "[2026-11-24T22:05:18.300+0000] GC(2) Pause Full (System.gc()) 28M->9M(37M) 11.4",  # a kill cut it short
    ]  # fmt: skip
    found = parse_gc_log(lines, "executors", "app/0")
    assert found is not None and (found.role, found.process, found.collector) == ("executors", "app/0", "G1")
    assert found.pauses == (
        Pause(END_NS - 12_849_000, END_NS), Pause(END_NS + 543_500_000, END_NS + 545_000_000)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("collector", "line"),
    [
        ("Serial", "GC(24) Pause Full (System.gc()) 44M->9M(61M) 4.604ms"),
        ("Parallel", "GC(2) Pause Young (Allocation Failure) 23M->8M(61M) 1.823ms"),
        ("G1", "GC(3) Pause Young (Concurrent Start) (Metadata GC Threshold) 90M->41M(252M) 14.020ms"),
        ("Shenandoah", "GC(0) Pause Init Mark (unload classes) 0.145ms"),
    ],
)
def test_all_stop_the_world_collectors_are_parsed(collector: str, line: str) -> None:
    found = parse_gc_log([BEGAN + collector, f"[2026-11-24T22:05:17.555+0000] {line}"], "driver", "d")
    assert found is not None and found.collector == collector and len(found.pauses) == 1


def test_concurrent_collectors_give_no_pauses() -> None:
    for lines in ([], [f"{BEGAN}The Z Garbage Collector", YOUNG], ["Picked up JAVA_TOOL_OPTIONS: -Xlog", YOUNG]):
        assert parse_gc_log(lines, "driver", "d") is None
    quiet = parse_gc_log([f"{BEGAN}G1"], "driver", "d")
    assert quiet is not None and quiet.pauses == (), "a process that never paused is known to have done so"


@given(st.integers(0, 10**6), st.integers(-48, 56), st.integers(0, 5_000_000), st.sampled_from(["5M->3M(9M) ", ""]))
def test_pause_times_respect_the_utc_offset(after_ms: int, quarters: int, took_us: int, heap: str) -> None:
    zone = timezone(timedelta(minutes=15 * quarters))
    at = datetime(2026, 11, 24, tzinfo=zone) + timedelta(milliseconds=after_ms)
    text = at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03}" + at.strftime("%z")
    line = f"[{text}] GC(7) Pause Young (Normal) {heap}{took_us // 1000}.{took_us % 1000:03}ms"
    found = parse_gc_log([f"{BEGAN}G1", line], "driver", "d")
    assert found is not None
    (pause,) = found.pauses
    assert pause.end_ns == round(at.timestamp() * 1000) * 10**6 and pause.end_ns - pause.start_ns == took_us * 1000


def test_each_process_has_its_own_gc_log(tmp_path: Path) -> None:
    assert read_gc_logs(tmp_path) == ()
    for name, text in (
        ("app-1/0/gc.log", f"{BEGAN}G1\n{YOUNG}"), ("app-1/1/gc.log", f"{BEGAN}G1"), ("app-1/2/stderr", YOUNG),
        ("gc-driver-77.log", f"{BEGAN}Serial\n{YOUNG}"), ("driver-0.log", YOUNG), ("app-2/0/gc.log", ""),
    ):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = [(one.role, one.process, one.collector, len(one.pauses)) for one in read_gc_logs(tmp_path)]
    assert found == [
        ("driver", "driver-77", "Serial", 1), ("executors", "app-1/0", "G1", 1), ("executors", "app-1/1", "G1", 0)
    ]  # fmt: skip


def test_gc_options_match_the_paths_that_are_read() -> None:
    """Executors share a file name, because each runs in its own folder."""
    assert gc_option(EXECUTOR_FILE) == "-Xlog:gc:file=gc.log:time:filecount=0"
    assert Path(DRIVER_FILE.replace("%p", "77")).match("spark-logs/gc-driver-77.log")
    assert "%p" in gc_option(DRIVER_FILE)


# Exit reasons.

# Spark's driver wraps the exception of a Python worker in its own.
IN_A_WORKER = """\
2026-11-26T08:03:00.100Z WARN [x] TaskSetManager: Lost task 0.0: [PYTHON_EXCEPTION] An exception was thrown
  File "job.py", line 6, in f
ValueError: bad row 6
Traceback (most recent call last):
  File "running.py", line 71, in warm_up
    raise ValueError("bad row 7")
pyspark.errors.StreamingQueryException: [STREAM_FAILED] Query ended: Traceback (most recent call last):
    raise ValueError("bad row 7")
ValueError: bad row 7
 SQLSTATE: 38000
\tat org.apache.spark.SomeException.of(X.scala:1)
2026-11-26T08:03:01.545Z WARN [x] TaskSetManager: Lost task 1.3: TaskKilled (Stage cancelled: [PYTHON_EXCEPTION] An exc
2026-11-26T08:03:01.660Z INFO [x] SparkContext: bye
"""
BEFORE_ALL = """\
WARNING: Using incubator modules: jdk.incubator.vector
Traceback (most recent call last):
  File "job.py", line 3, in <module>
ModuleNotFoundError: No module named 'lightgbm'
2026-11-26T08:03:01.660Z ERROR [x] Utils: [SOME_ERROR.OF_IT] afterwards
"""
# Another query of the job logs that its JVM ended.
ANOTHER_AFTER = """\
Traceback (most recent call last):
  File "user_job.py", line 79, in require_as_told
user_job.JobError: query started 1 streaming query of its own
2026-11-27T17:27:24.486Z ERROR [stream execution thread] MicroBatchExecution: Query ended
java.lang.AssertionError: assertion failed
\tat scala.Predef$.assert(Predef.scala:264)
"""


# The message of Spark's parser begins with a new line.
UNPARSED = """\
Traceback (most recent call last):
  File "user_query.py", line 3, in query
pyspark.errors.exceptions.captured.ParseException:\x20
[PARSE_SYNTAX_ERROR] Syntax error at or near 'records'. SQLSTATE: 42601 (line 5, pos 5)

== SQL ==
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (UNPARSED, " ".join(line.strip() for line in UNPARSED.splitlines()[2:4])),
        (ANOTHER_AFTER, "user_job.JobError: query started 1 streaming query of its own"),
        (IN_A_WORKER, "ValueError: bad row 7"),
        (BEFORE_ALL, "ModuleNotFoundError: No module named 'lightgbm'"),
        ("an Error\n[AN_ERROR.OF_A_CLASS] why\nan Exception\nbye\n", "[AN_ERROR.OF_A_CLASS] why"),
        # Java exceptions have no Python traceback.
        ("[AN_ERROR.OF_A_CLASS] why\njava.lang.IllegalStateException: no\n", "[AN_ERROR.OF_A_CLASS] why"),
    ],
)
def test_python_exceptions_take_precedence_over_spark_messages(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "driver-0.log").write_text(text)
    assert exit_reason(tmp_path / "driver-0.log", ENGINE.error_line) == words


def test_without_an_error_class_the_last_error_or_line_is_used(tmp_path: Path) -> None:
    log, pattern = tmp_path / "log", re.compile("MATCH")
    assert exit_reason(tmp_path / "none", pattern) == "(no log)"
    for text, words in (
        ("MATCH here\nbut an Error\n", "MATCH here"), ("one Exception\nbye", "one Exception"), ("bye\n\n", "bye"),
        ("", "(empty)"), ("x" * 400, "x" * 300),
    ):  # fmt: skip
        log.write_text(text)
        assert exit_reason(log, pattern) == words
