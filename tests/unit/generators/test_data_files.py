"""User data: records equal the file's content, and errors name file and line."""

from __future__ import annotations

import itertools
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from generators import data_files
from generators.counter_rng import murmur2, partition_of
from generators.data_files import ROWS_PER_CHECK, Data, read_data, require_ordered
from generators.pacing import MS, RecordedSchedule, Shard
from generators.send_progress import InputError
from generators.state_preload import StateKeys
from generators.stream import Replay, Stream, make_source
from tests.unit.generators.conftest import spec_of, written


def test_keys_and_times_come_from_columns_in_all_formats(tmp_path: Path) -> None:
    at = [datetime(2026, 11, 25, 12, 0, second, tzinfo=UTC) for second in (0, 1, 3)]
    plain = [{"user": f"u{n}", "at": one.isoformat(), "n": n} for n, one in enumerate(at)]
    pd.DataFrame({"user": ["u0", "u1", "u2"], "at": at, "n": [0, 1, 2]}).to_parquet(tmp_path / "c.parquet")
    files = [
        written(tmp_path, "a.jsonl", "\n".join(map(json.dumps, plain))),
        written(tmp_path, "b.csv", "user,at,n\n" + "\n".join(",".join(map(str, row.values())) for row in plain)),
        str(tmp_path / "c.parquet"),
    ]
    for name, times in (("d", [one.timestamp() for one in at]), ("e", [1000 * round(one.timestamp()) for one in at])):
        rows = [json.dumps({**row, "at": time}) for row, time in zip(plain, times, strict=True)]
        files.append(written(tmp_path, f"{name}.jsonl", "\n".join(rows)))
    for file in files:
        data = read_data(file, "user", "at")
        assert data.keys == [b"u0", b"u1", b"u2"], file
        assert data.times_ms == [round(one.timestamp() * 1000) for one in at], file
        require_ordered(data, file)


def test_folder_is_read_by_file_name(tmp_path: Path) -> None:
    for name in ("b", "a"):
        written(tmp_path, f"{name}.txt", f"{name}1\n\n{name}2\n")
    assert read_data(str(tmp_path)).values == [b"a1", b"a2", b"b1", b"b2"]
    written(tmp_path, "c.csv", "x\n1\n")
    with pytest.raises(InputError, match=r"^data: .*\.csv and \.txt"):
        read_data(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "text", "key", "time", "message"),
    [
        ("a.jsonl", '{"a": 1}\n{"a": \n', None, None, "a.jsonl, line 2: invalid JSON"),
        ("a.jsonl", "[1]\n", None, None, "a.jsonl, line 1: got list"),
        ("a.jsonl", '{"a": 1}\n\n{"b": 2}\n', "a", None, "data_key: .*a.jsonl, line 3: .*column a; got b"),
        ("a.jsonl", '{"a": "x"}\n', None, "a", "a.jsonl, line 1: a: got 'x'"),
        ("a.jsonl", "\n", None, None, "^data: .*no records"),
        ("a.csv", "a,b\n1,2\n3\n", None, None, "a.csv, line 3: got 1 columns; expected 2"),
        ("a.txt", b"ok\n\xff\n", None, None, "a.txt, line 2: .*UTF-8"),
        ("a.txt", "x\n", "k", None, "^data_key: "),
        ("a.parquet", b"no parquet", None, None, "invalid Parquet file"),
        ("a.bin", b"x", None, None, r"got .bin; expected .jsonl, .csv, .parquet, .txt"),
    ],
)
def test_errors_name_file_and_line(
    tmp_path: Path, name: str, text: str | bytes, key: str | None, time: str | None, message: str
) -> None:
    with pytest.raises(InputError, match=message) as refused:
        read_data(written(tmp_path, name, text), key, time)
    assert "\n" not in str(refused.value)


def test_missing_and_too_large_files_are_refused_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="^data: .*no.txt"):
        read_data(str(tmp_path / "no.txt"))
    monkeypatch.setattr(data_files, "MEMORY_SHARE", 10 / psutil.virtual_memory().total)
    with pytest.raises(InputError, match="has 0 MB; expected at most 0 MB"):
        read_data(written(tmp_path, "a.txt", "x" * 100))


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.txt", "a.parquet", "recorded.parquet"])
def test_memory_budget_is_checked_while_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A small file may be large in memory; each check here adds a megabyte."""
    lines = {"a.jsonl": '{"a": 1}\n' * 1250, "a.csv": "a\n" + "1\n" * 1250, "a.txt": "x\n" * 1250}
    if name in lines:
        path = written(tmp_path, name, lines[name])
    else:
        path = str(tmp_path / name)
        row = {"partition": 0, "offset": 0, "timestamp_ms": 5, "key": b"k", "value": b"v", "headers": []}
        rows = [row if name.startswith("recorded") else {"a": "x"}] * 1250
        pq.write_table(pa.Table.from_pylist(rows), path)
    looks = itertools.count(0, 1_000_000)
    monkeypatch.setattr(data_files, "used_memory", lambda: next(looks))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=12_000_000))
    with pytest.raises(InputError) as refused:
        read_data(path, copies=2)
    place = rf".*{re.escape(name)}, (line|row) {4 * ROWS_PER_CHECK + (name == 'a.csv')}"
    assert re.search(f"takes 4 MB of memory up to {place}; ", str(refused.value))
    looks = itertools.count(0, 1_000_000)
    assert len(read_data(path)) == 1250, "one process alone has twice as much"


def test_descending_times_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "a.jsonl", '{"t": 5}\n{"t": 7}\n{"t": 6}\n')
    data = read_data(path, None, "t")
    with pytest.raises(InputError, match=r"record 3: got 1970-01-01T00:00:06.000Z;"):
        require_ordered(data, path)
    with pytest.raises(InputError, match="^data_time: missing"):
        require_ordered(read_data(path), path)


@pytest.mark.parametrize(
    ("column", "value"),
    [("headers", [{"key": "h", "value": b"1"}]), ("headers", "h"), ("value", "text"), ("timestamp_ms", 5.5)],
)
def test_columns_of_another_tool_are_refused_by_name(tmp_path: Path, column: str, value: object) -> None:
    row = {"partition": 0, "offset": 0, "timestamp_ms": 5, "key": b"k", "value": b"v", "headers": [], column: value}
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=f"^data: .*column {column}: got|^data: column {column}: got"):
        read_data(str(tmp_path / "a.parquet"))


def test_a_recording_is_replayed_with_keys_headers_and_times(tmp_path: Path) -> None:
    """In order of time, for any order of partitions."""
    rows = [
        {"partition": 0, "offset": 0, "timestamp_ms": 5, "key": b"k", "value": b"late", "headers": []},
        {"partition": 1, "offset": 0, "timestamp_ms": 3, "key": None, "value": None,
         "headers": [{"name": "h", "value": b"1"}]},
    ]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    data = read_data(str(tmp_path / "a.parquet"))
    assert (data.values, data.keys) == ([None, b"late"], [None, b"k"])
    assert (data.headers, data.times_ms) == ([[("h", b"1")], []], [3, 5])
    with pytest.raises(InputError, match="^data_key: "):
        read_data(str(tmp_path / "a.parquet"), "key")


def test_byte_columns_must_be_text_and_a_bom_is_dropped(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [b"abc"]}), tmp_path / "a.parquet")
    assert read_data(str(tmp_path / "a.parquet")).values == [b'{"a":"abc"}']
    pq.write_table(pa.table({"a": [b"\xff"]}), tmp_path / "b.parquet")
    with pytest.raises(InputError, match="^data: got binary data"):
        read_data(str(tmp_path / "b.parquet"))
    assert read_data(written(tmp_path, "c.csv", b"\xef\xbb\xbfk,v\n1,2\n"), "k").keys == [b"1"]
    with pytest.raises(InputError, match="^data_time: .*expected a (time|number)"):
        read_data(written(tmp_path, "d.jsonl", '{"t": 1e999}'), None, "t")


# --- replay: order, time and partition are a function of data, seed and repetition


times = st.lists(st.integers(0, 5_000), min_size=1, max_size=12).map(sorted)


@given(times, st.sampled_from([0.5, 1.0, 3.0, 10.0]), st.floats(0.01, 30))
def test_recorded_schedule_repeats_its_times(at_ms: list[int], speed: float, seconds: float) -> None:
    """Compared with a plain loop over all records."""
    round_ms = Data(values=[b""] * len(at_ms), times_ms=at_ms).round_ms
    listed = RecordedSchedule.for_duration(at_ms, round_ms, speed, seconds)
    length = max(round((at_ms[-1] - at_ms[0]) * MS / speed) + 1, round(round_ms * MS / speed))
    due, k = [], 0
    while len(due) <= 2000:
        cycle, place = divmod(k, len(at_ms))
        at = cycle * length + round((at_ms[place] - at_ms[0]) * MS / speed)
        if at >= round(seconds * 1e9):
            break
        due.append(at)
        k += 1
    assert listed.count == len(due) or len(due) > 2000
    assert [listed.due_ns(n) for n in range(len(due))] == due
    assert listed.due_array(0, 1, len(due)).tolist() == due
    for at in {0, *due[:5], *(one + 1 for one in due[:5])}:
        assert listed.due_count(at) == min(listed.count, sum(one <= at for one in due))


def test_partitions_match_kafkas_clients() -> None:
    """Kafka's own test values of its hash (Utils.murmur2), as unsigned numbers."""
    known = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536, b"abc": 479470107}
    assert {key: murmur2(key) for key in known} == {key: value % 2**32 for key, value in known.items()}
    assert partition_of(b"foobar", 7) == (-790332482 & 0x7FFFFFFF) % 7


def test_recorded_schedule_and_shifted_times_per_cycle(tmp_path: Path) -> None:
    rows = [{"at": 1_795_608_000 + second} for second in (0, 1, 4)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    replayed = {"data_time": "at", "data_pace": "recorded", "data_speed": 4.0}
    one = spec_of(source="data", data=str(tmp_path / "a.jsonl"), **replayed)
    chunk = Stream(make_source(one), StateKeys(0, 0, 1, 0), one, Shard()).take(17)
    assert chunk.due_ns.tolist()[:4] == [0, 250_000_000, 1_000_000_000, 1_500_000_000]
    values = [json.loads(value or b"")["at"] - 1_795_608_000 for value in chunk.payloads]
    assert values == [0, 1, 4, 6, 7], "the second cycle begins a mean gap after the end of the first"


def test_preload_of_timed_data_makes_no_record_late() -> None:
    data = Data(values=[b"a", b"b"], times_ms=[1, 2])
    assert list(Replay(data, 1, 0).preload(3)) == [b"a", b"a", b"a"]
    plain, keyed = Replay(Data(values=[b"a", b"b"]), 1, 0), Replay(Data([b"a", b"b"], [b"k", None]), 1, 0)
    assert list(plain.preload(3)) == [b"a", b"b", b"a"] and plain.preload_key(0) is None
    assert [keyed.preload_key(number) for number in range(3)] == [b"k", None, b"k"]


def test_cycle_length_is_independent_of_order() -> None:
    assert Data(values=[b"a"] * 3, times_ms=[100, 500, 90]).round_ms == 410 + 205
    assert Data(values=[b"a"] * 2, times_ms=[7, 7]).round_ms == 1000
    assert Data(values=[b"a"] * 2, times_ms=[0, 86_400_000], resolution_ms=86_400_000).round_ms == 2 * 86_400_000
