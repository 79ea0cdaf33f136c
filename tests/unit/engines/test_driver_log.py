"""Lines of the driver's log as Spark 4.2.0 and the Kafka client 3.9 word them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faultline.engines.spark.driver_log import is_driver_event, parse_driver_log, read_driver_logs

LOST = (
    "2026-11-21T06:16:29.150Z WARN [task-result-getter-2] TaskSetManager: [queryId = aee4d] "
    "[batchId = 21] Lost task 0.0 in stage 31.0 (TID 61) (127.0.0.1 executor 0): "
    "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)"
)
ADMIN = "2026-11-21T06:16:30.250Z INFO [kafka-admin-client-thread | adminclient-1] NetworkClient: [AdminClient a] "
STREAM = "2026-11-21T06:16:30.250Z WARN [stream execution thread for [id = 5d, runId = 7e]] "


@pytest.mark.parametrize(
    "line",
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
)
def test_each_wording_of_a_broken_connection(line: str) -> None:
    found = parse_driver_log([line], "driver-0.log").disconnects
    assert [(one.wall_ns, one.file) for one in found] == [(1_795_241_790_250_000_000, "driver-0.log")]


@pytest.mark.parametrize(
    "line",
    [
        ADMIN + "Node -1 disconnected.",  # the idle bootstrap connection, given up by the client
        STREAM + "MicroBatchExecution: Streaming query made progress, node 1 connected",
        "java.io.IOException: Node 1 disconnected.",
        "2026-11-21T06:16:29.150Z INFO [a] TaskSetManager: Starting task 0.0 in stage 3.0 (TID 6)",
    ],
)
def test_other_lines_mean_nothing(line: str) -> None:
    found = parse_driver_log([line], "driver-0.log")
    assert found.disconnects == () and found.lost_tasks == ()


def test_a_lost_task_is_found_in_whatever_incarnation(tmp_path: Path) -> None:
    later = LOST.replace("06:16:29", "06:17:29")
    (tmp_path / "driver-1.log").write_text(LOST + "\n  at java.lang.Thread.run\n")
    (tmp_path / "driver-0.log").write_text("made by hand\n" + later)
    found = read_driver_logs(tmp_path).lost_tasks
    assert [(one.file, one.wall_ns) for one in found] == [
        ("driver-1.log", 1_795_241_789_150_000_000),
        ("driver-0.log", 1_795_241_849_150_000_000),
    ]
    assert found[0].text.startswith("TaskSetManager: [queryId = aee4d] [batchId = 21] Lost task 0.0 in stage 31.0")
    assert read_driver_logs(tmp_path / "nowhere").lost_tasks == ()


@settings(deadline=None)
@given(st.lists(st.text(max_size=60), max_size=10), st.integers(0, len(LOST)))
def test_foreign_and_cut_lines_are_passed_over(lines: list[str], cut: int) -> None:
    found = parse_driver_log([*lines, LOST[:cut], ADMIN[:cut], LOST], "driver-0.log")
    assert 1 <= len(found.lost_tasks) <= 2
    assert found.disconnects == ()


def test_rows_that_came_too_late_are_counted_over_batches_and_operators() -> None:
    lines = ['    "numRowsDroppedByWatermark" : 3,', '    "numRowsTotal" : 9,', '    "numRowsDroppedByWatermark" : 4,']
    assert parse_driver_log(lines, "driver-0.log").late_rows == 7
    assert is_driver_event(lines[0]) and not is_driver_event('    "numRowsDroppedByWatermark" : 0,')
