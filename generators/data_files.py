"""User data from files: JSON lines, CSV, Parquet, text and recorded topics.

Records are sent byte for byte. A Parquet row is converted to JSON once. In later replay cycles only the times change,
in place. Errors name file and line (Parquet: row). All data is held in memory, so data that does not fit is refused: at
once if the files are too large, else once it takes too much memory. Plain lines take about twice the file's size in
memory, a Parquet column of equal values many times its size.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, TypeVar

from generators.data_rows import (
    NS_PER_MS,
    CsvRow,
    DataRow,
    InvalidTimeError,
    JsonRow,
    Span,
    Unit,
    read_time,
    shift_time,
    text_of,
)
from generators.send_progress import InputError

TEXT, LINES, CSV, PARQUET = ".txt", ".jsonl", ".csv", ".parquet"
SUFFIXES = (LINES, CSV, PARQUET, TEXT)
# Columns of a recorded topic.
RECORDED = ("partition", "offset", "timestamp_ms", "key", "value", "headers")
# Share of free memory for data, over all processes that hold it.
MEMORY_SHARE = 0.5
# Rows between two memory checks.
ROWS_PER_CHECK = 250
# Time shift per replay cycle if all records have the same time.
SINGLE_ROUND_MS = 1000

Headers = list[tuple[str, bytes | None]]
T = TypeVar("T")


@dataclass
class Data:
    """Records in the order of their files, as lists of equal length; a list is empty if the data has no such field.

    `times_ms`: milliseconds since the epoch. `resolution_ms`: a time can be shifted by multiples of this without a
    change of its format. `spans`, `unit`: positions of the times in each value, and their unit if they are numbers.
    """

    values: list[bytes | None] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    headers: list[Headers] = field(default_factory=list)
    times_ms: list[int] = field(default_factory=list)
    resolution_ms: int = 1
    spans: list[tuple[Span, ...]] = field(default_factory=list)
    unit: Unit | None = None

    def __len__(self) -> int:
        return len(self.values)

    @cached_property
    def round_ms(self) -> int:
        """Time shift from one replay cycle to the next, in ms: the data's length plus one mean gap."""
        if not self.times_ms:
            return 0
        span = max(self.times_ms) - min(self.times_ms)
        length = span + span // max(1, len(self.times_ms) - 1) if span else SINGLE_ROUND_MS
        return -(-length // self.resolution_ms) * self.resolution_ms

    def value(self, index: int, cycle: int) -> bytes | None:
        """Return the value at `index`, with its times shifted as in replay cycle `cycle` (from 0)."""
        value = self.values[index]
        if not cycle or not self.spans or value is None:
            return value
        for start, end in reversed(self.spans[index]):
            later = shift_time(value[start:end], cycle * self.round_ms * NS_PER_MS, self.unit)
            value = value[:start] + later + value[end:]
        return value


def data_files(path: str) -> list[Path]:
    """Return the data files, sorted by name. Raises InputError if there is none, or files of several kinds."""
    given = Path(path)
    if given.is_dir():
        files = sorted(file for file in given.iterdir() if file.suffix in SUFFIXES and file.is_file())
    else:
        files = [given] if given.is_file() else []
    if not files:
        known = ", ".join(SUFFIXES)
        raise InputError(f"data: got {path}; expected a file, or a folder of files, ending in {known}")
    kinds = sorted({one.suffix for one in files})
    if len(kinds) > 1:
        raise InputError(f"data: {path}: got {' and '.join(kinds)}; expected files of one kind")
    if kinds[0] not in SUFFIXES:
        raise InputError(f"data: {path}: got {kinds[0] or 'no suffix'}; expected {', '.join(SUFFIXES)}")
    return files


class MemoryBudget:
    """Memory available for the data."""

    def __init__(self, path: str, copies: int) -> None:
        """Set the budget; `copies` is the number of processes that hold the data."""
        import psutil  # slow import, as pyarrow below

        self._path, self._before = path, used_memory()
        self._limit = int(psutil.virtual_memory().available * MEMORY_SHARE / copies)

    def require(self, files: Sequence[Path]) -> None:
        """Raise InputError if the files exceed the budget."""
        size = sum(map(_size_of, files))
        if size > self._limit:
            raise self._error(f"has {size / 1e6:,.0f} MB")

    def check(self, where: str) -> None:
        """Raise InputError if the data read up to `where` exceeds the budget."""
        size = used_memory() - self._before
        if size > self._limit:
            raise self._error(f"takes {size / 1e6:,.0f} MB of memory up to {where}")

    def check_rows(self, rows: Iterator[T], where: Callable[[T], str]) -> Iterator[T]:
        """Yield the rows and check the budget regularly."""
        for number, row in enumerate(rows, start=1):
            if number % ROWS_PER_CHECK == 0:
                self.check(where(row))
            yield row

    def _error(self, what: str) -> InputError:
        return InputError(
            f"data: {self._path} {what}; expected at most {self._limit / 1e6:,.0f} MB; fix: use a part of it"
        )


def used_memory() -> int:
    """Return the resident memory of this process in bytes."""
    import psutil

    return int(psutil.Process().memory_info().rss)


def read_data(
    path: str, key: str | None = None, time: str | None = None, unit: Unit | None = None, *, copies: int = 1
) -> Data:
    """Return the records of a file or folder.

    `key`, `time`: columns with each record's key and time. `unit`: of numeric times; None: from their magnitude.
    `copies`: number of processes that hold the data. Cached while the files are unchanged. Raises InputError naming
    file and line.
    """
    files = tuple(data_files(path))
    return _read(path, files, tuple(file.stat().st_mtime_ns for file in files), key, time, unit, copies)


@lru_cache(maxsize=1)
def _read(
    path: str,
    files: tuple[Path, ...],
    changed_ns: tuple[int, ...],
    key: str | None,
    time: str | None,
    unit: Unit | None,
    copies: int,
) -> Data:
    suffix, budget = files[0].suffix, MemoryBudget(path, copies)
    budget.require(files)
    named = (("data_key", key), ("data_time", time), ("data_time_unit", unit))
    given = [name for name, value in named if value]
    if suffix == PARQUET and _is_recorded(files[0]):
        for name in given:
            raise InputError(f"{name}: not allowed: {path} is a recorded topic with keys and times; fix: remove it")
        return _read_recorded(files, budget)
    if suffix == TEXT:
        for name in given:
            raise InputError(f"{name}: not allowed: text lines have no columns; fix: remove it")
    if unit is not None and time is None:
        raise InputError("data_time_unit: not allowed without data_time; fix: set data_time")
    data = _read_columns(budget.check_rows(_rows(files, suffix), lambda row: row.where), key, time, unit)
    if not len(data):
        raise InputError(f"data: {path}: got no records; expected at least one")
    return data


def require_ordered(data: Data, path: str) -> None:
    """Raise InputError naming the first record whose time precedes that of the record before it."""
    if not data.times_ms:
        raise InputError(f"data_time: missing for {path}; expected the column with the times")
    for number, (before, after) in enumerate(zip(data.times_ms, data.times_ms[1:], strict=False), start=2):
        if after < before:
            raise InputError(
                f"data: {path}, record {number}: got {_format_time(after)}; expected at least {_format_time(before)}, "
                "as in the previous record; fix: sort the data or use data_pace=rate"
            )


def _read_columns(rows: Iterator[DataRow], key: str | None, time: str | None, unit: Unit | None) -> Data:
    data, given_unit = Data(unit=unit), unit
    for row in rows:
        data.values.append(row.value)
        if key is None and time is None:
            continue
        spans = row.spans()
        for name, column in (("data_key", key), ("data_time", time)):
            if column is not None and column not in spans:
                raise InputError(f"{name}: {row.where}: missing column {column}; got {', '.join(spans)}")
        if key is not None:
            data.keys.append(row.text(spans[key][-1]))
        if time is not None:
            _add_time(data, row, spans[time], f"data_time: {row.where}: {time}", given_unit)
    return data


def _add_time(data: Data, row: DataRow, spans: Sequence[Span], what: str, given_unit: Unit | None) -> None:
    """Add the time of a record; if its column is repeated, read each occurrence, since all are shifted later."""
    for span in spans:
        written = row.value[slice(*span)]
        try:
            time = read_time(written, given_unit)
        except (InvalidTimeError, ArithmeticError) as error:
            raise InputError(f"{what}: got {text_of(written)!r}; {error}") from None
        if not data.times_ms and span is spans[0]:
            data.unit = time.unit
        elif time.unit != data.unit:
            forms = [f"a number of {unit}" if unit else "a text" for unit in (time.unit, data.unit)]
            raise InputError(f"{what}: got {text_of(written)!r}, {forms[0]}; expected {forms[1]}; set data_time_unit")
        data.resolution_ms = max(data.resolution_ms, time.resolution_ns // NS_PER_MS)
    data.spans.append(tuple(spans))
    data.times_ms.append(time.ns // NS_PER_MS)


def _rows(files: Sequence[Path], suffix: str) -> Iterator[DataRow]:
    for file in files:
        yield from {TEXT: _text_rows, LINES: _json_rows, CSV: _csv_rows, PARQUET: _parquet_rows}[suffix](file)


def _text_rows(file: Path) -> Iterator[DataRow]:
    for number, line in _lines(file):
        if content := _strip_newline(line):
            yield DataRow(f"{file}, line {number}", content)


def _json_rows(file: Path) -> Iterator[DataRow]:
    for number, line in _lines(file):
        where, content = f"{file}, line {number}", _strip_newline(line)
        if not content.strip():
            continue
        try:
            columns = json.loads(content)
        except ValueError as error:
            raise InputError(f"data: {where}: invalid JSON: {error}") from None
        if not isinstance(columns, dict):
            raise InputError(f"data: {where}: got {type(columns).__name__}; expected a JSON object")
        yield JsonRow(where, content)


def _csv_rows(file: Path) -> Iterator[DataRow]:
    """Yield a record per row after the header; quoted fields may contain line breaks."""
    raw_lines: list[bytes] = []

    def lines() -> Iterator[str]:
        for _, line in _lines(file):
            raw_lines.append(line)
            yield line.decode()

    reader, names = csv.reader(lines(), strict=True), list[str]()
    while True:
        raw_lines.clear()
        number = reader.line_num + 1
        try:
            fields = next(reader, None)
        except csv.Error as error:
            raise InputError(f"data: {file}, line {number}: invalid CSV: {error}") from None
        if fields is None:
            return
        if not fields:
            continue
        if not names:
            names = fields
        elif len(fields) != len(names):
            raise InputError(f"data: {file}, line {number}: got {len(fields)} columns; expected {len(names)} (header)")
        else:
            yield CsvRow(f"{file}, line {number}", _strip_newline(b"".join(raw_lines)), names)


def _parquet_rows(file: Path) -> Iterator[DataRow]:
    """Yield a JSON object per row."""
    import pyarrow.parquet as pq

    number = 0
    try:
        for batch in pq.ParquetFile(file).iter_batches(ROWS_PER_CHECK):
            for columns in batch.to_pylist():
                number += 1
                yield JsonRow(f"{file}, row {number}", _as_json(columns))
    except (OSError, ValueError, OverflowError) as error:
        raise InputError(f"data: reading {file} failed after row {number}: {error}") from None


def _read_recorded(files: Sequence[Path], budget: MemoryBudget) -> Data:
    import pyarrow.parquet as pq

    data, rows = Data(), list[dict[str, Any]]()
    for file in files:
        try:
            for batch in pq.ParquetFile(file).iter_batches(ROWS_PER_CHECK, columns=list(RECORDED)):
                rows += batch.to_pylist()
                budget.check(f"{file}, row {len(rows)}")
        except OSError as error:
            raise InputError(f"data: reading {file} failed: {error}") from None
    for row in sorted(rows, key=lambda row: (row["timestamp_ms"], row["partition"], row["offset"])):
        data.values.append(row["value"])
        data.keys.append(row["key"])
        data.headers.append([(one["name"], one["value"]) for one in row["headers"] or ()])
        data.times_ms.append(int(row["timestamp_ms"]))
    return data


def _is_recorded(file: Path) -> bool:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(file)
    except (OSError, ValueError) as error:
        raise InputError(f"data: {file}: invalid Parquet file: {error}") from None
    if not set(RECORDED) <= set(schema.names):
        return False
    # A file of another tool may have columns with these names.
    for name in RECORDED:
        found = schema.field(name).type
        if name == "headers":
            one = found.value_type if pa.types.is_list(found) else found
            fits = pa.types.is_null(one) or (pa.types.is_struct(one) and set(one.names) == {"name", "value"})
        elif name in ("key", "value"):
            fits = pa.types.is_binary(found) or pa.types.is_null(found)
        else:
            fits = pa.types.is_integer(found)
        if not fits:
            raise InputError(
                f"data: column {name}: got type {found} in {file}; expected that of `./faultline export-topic`; "
                "fix: export the topic, or rename the column to send each row as JSON"
            )
    return True


def _size_of(file: Path) -> int:
    """Return the uncompressed size of a file in bytes."""
    if file.suffix != PARQUET:
        return file.stat().st_size
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_metadata(file)
    except (OSError, ValueError) as error:
        raise InputError(f"data: {file}: invalid Parquet file: {error}") from None
    return sum(metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups))


def _lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """Yield number and bytes of each line, with its end; a byte-order mark is dropped."""
    try:
        with file.open("rb") as content:
            for number, line in enumerate(content, start=1):
                if number == 1:
                    line = line.removeprefix(b"\xef\xbb\xbf")
                try:
                    line.decode()
                except UnicodeDecodeError as error:
                    raise InputError(f"data: {file}, line {number}: got {error.reason}; expected UTF-8") from None
                yield number, line
    except OSError as error:
        raise InputError(f"data: reading {file} failed: {error.strerror}") from None


def _strip_newline(line: bytes) -> bytes:
    return line.removesuffix(b"\n").removesuffix(b"\r") if line.endswith(b"\n") else line


def _as_json(columns: dict[str, Any]) -> bytes:
    return json.dumps(columns, default=_json_default, ensure_ascii=False, separators=(",", ":")).encode()


def _json_default(value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise InputError("data: got binary data in a column; expected text; fix: remove the column") from None
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _format_time(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
