"""Times in user records keep their form when shifted, and nothing else changes."""

from __future__ import annotations

import csv
import io
import json
import re
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from generators.data_files import Data, read_data
from generators.data_rows import UNITS, InvalidTimeError, Unit, read_time, shift_time
from generators.send_progress import InputError
from generators.stream import Replay
from tests.unit.generators.conftest import written

NOON_S = 1_795_608_000  # 2026-11-25T12:00:00Z
FORMS = (
    "2026-11-25T12:00:00Z", "2026-11-25 12:00:00", "2026-11-25T13:00:00.250+01:00", "2026-11-25 12:00:00.123456",
    "2026-11-25", "20261125", "2026-11-25T12:00", "2026-11-25 12", "20261125T120000Z", "20261125120000",
    "2026-11-25T12:00:00,5-0330", "2026-11-25t12:00:00.123456789z", " 2026-11-25 ", "1795608000", "1795608000.25",
    "1795608000123", "1795608000123456", "1795608000123456789", "1.795608E9", "-864000000",
)  # fmt: skip
ZONES = st.sampled_from([UTC, timezone(timedelta(hours=-3, minutes=-30)), ZoneInfo("Europe/Berlin")])
moments = st.datetimes(datetime(1971, 1, 1), datetime(2190, 1, 1), timezones=ZONES)
numbers = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
leaves = st.none() | st.booleans() | numbers | st.text(max_size=8)
anything = st.recursive(leaves, lambda one: st.lists(one, max_size=3) | st.dictionaries(st.text(), one, max_size=3))


def rounds(data: Data, n: int) -> list[list[bytes | None]]:
    """Return the values of the first n cycles as sent."""
    replay, size = Replay(data, 1, 0), len(data)
    return [replay.payloads(np.arange(k * size, (k + 1) * size, dtype=np.uint64)) for k in range(n)]


@pytest.mark.parametrize("text", FORMS)
@pytest.mark.parametrize("quoted", [False, True])
def test_shifted_time_keeps_its_form(text: str, quoted: bool) -> None:
    field = f'"{text}"'.encode() if quoted else text.encode()
    before = read_time(field)
    by = 3 * 86_400 * 10**9 + (before.resolution_ns if before.resolution_ns < 10**9 else 0)
    later = shift_time(field, by, before.unit)
    after = read_time(later)
    assert (after.ns - before.ns, after.unit) == (by, before.unit)
    if "." not in text or before.unit is None:
        assert re.sub(rb"\d", b"0", later) == re.sub(rb"\d", b"0", field)


@given(moments, st.integers(-(10**9), 10**9))
def test_iso_texts_match_python(at: datetime, by_ms: int) -> None:
    for text in (at.isoformat(), at.isoformat(sep=" ", timespec="microseconds")):
        time = read_time(text.encode())
        exact = (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
        assert time.ns == exact * 1000
        by = by_ms * time.resolution_ns
        if abs(by) < 10**18:
            assert read_time(shift_time(text.encode(), by)).ns == time.ns + by


@given(st.sampled_from(list(UNITS)), st.integers(10 * 365 * 86_400, 150 * 365 * 86_400))
def test_the_unit_follows_from_the_magnitude(unit: Unit, seconds: int) -> None:
    number = seconds * 10**9 // UNITS[unit]
    assert read_time(str(number).encode()) == read_time(str(number).encode(), unit)
    assert read_time(str(number).encode()).ns == seconds * 10**9


@pytest.mark.parametrize("text", ["", "null", "true", "x", "2026-13-01", "2026-11-25T24:00", "1e999", "NaN", "12:00"])
def test_invalid_times_are_refused(text: str) -> None:
    with pytest.raises(InvalidTimeError):
        read_time(text.encode())


def test_numbers_of_one_column_have_one_unit(tmp_path: Path) -> None:
    path = written(tmp_path, "a.jsonl", f'{{"t": {NOON_S}}}\n{{"t": {NOON_S}000}}\n')
    with pytest.raises(InputError, match="data_time_unit"):
        read_data(path, None, "t")
    assert read_data(path, None, "t", "ms").times_ms == [NOON_S, NOON_S * 1000]
    with pytest.raises(InputError, match="^data_time_unit: "):
        read_data(written(tmp_path, "a.jsonl", "{}\n"), unit="ms")


@pytest.mark.parametrize("time", ['"a\\b c"', "1e1000000", '"2026-11-25'])
def test_an_odd_time_is_refused_by_file_and_line(tmp_path: Path, time: str) -> None:
    with pytest.raises(InputError, match="a.csv, line 2"):
        read_data(written(tmp_path, "a.csv", f"t\n{time}\n"), None, "t")


def test_microseconds_pass_as_fast_as_seconds(tmp_path: Path) -> None:
    lines = "".join(f'{{"at": {NOON_S * 10**6 + n * 20_000}}}\n' for n in range(3))
    times_ms = read_data(written(tmp_path, "a.jsonl", lines), None, "at").times_ms
    assert times_ms == [NOON_S * 1000 + n * 20 for n in range(3)]


def test_shifts_are_equal_across_daylight_saving_changes(tmp_path: Path) -> None:
    """Berlin times, a minute apart, around the change: each cycle keeps the pace."""
    first = datetime(2026, 10, 25, 0, 0, tzinfo=UTC)
    at = [(first + timedelta(minutes=n)).astimezone(ZoneInfo("Europe/Berlin")) for n in range(120)]
    pq.write_table(pa.table({"at": pa.array(at, pa.timestamp("ms", "Europe/Berlin"))}), tmp_path / "a.parquet")
    data = read_data(str(tmp_path / "a.parquet"), None, "at")
    seen = [datetime.fromisoformat(json.loads(value or b"")["at"]) for one in rounds(data, 3) for value in one]
    assert {b - a for a, b in zip(seen, seen[1:], strict=False)} == {timedelta(minutes=1)}


@given(st.lists(st.lists(st.tuples(st.text(max_size=6), anything), max_size=4), min_size=1, max_size=4), st.data())
def test_json_shift_changes_only_the_time(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[tuple[str, Any]]], draw: st.DataObject
) -> None:
    """Keys may repeat, and numbers and escapes have any form: other bytes stay."""
    ascii_only = draw.draw(st.booleans())
    parts = []
    for number, row in enumerate(rows):
        workers = [(name, json.dumps(value, ensure_ascii=ascii_only)) for name, value in row if name != "t"]
        workers.insert(draw.draw(st.integers(0, len(workers))), ("t", str(NOON_S + number)))
        space = draw.draw(st.sampled_from(["", " ", "\t"]))
        parts.append([f"{space}{json.dumps(name)}{space}:{space}{text}{space}" for name, text in workers])
    lines = ["{" + ",".join(workers) + "}" for workers in parts]
    path = written(tmp_path_factory.mktemp("data"), "a.jsonl", "\n".join(lines))
    data = read_data(path, None, "t")
    for number, values in enumerate(rounds(data, 3)):
        for line, value, at in zip(lines, values, range(NOON_S, NOON_S + len(lines)), strict=True):
            later = str(at + number * data.round_ms // 1000)
            assert value is not None and value.decode() == line.replace(str(at), later, 1)


@given(st.data())
def test_csv_shift_changes_only_the_time(tmp_path_factory: pytest.TempPathFactory, draw: st.DataObject) -> None:
    """Fields may be quoted, and contain commas, quotes and line breaks."""
    texts = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=6)
    others = draw.draw(st.lists(st.tuples(texts, texts), min_size=1, max_size=5))
    end = draw.draw(st.sampled_from(["\n", "\r\n"]))
    quoting = draw.draw(st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]))
    records = []
    for number, (before, after) in enumerate(others):
        text = io.StringIO()
        csv.writer(text, lineterminator=end, quoting=quoting).writerow([before, f"@{number}", after])
        records.append(text.getvalue().removesuffix(end))
    at = [datetime.fromtimestamp(NOON_S + n, UTC).strftime("%Y-%m-%d %H:%M:%S") for n in range(3 * len(records))]
    content = end.join(["a,t,b", *(one.replace(f"@{n}", at[n]) for n, one in enumerate(records)), ""])
    path = written(tmp_path_factory.mktemp("data"), "a.csv", content)
    data = read_data(path, None, "t")
    step = data.round_ms // 1000
    for number, values in enumerate(rounds(data, 3)):
        for n, (record, value) in enumerate(zip(records, values, strict=True)):
            later = datetime.fromtimestamp(NOON_S + n + number * step, UTC).strftime("%Y-%m-%d %H:%M:%S")
            assert value is not None and value.decode() == record.replace(f"@{n}", later)


@given(
    st.lists(
        st.tuples(
            st.none() | st.binary(max_size=8), st.none() | st.binary(max_size=8),
            st.lists(st.tuples(st.text(min_size=1, max_size=4), st.none() | st.binary(max_size=4)), max_size=2),
        ), min_size=1, max_size=6,
    )
)  # fmt: skip
def test_a_recording_is_replayed_to_the_byte(
    tmp_path_factory: pytest.TempPathFactory,
    records: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]],
) -> None:
    """Null and an empty text differ in values, keys and headers."""
    rows = [
        {"partition": 0, "offset": n, "timestamp_ms": n, "key": key, "value": value,
         "headers": [{"name": name, "value": content} for name, content in headers]}
        for n, (key, value, headers) in enumerate(records)
    ]  # fmt: skip
    kind = pa.schema(
        [("partition", pa.int32()), ("offset", pa.int64()), ("timestamp_ms", pa.int64()), ("key", pa.binary()),
         ("value", pa.binary()), ("headers", pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())])))]
    )  # fmt: skip
    path = tmp_path_factory.mktemp("data") / "a.parquet"
    pq.write_table(pa.Table.from_pylist(rows, kind), path)
    data, numbers = read_data(str(path)), np.arange(3 * len(rows), dtype=np.uint64)
    replay = Replay(data, 1, 0)
    again = [row for _ in range(3) for row in records]
    assert replay.payloads(numbers) == [value for _, value, _ in again]
    assert replay.keys(numbers) == [key for key, _, _ in again]
    assert (replay.headers(numbers) or [[] for _ in again]) == [headers for _, _, headers in again]


def test_keys_are_the_text_of_their_column(tmp_path: Path) -> None:
    rows = ['{"k": "ä\\n"}', '{"k": 1.50}', '{"k": true}', '{"k": null}', '{"k": {"b": [1,  2]}}', '{"k": 1, "k": 2}']
    data = read_data(written(tmp_path, "a.jsonl", "\n".join(rows)), "k")
    assert data.keys == ["ä\n".encode(), b"1.50", b"true", None, b'{"b": [1,  2]}', b"2"]
    data = read_data(written(tmp_path, "a.csv", 'k,v\n"a ""b"", c",1\n x ,2\n'), "k")
    assert data.keys == [b'a "b", c', b" x "]


@pytest.mark.parametrize("rows", [1, 5])
def test_a_line_break_within_quotes_is_part_of_a_record(tmp_path: Path, rows: int) -> None:
    record = '"two\nlines, and ""quotes"""'
    data = read_data(written(tmp_path, "a.csv", "comment\n" + f"{record}\n" * rows))
    assert data.values == [record.encode()] * rows
    with pytest.raises(InputError, match="b.csv, line 3: invalid CSV"):
        read_data(written(tmp_path, "b.csv", 'comment\nx\n"no end\n'))


def test_repeated_time_is_shifted_everywhere(tmp_path: Path) -> None:
    data = read_data(written(tmp_path, "a.jsonl", '{"t": 1, "x": {"t": 1}, "t": 2}\n'), None, "t")
    assert data.round_ms == 1000
    assert rounds(data, 2)[1] == [b'{"t": 2, "x": {"t": 1}, "t": 3}']
