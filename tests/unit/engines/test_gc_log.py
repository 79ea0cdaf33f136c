"""The logs of pauses that JVMs write, as Java 17 and 21 write them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.engines.base import Pause
from faultline.engines.spark.gc_log import DRIVER_FILE, EXECUTOR_FILE, gc_option, parse_gc_log, read_gc_logs

BEGAN = "[2026-11-24T22:05:16.900+0000] Using "
YOUNG = "[2026-11-24T22:05:17.555+0000] GC(0) Pause Young (Normal) (G1 Evacuation Pause) 6M->3M(64M) 12.849ms"
END_NS = 1_795_557_917_555_000_000


def test_a_pause_ends_when_its_line_is_written() -> None:
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
def test_every_collector_that_stops_the_world_is_read(collector: str, line: str) -> None:
    found = parse_gc_log([BEGAN + collector, f"[2026-11-24T22:05:17.555+0000] {line}"], "driver", "d")
    assert found is not None and found.collector == collector and len(found.pauses) == 1


def test_a_log_that_would_hold_no_pauses_tells_nothing() -> None:
    assert parse_gc_log([], "driver", "d") is None
    assert parse_gc_log([f"{BEGAN}The Z Garbage Collector", YOUNG], "driver", "d") is None
    assert parse_gc_log(["Picked up JAVA_TOOL_OPTIONS: -Xlog", YOUNG], "driver", "d") is None
    quiet = parse_gc_log([f"{BEGAN}G1"], "driver", "d")
    assert quiet is not None and quiet.pauses == (), "a process that never paused is known to have done so"


@given(
    st.integers(0, 10**6), st.integers(-12 * 4, 14 * 4), st.integers(0, 5_000_000), st.sampled_from(["5M->3M(9M) ", ""])
)
def test_pauses_lie_where_the_clock_says(after_ms: int, quarters: int, took_us: int, heap: str) -> None:
    """Whatever offset from UTC the machine's clock has."""
    zone = timezone(timedelta(minutes=15 * quarters))
    at = datetime(2026, 11, 24, tzinfo=zone) + timedelta(milliseconds=after_ms)
    text = at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03}" + at.strftime("%z")
    line = f"[{text}] GC(7) Pause Young (Normal) {heap}{took_us // 1000}.{took_us % 1000:03}ms"
    found = parse_gc_log([f"{BEGAN}G1", line], "driver", "d")
    assert found is not None
    (pause,) = found.pauses
    assert pause.end_ns == round(at.timestamp() * 1000) * 10**6 and pause.end_ns - pause.start_ns == took_us * 1000


def test_each_process_has_a_file_of_its_own(tmp_path: Path) -> None:
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


def test_what_the_jvms_are_told_is_what_is_read() -> None:
    """Files of one name for all executors: each runs in a folder of its own, as the driver does in the attempt's."""
    assert gc_option(EXECUTOR_FILE) == "-Xlog:gc:file=gc.log:time:filecount=0"
    assert Path(DRIVER_FILE.replace("%p", "77")).match("spark-logs/gc-driver-77.log")
    assert "%p" in gc_option(DRIVER_FILE)
